"""Words and flags that are gone: each answers with the line to type instead, with the user's own arguments."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from harness.cli.help import HELP
from harness.cli.mistyped import typed
from harness.cli.parser import RUN, Words, names_exercise
from harness.common.errors import RequestError
from harness.common.paths import shown_file

# A flag of `report`, and the kind of export that takes its value as the place; "": nothing replaces it.
REPORT_FLAGS = {f"--{kind}": kind for kind in ("csv", "parquet", "png", "notebook")} | {"--hta-compatible": ""}
_NOTEBOOK = f"cp {shown_file('configs/report.ipynb')} .   # then put the run's path into its first cell"
_NOT_OF_EXPORT = ("--full", "--no-html", "--json", "--hta-compatible")
# A flag of a launch, and the words for it; those with a FILE, which takes the value, replace the value too.
LAUNCH_FLAGS = {
    "--precision": "--mixed-precision",
    "--python-sampling-frequency": "--python-sampling --nsys-options FILE",
}
_LAUNCHES = (RUN, "sweep", "lesson")


class Instead(NamedTuple):
    """The words before and after the user's arguments, and those in their place if there are none."""

    before: str
    after: str = ""
    usual: str = ""


WORDS = {
    "paraver": Instead("export paraver", usual="last"),
    "perfetto": Instead("export perfetto", usual="last"),
    "health": Instead("-e 0", "--health"),
    "overlap-test": Instead("-e 0", "--overlap-test"),
    "scaling": Instead("sweep scaling", usual="-e 1 --nodes 1,2,4"),
    "faults": Instead("help faults"),
    "plan": Instead("", "--plan", "-e 1"),
    "rerun": Instead(RUN, usual="last"),
    "mystery": Instead("lesson mystery"),
    "try": Instead("whatif", "--verify", "last"),
}


def refuse_removed(words: Words) -> None:
    """Raises RequestError: a word or flag is gone. The sentence has the new line."""
    argv, script = words.launcher, [] if words.script is None else ["--", *words.script]
    first, *rest = argv or [""]
    if first in ("help", *HELP) and rest and rest[0] in WORDS.keys() - {"faults"}:
        first, *rest = rest
    if first in WORDS:
        raise _gone(first, typed(_line(WORDS[first], [*rest, *script])))
    if first == RUN and words.script is None and names_exercise(rest):
        raise _gone("run -e", typed(rest))
    if [first, *rest[:1]] == ["export", "notebook"]:
        raise _gone("export notebook", _NOTEBOOK)
    names = [word.partition("=")[0] for word in argv]
    if first == "report" and (flags := [name for name in dict.fromkeys(names) if name in REPORT_FLAGS]):
        raise _gone(" and ".join(flags), *(_exported(flag, rest) for flag in flags))
    if (flag := next(filter(LAUNCH_FLAGS.get, names), "")) and (first.startswith("-") or first in _LAUNCHES):
        at = names.index(flag)
        _, equals, value = argv[at].partition("=")
        new, after = LAUNCH_FLAGS[flag].split(), argv[at + 1 :]
        new, after = (new, after[not equals :]) if "FILE" in new else ([*new[:-1], new[-1] + equals + value], after)
        raise _gone(flag, typed([*argv[:at], *new, *after, *script]))


def _line(instead: Instead, arguments: Sequence[str]) -> list[str]:
    words = list(arguments) or instead.usual.split()
    at = words.index("--") if "--" in words else len(words)
    return [*instead.before.split(), *words[:at], *instead.after.split(), *words[at:]]


def _exported(flag: str, arguments: Sequence[str]) -> str:
    """What writes the file of one flag of `report`; the report without the flag, if nothing does."""
    if not (kind := REPORT_FLAGS[flag]):
        return typed(["report", *(word for word in arguments if word != flag)])
    if kind == "notebook":
        return _NOTEBOOK
    kept, place, left = list[str](), list[str](), deque(arguments)
    while left:
        word = left.popleft()
        name, equals, value = word.partition("=")
        if name == "--html" or REPORT_FLAGS.get(name):
            if not equals and left and (name != "--notebook" or left[0].endswith(".ipynb")):
                value = left.popleft()
            place = ["-o", value] if name == flag and value else place
        elif name not in _NOT_OF_EXPORT:
            kept.append(word)
    return typed(["export", kind, *kept, *place])


def _gone(what: str, *lines: str) -> RequestError:
    return RequestError("\n  ".join([f"{what}: removed. Type instead:", *lines]))

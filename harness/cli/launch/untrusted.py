"""Before a launch from a file that somebody else may have written, its commands are shown and confirmed. A run.json is
a program: its site's lines run as the user who starts it again."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args

import typer
from pydantic import BaseModel

from harness.common.errors import RequestError
from harness.common.paths import CONFIGS, ROOT, expanded
from harness.common.printable import escaped
from harness.common.secrets import masked_words
from harness.common.users import owner_of, this_user
from harness.experiment.exercises import Experiment, OwnTraining
from harness.experiment.model import model_names
from harness.experiment.nsys_sets import is_trace_list
from harness.experiment.options import VALUE, options_of
from harness.run import runs_root
from harness.site.detection import with_course
from harness.site.site import SITES, Site, load_site, site_names

if TYPE_CHECKING:
    from harness.run import Run
    from harness.run.record import RunRecord

# What a flag of a launch changes: no site file has to agree in it.
_FLAGGED = {option.field for option in options_of(Site)} | {"max_nodes"}
# What only describes the place or sizes the job: neither a command nor a path. What a launch found in
# the course's folder is in the site's own fields.
_HARMLESS = {
    "name", "description", "detect", "device", "time", "gpus", "cpus_per_node", "cpus_per_gpu", "memory", "exclusive",
    "course", "max_nodes", "network", "signal_seconds", "profiler", "defaults", "scheduler", "python_module",
    "reference_traces",
}  # fmt: skip
_THREADS = "OMP_NUM_THREADS"  # a scaling study on CPUs sets it, at any site
ASKED = "run somebody else's commands without asking"


class RequestOrigin(NamedTuple):
    """The file that a request was read from. user: who it says made it; command: the words that it says were typed."""

    file: Path
    user: str | None = None
    command: Sequence[str] = ()


class UntrustedRequest(NamedTuple):
    """What a file brings. why: a reason each to ask a person first; lines: a command or a path each, for a terminal."""

    file: Path
    why: list[str]
    lines: list[str]


def find_untrusted(
    source: RequestOrigin,
    experiments: Sequence[Experiment],
    site: Site | None = None,
    environ: Mapping[str, str] = os.environ,
) -> UntrustedRequest:
    """What a launch of the experiments at the site takes from the file. site: None, if the user chose it."""
    known, unknown = (None, "") if site is None else _compared(site, source, environ)
    own = list(dict.fromkeys(line for each in experiments for line in _own_lines(each)))
    why = [*_not_ours(source), *filter(None, [unknown])]
    # Of own trainings also where the file itself says that it was typed.
    ours = [runs_root(), *(Path(each.start_in, "runs") for each in experiments if isinstance(each, OwnTraining))]
    if own and not why and not any(source.file.resolve().is_relative_to(place.resolve()) for place in ours):
        why = [f"it is not one of your runs in {runs_root()}, and names files to run or to read"]
    lines = [] if site is None else _site_lines(site, known)
    return UntrustedRequest(source.file, [escaped(each) for each in why], [escaped(each) for each in [*lines, *own]])


def _not_ours(source: RequestOrigin) -> Iterator[str]:
    try:
        owner = owner_of(source.file)
    except OSError as error:
        owner = f"an unknown user ({error.strerror})"
    if owner is not None:
        yield f"it belongs to {owner}"
    elif source.user is not None and source.user not in (this_user(), str(os.getuid())):
        yield f"it says that {source.user} made it"


def _canonical(site: Site) -> dict[str, Any]:
    found = site.model_dump(mode="json", exclude=_FLAGGED)
    threads = found["env"].get(_THREADS, "")
    if threads.isascii() and threads.isdigit():
        del found["env"][_THREADS]
    return found


def _compared(site: Site, source: RequestOrigin, environ: Mapping[str, str]) -> tuple[str | None, str]:
    """The site file of this user or of the harness that says the same, as people find it; else why there is none."""
    there, differs = _canonical(site), ""
    for name, candidate in _candidates(site, source.command, environ):
        try:
            plain = load_site(candidate)
            here = _canonical(plain)
            with_files = _canonical(with_course(plain, environ)[0])
        except RequestError:  # it is gone, or was changed into something else
            continue
        if there in (here, with_files):
            return name, ""
        if here["name"] == site.name and not differs:
            fields = " and ".join(field for field, value in there.items() if value != here[field])
            differs = f"its site {site.name} differs from {name} in {fields}"
    word = _site_word(source.command)
    if word is not None and _is_path(word) and not expanded(word).exists():
        return None, f"its site file {word} is not here any more, so its site {site.name} cannot be compared"
    return None, differs or f"its site {site.name} is not known here ({', '.join(site_names())}, HARNESS_SITE)"


def _candidates(site: Site, command: Sequence[str], environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Site files that this user has reason to trust, with the name to show."""
    if site.name in site_names():
        yield str((SITES / f"{site.name}.yaml").relative_to(CONFIGS.parent)), site.name
    if word := environ.get("HARNESS_SITE"):
        yield f"HARNESS_SITE ({word})", word
    word = _site_word(command)
    if word is not None and _is_path(word) and _is_trusted(expanded(word)):
        yield word, word


def _site_word(command: Sequence[str]) -> str | None:
    joined = (word.removeprefix("--site=") for word in command if word.startswith("--site="))
    return next((after for word, after in pairwise(command) if word == "--site"), next(joined, None))


def _is_path(word: str) -> bool:
    return "/" in word or word.endswith((".yaml", ".yml"))


def _is_trusted(path: Path) -> bool:
    """Whether only this user, or root, could have written it: the name comes from the file that is judged."""
    try:
        return path.is_file() and path.stat().st_uid in (os.geteuid(), 0)
    except OSError:
        return False


def _site_lines(site: Site, known: str | None) -> Iterator[str]:
    flagged = {option.field: getattr(site, option.field) for option in options_of(Site)}
    queue = [f"{name}: {value}" for name, value in flagged.items() if value not in (None, "auto") and name != "time"]
    if known is not None:
        yield f"site {site.name}, as in {known}"
        yield from queue
        return
    for field, info in type(site).model_fields.items():
        value = getattr(site, field)
        if field not in {*_HARMLESS, *flagged} and value != info.default:
            yield from _field_lines(field, value)
    yield from queue


def _field_lines(name: str, value: object) -> Iterator[str]:
    """A line for each text in a field: `setup: module purge`, `env.PATH: /x`, `container.image: x.sif`."""
    if isinstance(value, BaseModel):
        value = {field: getattr(value, field) for field in type(value).model_fields}
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _field_lines(f"{name}.{key}", inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _field_lines(name, inner)
    elif value is not None:
        yield f"{name}: {value}"


def _own_lines(experiment: Experiment) -> Iterator[str]:
    """The experiment's own files, and each variable that it sets, as one may name a library to load."""
    if isinstance(experiment, OwnTraining):
        yield f"-- {shlex.join(masked_words(experiment.command))} (in {experiment.start_in})"
    for option in options_of(type(experiment)):
        value = getattr(experiment, option.field)
        if option.flag.env is not None and isinstance(value, tuple):
            yield from (f"{option.written(value)} {text}" for text in value)
            continue
        takes_text = str in (option.info.annotation, *get_args(option.info.annotation))
        if not takes_text or is_trace_list(value) or value in model_names():
            continue
        flag = next(name for name, meaning in option.flag.names.items() if meaning is VALUE)
        yield f"{flag} {value}" + ("" if Path(value).is_absolute() else f" (in {ROOT})")


YesOption = Annotated[bool, typer.Option("--yes", help=ASKED)]


def source_of(run: Run, record: RunRecord) -> RequestOrigin:
    return RequestOrigin(run.record_file, record.user, record.command)


def show_request(source: RequestOrigin, experiments: Sequence[Experiment], site: Site | None) -> None:
    _show(find_untrusted(source, experiments, site))


def _show(untrusted: UntrustedRequest) -> None:
    lines = untrusted.lines or ["no command and no path"]
    reasons = [f"a launch asks first: {reason}" for reason in untrusted.why]
    print("\n  ".join([f"{escaped(str(untrusted.file))} would run or use:", *lines]), file=sys.stderr)
    print("".join(f"{each}\n" for each in reasons), end="", file=sys.stderr)


def may_launch(source: RequestOrigin, experiments: Sequence[Experiment], site: Site | None, *, yes: bool) -> bool:
    """Whether to go on: nothing is untrusted, or the user agrees. site: None, where the user chose it."""
    found = find_untrusted(source, experiments, site)
    if not found.why or (site is None and not found.lines):
        return True
    _show(found)
    if yes:
        return True
    if not sys.stdin.isatty():
        raise RequestError(
            f"add --yes to run the commands of {found.file} shown above: without a terminal no question can be asked "
            "(nothing was started)"
        )
    if not (answer := agreed("run these commands as your user?")):
        print("nothing was started", file=sys.stderr)
    return answer


def confirmed(what: str, yes: bool, done: str) -> bool:
    """Whether to do it: with --yes, or if a person agrees. Raises RequestError: there is no terminal to ask at."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise RequestError(f"add --yes to {what}: there is no terminal to ask at (nothing was {done})")
    if not (answer := agreed(f"{what}?")):
        print(f"nothing was {done}", file=sys.stderr)
    return answer


def agreed(question: str) -> bool:
    try:
        return typer.confirm(question, err=True)
    except typer.Abort:  # Ctrl-C or Ctrl-D
        raise KeyboardInterrupt from None

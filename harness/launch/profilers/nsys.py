"""nsys on a compute node: the script's words for the nsys that is there, because only it knows its own option names.
Knows nothing of the training that nsys will record."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from glob import escape
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

if __name__ == "__main__":  # by its path: PYTHONPATH is the training's, and stays so
    sys.path[0] = str(Path(__file__).resolve().parents[3])

from harness.common.errors import HarnessError, WorkError
from harness.common.paths import README_OF_IMAGES
from harness.common.system.secrets import kept_from_nsys
from harness.experiment.nsys_sets import GPU_ONLY, METRICS
from harness.launch.profilers.record import become

RENAMED = [
    {"gpu-metrics-devices", "gpu-metrics-device"},
    {"ib-switch-metrics-devices", "ib-switch-metrics-device"},
    {"python-functions-trace", "python-nvtx-annotations"},  # nsys 2023
]
# Of an option, a value that was renamed: nsys 2026 calls --nic-metrics=true deprecated, in favour of lf and hf.
RENAMED_VALUES = {("nic-metrics", "true"): "lf"}
NSYS_OF_NODE = "this node's PATH: load its module (field `modules` of the site)"
NSYS_OF_IMAGE = f"the container's PATH: build it into the image ({README_OF_IMAGES})"
# "System scope" in nsys's help: they record the node, whichever process is profiled, and only one may.
WHOLE_NODE = GPU_ONLY | {"nic-metrics", "ib-switch-metrics-devices", "ib-switch-metrics-device"}
# An option's own paragraph begins with its name alone on a line, or with its value as "=<…>"; elsewhere names are only
# mentioned. nsys refuses what it calls deprecated.
_OPTION = r"^\s*(?:\(Experimental\) )?(?:-\w, )?--{}(?:=|=<[^\n]*)?\s*$"


class Nsys(NamedTuple):
    """An installed nsys: its version and what `nsys profile --help` says. values: of the options whose values differ
    between versions, those that the help names; of_start: the options of `nsys start`."""

    version: tuple[int, ...]
    flags: frozenset[str]
    values: Mapping[str, frozenset[str]]
    # Why it cannot sample any GPU's metrics here: the option for them would stop the training.
    no_metrics: str = ""
    of_start: frozenset[str] = frozenset()

    @property
    def dotted(self) -> str:
        return ".".join(map(str, self.version)) or "of unknown version"


def understood(version_text: str, help_text: str, start_help: str = "") -> Nsys:
    """An nsys, from the output of `nsys --version`, `nsys profile --help` and `nsys start --help`."""
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", version_text)
    values = {flag: _words_about(flag, help_text) for flag in ("trace", *(flag for flag, _ in RENAMED_VALUES))}
    version = tuple(int(x) for x in found.groups()) if found else ()
    return Nsys(version, _flags_in(help_text), values, of_start=_flags_in(start_help))


def _flags_in(help_text: str) -> frozenset[str]:
    return frozenset(re.findall(_OPTION.format("([a-z][a-z0-9-]+)"), help_text, re.MULTILINE))


def _words_about(flag: str, help_text: str) -> frozenset[str]:
    paragraph = _OPTION.format(flag) + r"(.*?)(?=^\s*(?:\(\w+\) )?(?:-\w, )?--[a-z]|\Z)"
    block = re.search(paragraph, help_text, re.DOTALL | re.MULTILINE)
    return frozenset(re.findall(r"[a-z][a-z0-9-]+", block[1])) if block else frozenset()


class NsysWords(NamedTuple):
    """Words before the program to record, and a sentence for each that was left out."""

    words: list[str]
    left_out: list[str]


def adapted(words: Sequence[str], nsys: Nsys) -> NsysWords:
    """`nsys profile …` in the words of an installed nsys: names that it has, without what it does not know."""
    kept, said, follows = list(words[:2]), [], False
    blind = nsys.no_metrics != "" and any(_name(word) in METRICS for word in words)
    said += [f"no GPU metrics here ({nsys.no_metrics}): left out, all else is recorded"] * blind
    for word in words[2:]:
        name, equal, text = word.partition("=")
        if not word.startswith("--"):  # a short option, or the value of the one before it
            kept += [] if follows else [word]
            continue
        flag = None if blind and name[2:] in METRICS else _known_name(name[2:], nsys.flags)
        follows = flag is None and not equal
        if flag is None:
            said += [f"this nsys ({nsys.dotted}) has no {name}: left out"] * (not blind or name[2:] not in METRICS)
            continue
        values, dropped = _known_values(flag, text.split(","), nsys)
        said += [f"this nsys ({nsys.dotted}) cannot trace {value}: left out" for value in dropped if equal]
        kept.append(f"--{flag}={values}" if equal else word)
    return NsysWords(kept, said)


def _name(word: str) -> str:
    return word.partition("=")[0].removeprefix("--")


def without_whole_node(words: Sequence[str]) -> list[str]:
    """The words for a recording beside another one of the same node."""
    return [word for word in words if _name(word) not in WHOLE_NODE]


def options_of_start(nsys: Nsys, words: Sequence[str]) -> list[str] | None:
    """The options that `nsys start` takes too, by which a session records again; None: this one cannot."""
    if not {"session", "capture-range"} <= nsys.of_start or "--capture-range-end=stop" not in words:
        return None
    return [word for word in words[2:] if _name(word) in nsys.of_start - {"output"}]


def _known_name(name: str, flags: frozenset[str]) -> str | None:
    if name in flags:
        return name
    twins = next((group for group in RENAMED if name in group), set[str]())
    return next((twin for twin in sorted(twins) if twin in flags), None)


def _known_values(flag: str, values: list[str], nsys: Nsys) -> tuple[str, list[str]]:
    known = nsys.values.get(flag, frozenset())
    if flag != "trace" or not known:
        renamed = (RENAMED_VALUES.get((flag, value), value) for value in values)
        return ",".join(new if new in known else old for old, new in zip(values, renamed, strict=True)), []
    return ",".join(v for v in values if v in known), [v for v in values if v not in known]


def ask_installed(in_container: bool = False) -> Nsys:
    """The nsys on PATH. in_container: this runs in one. Raises WorkError: nsys is not on PATH, or does not answer."""
    if shutil.which("nsys") is None:
        raise WorkError(
            f"nsys is not on {NSYS_OF_IMAGE if in_container else NSYS_OF_NODE}, or run with --profiler torch or "
            f"--no-profile"
        )
    commands = (["--version"], ["profile", "--help"], ["start", "--help"])
    return understood(*(_output("nsys", *words) for words in commands))


def ask_metrics(nsys: Nsys) -> str:
    """Why the nsys on PATH cannot sample GPU metrics here; empty when it can."""
    flag = _known_name("gpu-metrics-devices", nsys.flags)
    if flag is None:
        return ""
    try:
        return blindness(_output("nsys", "profile", f"--{flag}=help"))
    except WorkError as error:
        return str(error)


def blindness(help_text: str) -> str:
    """Why no GPU's metrics can be sampled, from the output of `--gpu-metrics-devices=help`; empty when one's can.

    The output lists the GPUs that can as `0: name`, then the others below a heading. Or it has one line: no such GPU,
    the driver keeps the counters for root, or another profiler holds them.
    """
    usable = help_text.partition("not supported")[0]
    if re.search(r"^\s*\d+:", usable, re.MULTILINE):
        return ""
    lines = [line.strip() for line in help_text.splitlines() if line.strip()]
    why = [line for line in lines if not re.match(r"Possible .* values are|(all|none|cuda-visible):", line)]
    return " ".join(why[:2]) if why else "nsys names no GPU"


def _output(*argv: str) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WorkError(f"{' '.join(argv)} does not answer ({error})") from None
    return done.stdout + done.stderr


def prepare(words: Sequence[str], in_container: bool = False) -> tuple[Nsys, NsysWords]:
    """The nsys on PATH, and the words for it. in_container: this runs in one. Raises WorkError: nsys is not on PATH, or
    does not answer."""
    nsys = ask_installed(in_container)
    if any(_name(word) in METRICS for word in words):
        nsys = nsys._replace(no_metrics=ask_metrics(nsys))
    return nsys, adapted(words, nsys)


def program_of(named: Path) -> Path:
    """nsys itself, in `target-linux-…`: what PATH names may be a link to it or a script that looks for it. Where it
    cannot be told, what PATH names."""
    real = named.resolve()
    if "/target-linux-" in str(real):
        return real
    folder = real.parent.parent
    patterns = ("target-linux-*/nsys", "nsight-systems-*/target-linux-*/nsys")
    found = {path.resolve() for pattern in patterns for path in folder.glob(pattern)}
    return found.pop() if len(found) == 1 else named


def import_reports(output: Path) -> None:
    """Make reports of what nsys recorded in a container without its importer's libraries; a line each. output: as nsys
    was told it, also with %q{RANK}."""
    recordings = output.parent.glob(f"{escape(output.name).replace('%q{RANK}', '*')}.*qdstrm")
    beside = program_of(Path(shutil.which("nsys") or "nsys")).parent.parent  # its importer lies beside its recorder
    importer = next(iter(sorted(beside.glob("host-linux-*/QdstrmImporter"))), None)
    for recording in sorted(path for path in recordings if not path.with_suffix(".nsys-rep").exists()):
        why = _imported(importer, recording) if importer else "this nsys has no importer beside it"
        made = recording.with_suffix(".nsys-rep").name
        result = f"could not be turned into a report: {why}" if why else f"became {made}"
        print(f"nsys: {recording.name}, which nsys itself could not import, {result}", file=sys.stderr)


def _imported(importer: Path, report: Path) -> str:
    """Make the report; the reason if that failed. What was recorded goes away only with a report."""
    unfinished = report.with_name(f".unfinished-{report.stem}.nsys-rep")
    argv: list[str | Path] = [importer, "--force-overwrite", "--input-file", report, "--output-file", unfinished]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, errors="replace")
    if done.returncode or not unfinished.is_file():
        unfinished.unlink(missing_ok=True)
        said = (done.stderr or done.stdout).strip().splitlines()
        return said[-1] if said else f"exit {done.returncode}"
    unfinished.replace(report.with_suffix(".nsys-rep"))
    report.unlink()
    return ""


def main(argv: list[str]) -> str | int:
    """`nsys profile OPTION… PROGRAM…`, in a container: become its nsys, without what it does not know. Returns only an
    error."""
    count = 2 + len(list(takewhile(lambda word: word.startswith("-"), argv[2:])))
    try:
        nsys, (words, said) = prepare(argv[:count], in_container=True)
    except HarnessError as error:
        print(f"nsys: {error}", file=sys.stderr)
        return error.exit_code
    for sentence in said:
        print(f"nsys: {sentence}", file=sys.stderr)
    for name in kept_from_nsys(os.environ):
        del os.environ[name]
    sys.stderr.flush()
    return become(words, argv[count:], options_of_start(nsys, words))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

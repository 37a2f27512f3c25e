"""nsys around a launch: from an option set and the options of the installed nsys to an argv. Runs on the compute node,
just before the training (`python -m harness.launch.profilers.nsys`), because only that nsys knows its own option names.
Knows nothing of the training that nsys will record."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from harness.common.bounded_read import read_bounded_json
from harness.common.errors import HarnessError, RequestError, WorkError, nearest
from harness.common.paths import CONFIGS
from harness.common.secrets import kept_from_nsys, told_of_nsys

OPTION_SETS = CONFIGS / "nsys"
TRACE_LISTS = OPTION_SETS / "python-trace"
RENAMED = [
    {"gpu-metrics-devices", "gpu-metrics-device"},
    {"ib-switch-metrics-devices", "ib-switch-metrics-device"},
    {"python-functions-trace", "python-nvtx-annotations"},  # nsys 2023
]
# Of an option, a value that was renamed: nsys 2026 calls --nic-metrics=true deprecated, in favour of lf and hf.
RENAMED_VALUES = {("nic-metrics", "true"): "lf"}
METRICS = {"gpu-metrics-devices", "gpu-metrics-device", "gpu-metrics-frequency", "gpu-metrics-set"}
NSYS_OF_NODE = "this node's PATH: load its module (field `modules` of the site)"
NSYS_OF_IMAGE = "the container's PATH: build it into the image (containers/README.md)"
GPU_ONLY = METRICS | {"gpuctxsw"}
# "System scope" in nsys's help: they record the node, whichever process is profiled, and only one may.
WHOLE_NODE = GPU_ONLY | {"nic-metrics", "ib-switch-metrics-devices", "ib-switch-metrics-device"}
CAPTURE_ON_CPU = ("capture-range", "nvtx-capture", "env-var", "cpuctxsw")
BY_CLOCK = str(Path(__file__).with_name("by_clock.py"))
ON_REQUEST = str(Path(__file__).with_name("on_request.py"))
# An option's own paragraph begins with its name alone on a line, or with its value as "=<…>"; elsewhere names are only
# mentioned. nsys refuses what it calls deprecated.
_OPTION = r"^\s*(?:\(Experimental\) )?(?:-\w, )?--{}(?:=|=<[^\n]*)?\s*$"
RETRY_START = str(Path(__file__).with_name("retry_start.py"))

Options = Mapping[str, str | list[str] | None]


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


def load_options(name_or_path: str) -> Options:
    """An option set by name, or from a file. Raises RequestError: the set does not exist, or is not a JSON object of
    options."""
    path = Path(name_or_path) if "/" in name_or_path else OPTION_SETS / f"{name_or_path}.json"
    try:
        options = read_bounded_json(path)
    except OSError as error:
        near = nearest(path.stem, _option_sets())
        hint = f"did you mean {near}?" if near else f"there are {', '.join(_option_sets())}"
        raise RequestError(f"nsys options {path}: cannot be read ({error.strerror}); {hint}") from None
    except ValueError as error:
        raise RequestError(f"nsys options {path}: {error}") from None
    if not isinstance(options, dict) or not all(isinstance(v, str | list | None) for v in options.values()):
        raise RequestError(f"nsys options {path}: must be one JSON object of option names and texts, lists or null")
    return options


def is_option_set(name: str | None) -> bool:
    """Whether it is the name of one of our sets, or none."""
    return name is None or name in _option_sets()


def _option_sets() -> list[str]:
    return sorted(path.stem for path in OPTION_SETS.glob("*.json"))


def capturing_on_cpu(options: Options) -> Options:
    """The set where no CUDA call begins the recording: an NVTX range does, as in our set for CPUs."""
    if options.get("capture-range") != "cudaProfilerApi":
        return options
    of_cpu = load_options("cpu")
    return {**options, **{name: of_cpu[name] for name in CAPTURE_ON_CPU}}


def is_trace_list(name: str | None) -> bool:
    """Whether it is the name of one of our lists of Python functions, or none."""
    return name is None or name in _trace_lists()


def _trace_lists() -> list[str]:
    return sorted(path.stem for path in TRACE_LISTS.glob("*.json"))


def trace_list(name_or_path: str) -> Path:
    return Path(name_or_path) if "/" in name_or_path else TRACE_LISTS / f"{name_or_path}.json"


def check_trace_list(path: Path) -> None:
    """Raises RequestError: the file is no list of Python functions, as nsys reads it."""
    try:
        listed = read_bounded_json(path)
    except OSError as error:
        near = nearest(path.stem, _trace_lists())
        hint = f"did you mean {near}?" if near else f"there are {', '.join(_trace_lists())}, or give a path"
        raise RequestError(f"{path} cannot be read ({error.strerror}); {hint}") from None
    except ValueError as error:
        raise RequestError(f"{path}: {error}") from None
    is_list = isinstance(listed, list) and listed and all(isinstance(each, dict) for each in listed)
    if not is_list or not all(
        isinstance(each.get("module"), str) and isinstance(each.get("functions"), list) for each in listed
    ):
        raise RequestError(
            f'{path}: must be a JSON list of objects, each with a "module" and a list of its "functions"'
        )


def changed(options: Options, words: Sequence[str]) -> Options:
    """The option set with a run's own `--NAME=VALUE`, or `--no-NAME` for one to leave out."""
    named = (word.removeprefix("--").partition("=") for word in words)
    own = {name.removeprefix("no-") if not equal else name: text if equal else None for name, equal, text in named}
    return {**options, **own}


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


def profile_argv(nsys: Nsys, options: Options, output: str, has_gpu: bool) -> tuple[list[str], list[str]]:
    """`nsys profile …` without the program to run, and a warning for each option that was left out."""
    argv, warnings = ["nsys", "profile"], []
    options, times = _by_clock(options)
    blind = has_gpu and nsys.no_metrics != "" and wants_metrics(options)
    warnings += [f"no GPU metrics here ({nsys.no_metrics}): left out, all else is recorded"] * blind
    for name, wanted in options.items():
        if wanted is None or (name in GPU_ONLY and not has_gpu) or (blind and name in METRICS):
            continue
        flag = _known_name(name, nsys.flags)
        if flag is None:
            warnings.append(f"this nsys ({nsys.dotted}) has no --{name}: left out")
            continue
        values, dropped = _known_values(flag, wanted, nsys)
        warnings += [f"this nsys ({nsys.dotted}) cannot trace {v}: left out" for v in dropped]
        argv.append(f"--{flag}={values}")
    before = [sys.executable, "-I", BY_CLOCK, *map(str, times)] if any(times) else []
    return [*before, *argv, f"--output={output}"], warnings


def _by_clock(options: Options) -> tuple[Options, tuple[int, int]]:
    """Delay and duration of a recording by the clock in seconds, 0 for none; by_clock.py is the duration then."""
    if options.get("capture-range") not in (None, "none"):
        return options, (0, 0)
    texts = [str(options.get(name) or 0) for name in ("delay", "duration")]
    delay, duration = (int(text) if text.isdecimal() else 0 for text in texts)
    return {**options, "duration": None, "kill": "none"} if duration else options, (delay, duration)


def on_request(nsys: Nsys, options: Options, words: Sequence[str]) -> list[str]:
    """The words before `nsys profile …`, by which it records again when it is asked, or none if it cannot: the
    program, and the options that `nsys start` takes too."""
    if not {"session", "capture-range"} <= nsys.of_start or options.get("capture-range-end") != "stop":
        return []
    again = [word for word in words if word[2:].partition("=")[0] in nsys.of_start - {"output"}]
    return [sys.executable, "-I", ON_REQUEST, str(len(again)), *again]


def wants_metrics(options: Options) -> bool:
    return any(options.get(name) for name in METRICS)


def _known_name(name: str, flags: frozenset[str]) -> str | None:
    if name in flags:
        return name
    twins = next((group for group in RENAMED if name in group), set[str]())
    return next((twin for twin in sorted(twins) if twin in flags), None)


def _known_values(flag: str, wanted: str | list[str], nsys: Nsys) -> tuple[str, list[str]]:
    values, known = [wanted] if isinstance(wanted, str) else wanted, nsys.values.get(flag, frozenset())
    if flag != "trace" or not known:
        renamed = (RENAMED_VALUES.get((flag, value), value) for value in values)
        return ",".join(new if new in known else old for old, new in zip(values, renamed, strict=True)), []
    return ",".join(v for v in values if v in known), [v for v in values if v not in known]


def ask_installed(inside: bool = False) -> Nsys:
    """The nsys on PATH. inside: this runs in a container. Raises WorkError: nsys is not on PATH, or does not answer."""
    if shutil.which("nsys") is None:
        raise WorkError(
            f"nsys is not on {NSYS_OF_IMAGE if inside else NSYS_OF_NODE}, or run with --profiler torch or --no-profile"
        )
    asked = (["--version"], ["profile", "--help"], ["start", "--help"])
    return understood(*(_output("nsys", *words) for words in asked))


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


def without_secrets(environ: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Words to put before nsys, and a warning where there are some. The job began without the submitting shell's
    secrets: these come from the site's own lines."""
    names = kept_from_nsys(environ)
    if not names:
        return [], []
    return ["env", *(word for name in names for word in ("-u", name))], [told_of_nsys(names)]


def _output(*argv: str) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WorkError(f"{' '.join(argv)} does not answer ({error})") from None
    return done.stdout + done.stderr


class Prepared(NamedTuple):
    """A recording on this node, but for its output."""

    nsys: Nsys
    options: Options
    has_gpu: bool

    def argv(self, output: str) -> tuple[list[str], list[str]]:
        """The words before the program to record, and warnings."""
        words, warnings = profile_argv(self.nsys, self.options, output, self.has_gpu)
        before, dropped = without_secrets(os.environ)
        return [*before, *on_request(self.nsys, self.options, words), *words], [*warnings, *dropped]


def prepare(config: str, device: str, words: Sequence[str], inside: bool = False) -> Prepared:
    """What a run asks of the nsys on PATH. words: its own changes of the option set, as in `changed`; inside: in the
    container, whose PATH it is.

    Raises RequestError: the option set cannot be read. WorkError: nsys is not on PATH, or does not answer.
    """
    options, has_gpu, nsys = load_options(config), device == "gpu", ask_installed(inside)
    options = changed(options if has_gpu else capturing_on_cpu(options), words)
    listed = options.get("python-functions-trace")
    if isinstance(listed, str):
        options = {**options, "python-functions-trace": str(trace_list(listed))}
    if has_gpu and wants_metrics(options):
        nsys = nsys._replace(no_metrics=ask_metrics(nsys))
    return Prepared(nsys, options, has_gpu)


def say(warnings: Sequence[str]) -> None:
    for warning in warnings:
        print(f"nsys: {warning}", file=sys.stderr)


def main(argv: list[str]) -> int:
    """`CONFIG OUTPUT gpu|cpu CHANGE… [PROGRAM…]`: become nsys with the program; without one, print the words before it.

    A change of the option set is `--NAME=VALUE`, or `--no-NAME` to leave one out. NUL after each word; warnings to
    stderr.
    """
    config, output, device, *rest = argv
    changes = list(takewhile(lambda word: word.startswith("--"), rest))
    program = rest[len(changes) :]
    try:
        words, warnings = prepare(config, device, changes, inside=bool(program)).argv(output)
    except HarnessError as error:
        print(f"nsys: {error}", file=sys.stderr)
        return error.exit_code
    say(warnings)
    if program:
        sys.stderr.flush()
        os.execvp(words[0], [*words, *program])
    again = [sys.executable, "-I", RETRY_START, str(len(words))]
    sys.stdout.write("".join(f"{word}\0" for word in [*again, *words]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""nsys around a launch: from an option set and the options of the installed nsys to an argv.

Runs on the compute node, just before the training (`python -m harness.launch.profilers.nsys`), because only that nsys
knows its own option names. Knows nothing of the training that nsys will record.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from harness.common.errors import HarnessError, RequestError, WorkError
from harness.common.paths import CONFIGS
from harness.common.secrets import kept_from_nsys, told_of_nsys
from harness.common.small_file import read_small_json

OPTION_SETS = CONFIGS / "nsys"
RENAMED = [{"gpu-metrics-devices", "gpu-metrics-device"}]
METRICS = {"gpu-metrics-devices", "gpu-metrics-device", "gpu-metrics-frequency", "gpu-metrics-set"}
NSYS_OF_NODE = "this node's PATH: load its module (field `modules` of the site)"
NSYS_OF_IMAGE = "the container's PATH: build it into the image (containers/README.md)"
GPU_ONLY = METRICS | {"gpuctxsw"}

Options = Mapping[str, str | list[str] | None]


class Nsys(NamedTuple):
    """An installed nsys: its version and what `nsys profile --help` says."""

    version: tuple[int, ...]
    flags: frozenset[str]
    traces: frozenset[str]
    # Why it cannot sample any GPU's metrics here: the option for them would stop the training.
    no_metrics: str = ""


def load_options(name_or_path: str) -> Options:
    """An option set by name, or from a file.

    Raises:
        RequestError: the set does not exist, or is not a JSON object of options.
    """
    path = Path(name_or_path) if "/" in name_or_path else OPTION_SETS / f"{name_or_path}.json"
    try:
        options = read_small_json(path)
    except OSError as error:
        names = ", ".join(sorted(p.stem for p in OPTION_SETS.glob("*.json")))
        raise RequestError(
            f"nsys options {path}: cannot be read ({error.strerror}); there are {names}"
        ) from None
    except ValueError as error:
        raise RequestError(f"nsys options {path}: {error}") from None
    if not isinstance(options, dict) or not all(isinstance(v, str | list | None) for v in options.values()):
        raise RequestError(
            f"nsys options {path}: must be one JSON object of option names and texts, lists or null"
        )
    return options


def understood(version_text: str, help_text: str) -> Nsys:
    """An nsys, from the output of `nsys --version` and `nsys profile --help`."""
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", version_text)
    # An option's own paragraph begins with its name alone on a line; elsewhere names are only mentioned.
    flags = frozenset(re.findall(r"^\s*(?:-\w, )?--([a-z][a-z0-9-]+)=?\s*$", help_text, re.MULTILINE))
    block = re.search(
        r"^\s*(?:-\w, )?--trace=?\s*$(.*?)(?=^\s*(?:-\w, )?--[a-z])", help_text, re.DOTALL | re.MULTILINE
    )
    traces = frozenset(re.findall(r"[a-z][a-z0-9-]+", block[1])) if block else frozenset[str]()
    return Nsys(tuple(int(x) for x in found.groups()) if found else (), flags, traces)


def profile_argv(nsys: Nsys, options: Options, output: str, has_gpu: bool) -> tuple[list[str], list[str]]:
    """`nsys profile …` without the program to run, and a warning for each option that was left out."""
    argv, warnings = ["nsys", "profile"], []
    blind = has_gpu and nsys.no_metrics != "" and wants_metrics(options)
    warnings += [f"no GPU metrics here ({nsys.no_metrics}): left out, all else is recorded"] * blind
    for name, wanted in options.items():
        if wanted is None or (name in GPU_ONLY and not has_gpu) or (blind and name in METRICS):
            continue
        flag = _known_name(name, nsys.flags)
        if flag is None:
            warnings.append(f"this nsys ({_dotted(nsys)}) has no --{name}: left out")
            continue
        values, dropped = _known_values(flag, wanted, nsys)
        warnings += [f"this nsys ({_dotted(nsys)}) cannot trace {v}: left out" for v in dropped]
        argv.append(f"--{flag}={values}")
    return [*argv, f"--output={output}"], warnings


def wants_metrics(options: Options) -> bool:
    return any(options.get(name) for name in METRICS)


def _known_name(name: str, flags: frozenset[str]) -> str | None:
    if name in flags:
        return name
    twins = next((group for group in RENAMED if name in group), set[str]())
    return next((twin for twin in sorted(twins) if twin in flags), None)


def _known_values(flag: str, wanted: str | list[str], nsys: Nsys) -> tuple[str, list[str]]:
    values = [wanted] if isinstance(wanted, str) else wanted
    if flag != "trace" or not nsys.traces:
        return ",".join(values), []
    return ",".join(v for v in values if v in nsys.traces), [v for v in values if v not in nsys.traces]


def _dotted(nsys: Nsys) -> str:
    return ".".join(map(str, nsys.version)) or "of unknown version"


def ask_installed(inside: bool = False) -> Nsys:
    """The nsys on PATH. inside: this runs in a container.

    Raises:
        WorkError: nsys is not on PATH, or does not answer.
    """
    if shutil.which("nsys") is None:
        raise WorkError(
            f"nsys is not on {NSYS_OF_IMAGE if inside else NSYS_OF_NODE}, or run with --profiler torch or --no-profile"
        )
    return understood(_output("nsys", "--version"), _output("nsys", "profile", "--help"))


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
    return ["env", *(word for name in names for word in ("-u", name))] * bool(names), [
        told_of_nsys(names)
    ] * bool(names)


def _output(*argv: str) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WorkError(f"{' '.join(argv)} does not answer ({error})") from None
    return done.stdout + done.stderr


def main(argv: list[str]) -> int:
    """`CONFIG OUTPUT gpu|cpu [PROGRAM…]`: become nsys with the program; without one, print the words before it.

    NUL after each word; warnings to stderr.
    """
    config, output, device, *program = argv
    try:
        options, has_gpu, nsys = load_options(config), device == "gpu", ask_installed(bool(program))
        if has_gpu and wants_metrics(options):
            nsys = nsys._replace(no_metrics=ask_metrics(nsys))
        words, warnings = profile_argv(nsys, options, output, has_gpu)
        before, dropped = without_secrets(os.environ)
    except HarnessError as error:
        print(f"nsys: {error}", file=sys.stderr)
        return error.exit_code
    for warning in [*warnings, *dropped]:
        print(f"nsys: {warning}", file=sys.stderr)
    if program:
        sys.stderr.flush()
        os.execvp((before + words)[0], [*before, *words, *program])
    sys.stdout.write("".join(f"{word}\0" for word in [*before, *words]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

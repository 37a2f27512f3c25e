"""The sets of nsys's options, and the lists of Python functions for it: files of ours or of a user; and a set as the
words of a script, in the newest nsys's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.common.errors import RequestError, nearest
from harness.common.paths import CONFIGS
from harness.common.system.bounded_read import read_bounded_json

OPTION_SETS = CONFIGS / "nsys"
TRACE_LISTS = OPTION_SETS / "python-trace"
METRICS = {"gpu-metrics-devices", "gpu-metrics-device", "gpu-metrics-frequency", "gpu-metrics-set"}
GPU_ONLY = METRICS | {"gpuctxsw"}
CAPTURE_ON_CPU = ("capture-range", "nvtx-capture", "env-var", "cpuctxsw")

Options = Mapping[str, str | list[str] | None]


def load_options(name_or_path: str) -> Options:
    """An option set by name, or from a file. Raises RequestError: the set does not exist, or is not a JSON object of
    options."""
    path = Path(name_or_path) if "/" in name_or_path else OPTION_SETS / f"{name_or_path}.json"
    options = _read(path, f"nsys options {path}", _option_sets())
    if not isinstance(options, dict) or not all(map(_is_value, options.values())):
        raise RequestError(
            f"nsys options {path}: must be one JSON object of option names and texts, lists of texts, or null"
        )
    return options


def _is_value(value: object) -> bool:
    texts = value if isinstance(value, list) else [] if value is None else [value]
    return all(isinstance(text, str) and "\0" not in text for text in texts)


def _read(path: Path, what: str, ours: list[str]) -> Any:
    """The file's JSON. what: the file in a sentence; ours: the names of our own. Raises RequestError: it cannot be
    read."""
    try:
        return read_bounded_json(path)
    except OSError as error:
        near = nearest(path.stem, ours)
        hint = f"did you mean {near}?" if near else f"there are {', '.join(ours)}, or give a path"
        raise RequestError(f"{what} cannot be read ({error.strerror}); {hint}") from None
    except ValueError as error:
        raise RequestError(f"{what}: {error}") from None


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
    listed = _read(path, str(path), _trace_lists())
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


def profile_words(options: Options, changes: Sequence[str], *, has_gpu: bool) -> list[str]:
    """`nsys profile …` of an option set, with a run's changes as in `changed`, in the newest nsys's words, without its
    output."""
    options = changed(options if has_gpu else capturing_on_cpu(options), changes)
    listed = options.get("python-functions-trace")
    if isinstance(listed, str):
        options = {**options, "python-functions-trace": str(trace_list(listed))}
    words = ["nsys", "profile"]
    for name, wanted in options.items():
        if wanted is not None and (has_gpu or name not in GPU_ONLY):
            words.append(f"--{name}={wanted if isinstance(wanted, str) else ','.join(wanted)}")
    return words

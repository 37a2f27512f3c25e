"""Step 0: which machine this is, and what it lacks. Asks every program once; imports PyTorch in another process."""

from __future__ import annotations

import importlib.util
import json
import platform
import re
import shutil
import sys
from collections.abc import Iterable
from importlib import metadata
from typing import Any

from place import Place, has_gpu, nvidia_smi, require_success
from results import Result

GPU_FIELDS = "name,driver_version,memory.total,power.limit,clocks.max.sm,clocks.max.memory"
ASK_PINS = """
import json, sys
sys.path.insert(0, "scripts/bootstrap")
import pins
text = open("pyproject.toml", encoding="utf-8").read()
print(json.dumps([line for part in ("launcher", "train") for line in pins.requirements(text, part)]))
"""
INSTALL = "python3 -m pip install --no-index --no-deps --target FOLDER WHEELS/*.whl"
# The requirements of a package cannot be read before it is installed; these are often forgotten.
NEEDS = {
    "accelerate": ("huggingface_hub", "safetensors"),
    "deepspeed": ("einops", "hjson", "msgpack", "ninja", "py-cpuinfo"),
    "plotly": ("narwhals",),
    "pydantic": ("annotated-types", "pydantic-core", "typing-inspection"),
    "submitit": ("cloudpickle",),
    "transformers": ("huggingface-hub", "safetensors"),
}
EXTRAS = ("transformer_engine", "flash_attn", "nsys2prv", "triton")
ASK_TORCH = """
import json, torch
cuda = torch.cuda.is_available()
said = {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
        "sees_gpus": torch.cuda.device_count() if cuda else 0}
if cuda:
    about = torch.cuda.get_device_properties(0)
    said |= {"device": about.name, "capability": f"{about.major}.{about.minor}",
             "multiprocessors": about.multi_processor_count, "memory_bytes": about.total_memory,
             "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
print(json.dumps(said))
"""


def inventory(place: Place, result: Result) -> None:
    """Fill in the GPU, the programs and the packages."""
    result.numbers["machine"] = {
        "processor": platform.machine(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "interpreter": sys.executable,
    }
    _gpu(place, result)
    _torch(place, result)
    _nsys(place, result)
    _packages(place, result)


def _gpu(place: Place, result: Result) -> None:
    program = nvidia_smi()
    if not has_gpu():
        result.lacks("GPU", "the driver shows none: every step runs the tiny model on the CPU")
        return
    if program is None:
        result.lacks("nvidia-smi", "not on PATH")
        return
    done = place.run([program, f"--query-gpu={GPU_FIELDS}", "--format=csv,noheader,nounits"], 30)
    values = [value.strip() for value in done.stdout.splitlines()[0].split(",")] if done.stdout else []
    gpu = dict(zip(GPU_FIELDS.split(","), values, strict=False))
    result.numbers["gpu"] = gpu
    result.check("GPU", "name" in gpu, f"{gpu.get('name', 'unnamed')}, driver {gpu.get('driver_version')}")


def _torch(place: Place, result: Result) -> None:
    done = place.run([place.python, "-c", ASK_TORCH], place.seconds_for(60))
    if done.code != 0:
        result.lacks("PyTorch", done.ending)
        return
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    result.numbers["torch"] = said
    text = f"{said['torch']}, CUDA {said['cuda']}, sees {said['sees_gpus']} GPUs"
    if not has_gpu():
        result.seen("PyTorch", text)
    else:
        result.check("PyTorch", said["sees_gpus"] > 0, text)


def _nsys(place: Place, result: Result) -> None:
    program = shutil.which("nsys")
    if program is None:
        result.lacks("nsys", "not on PATH")
        return
    done = place.run([program, "--version"], 30)
    result.seen("nsys", done.stdout.strip() or done.ending)


def _packages(place: Place, result: Result) -> None:
    """The packages that pyproject.toml names, with the one command that installs the missing ones."""
    versions = {text: _version(text) for text in _requirements(place)}
    result.numbers["packages"] = {_name(text): version for text, version in versions.items()}
    result.numbers["extras"] = {name: importlib.util.find_spec(name) is not None for name in EXTRAS}
    missing = lacking(versions)
    if missing:
        listed = ", ".join(missing)
        said = f"{listed}: bring their wheels in a folder WHEELS; {INSTALL}   (then PYTHONPATH=FOLDER)"
        result.lacks("packages", said)
    other = [
        f"{_name(text)} {version} for {text.partition('==')[2]}"
        for text, version in versions.items()
        if version is not None and "==" in text and version.split("+")[0] != text.partition("==")[2]
    ]
    if other:
        result.seen("versions other than the pins", ", ".join(other))


def _requirements(place: Place) -> list[str]:
    """The requirements in pyproject.toml, as the bootstrap reads them, without the markers of other Pythons."""
    done = require_success(place.run([sys.executable, "-c", ASK_PINS], 30), "reading pyproject.toml")
    found: list[str] = json.loads(done.stdout)
    names = {_name(requirement): requirement.partition(";")[0].strip() for requirement in found}
    return list(names.values())  # a pin comes later than a range of the same package, and counts


def lacking(asked: Iterable[str]) -> list[str]:
    """The requirements of which no version is installed, also those of other requirements; each package once.

    A need with a marker is not followed: it is of an extra, or of another system or Python.
    """
    waiting, seen, found = list(asked), set[str](), list[str]()
    for requirement in waiting:  # grows while it is read
        package = re.sub(r"[-_.]+", "-", _name(requirement)).lower()
        if package in seen:
            continue
        seen.add(package)
        if _version(requirement) is None:
            found.append(requirement)
        waiting += _needs(_name(requirement))
    return found


def _needs(package: str) -> list[str]:
    """The requirements of a package: its own list, or ours where it is not installed."""
    try:
        needed = metadata.requires(package) or []
    except metadata.PackageNotFoundError:
        return list(NEEDS.get(package, ()))
    return [text for text in needed if ";" not in text]


def _name(requirement: str) -> str:
    return re.split(r"[<>=!~ (\[;]", requirement, maxsplit=1)[0]


def _version(requirement: str) -> str | None:
    try:
        return metadata.version(_name(requirement))
    except metadata.PackageNotFoundError:
        return None

"""Which machine this is, and what it lacks. Needs no package but pytest; asks PyTorch in another process."""

from __future__ import annotations

import importlib.util
import json
import platform
import re
import shutil
import sys
from importlib import import_module, metadata
from typing import Any

import pytest

from tests.gpu.machine import ROOT, has_gpu, nvidia_smi
from tests.gpu.work import Work

pytestmark = pytest.mark.gpu
GPU_FIELDS = "name,driver_version,memory.total,power.limit,clocks.max.sm,clocks.max.memory"
INSTALL = "python3 -m pip install --no-index --no-deps --target FOLDER WHEELS/*.whl"
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


@pytest.mark.usefixtures("gpu")
def test_the_driver_names_the_gpu(work: Work, record_property: Any) -> None:
    program = nvidia_smi()
    if program is None:
        pytest.skip("nvidia-smi is not on PATH")
    out = work.succeeds([program, f"--query-gpu={GPU_FIELDS}", "--format=csv,noheader,nounits"], 30)
    values = [value.strip() for value in out.splitlines()[0].split(",")]
    gpu = dict(zip(GPU_FIELDS.split(","), values, strict=True))
    record_property("gpu", gpu)
    assert gpu["name"]


def test_pytorch_sees_the_gpu(work: Work, record_property: Any) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is missing")
    torch = json.loads(work.succeeds([sys.executable, "-c", ASK_TORCH], 60).splitlines()[-1])
    record_property("torch", torch)
    assert (torch["sees_gpus"] > 0) == has_gpu()


def test_nsys_says_its_version(work: Work, record_property: Any) -> None:
    program = shutil.which("nsys")
    if program is None:
        pytest.skip("nsys is not on PATH")
    version = work.succeeds([program, "--version"], 30).strip()
    record_property("nsys", version)
    assert version


def test_every_package_of_pyproject_is_here(record_property: Any) -> None:
    versions = {text: _version(text) for text in requirements()}
    record_property("machine", [platform.machine(), platform.platform(), platform.python_version()])
    record_property("packages", versions)
    record_property("extras", {name: importlib.util.find_spec(name) is not None for name in EXTRAS})
    if missing := [text for text, version in versions.items() if version is None]:
        pytest.skip(
            f"{', '.join(missing)}: bring their wheels and what these need in a folder WHEELS; {INSTALL}; "
            "PYTHONPATH=FOLDER"
        )


def requirements() -> list[str]:
    """The requirements in pyproject.toml, without the markers of other Pythons."""
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")  # which pytest brings
    project = toml.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    texts = [*project["dependencies"], *project["optional-dependencies"]["train"]]
    # A pin comes later than a range of the same package, and counts.
    return list({_name(text): text.partition(";")[0].strip() for text in texts}.values())


def _name(requirement: str) -> str:
    return re.split(r"[<>=!~ (\[;]", requirement, maxsplit=1)[0]


def _version(requirement: str) -> str | None:
    try:
        return metadata.version(_name(requirement))
    except metadata.PackageNotFoundError:
        return None

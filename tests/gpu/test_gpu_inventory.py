"""Which machine this is, and what it lacks. Needs no package but pytest; asks PyTorch in another process."""

from __future__ import annotations

import importlib.util
import json
import platform
import sys
from importlib import import_module, metadata
from typing import Any

import pytest
from packaging.requirements import Requirement  # pytest brings it, and tomli

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


def test_every_package_of_pyproject_is_here(record_property: Any) -> None:
    versions = {str(each): version(each.name) for each in requirements()}
    record_property("machine", [platform.machine(), platform.platform(), platform.python_version()])
    record_property("packages", versions)
    record_property("extras", {name: importlib.util.find_spec(name) is not None for name in EXTRAS})
    if missing := [text for text, found in versions.items() if found is None]:
        pytest.skip(
            f"{', '.join(missing)}: bring their wheels and what these need in a folder WHEELS; {INSTALL}; "
            "PYTHONPATH=FOLDER"
        )


def requirements() -> list[Requirement]:
    """The requirements in pyproject.toml for this Python."""
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    project = toml.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    every = map(Requirement, [*project["dependencies"], *project["optional-dependencies"]["train"]])
    # A pin comes later than a range of the same package, and counts.
    return list({each.name: each for each in every if each.marker is None or each.marker.evaluate()}.values())


def version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None

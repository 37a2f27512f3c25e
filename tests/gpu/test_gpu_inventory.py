"""Which GPU this is, and whether PyTorch sees it. Needs no package but pytest; asks PyTorch in another process."""

from __future__ import annotations

import importlib.util
import json
import sys
from typing import Any

import pytest

from tests.gpu.machine import has_gpu, nvidia_smi
from tests.gpu.work import Work

pytestmark = pytest.mark.gpu
GPU_FIELDS = "name,driver_version,memory.total,power.limit,clocks.max.sm,clocks.max.memory"
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

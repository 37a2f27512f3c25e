"""Starts a process: its device, the default process group, and the CPU shim where it is needed.

Call it before anything imports megatron.
"""

from __future__ import annotations

import os
import warnings

import torch
import torch.distributed as dist

from exercises.exercise_3_MegatronLM import cpu_shim
from harness.common.errors import RequestError


def order_launches() -> None:
    """Set one hardware queue, which keeps communication and computation in the order of their launches.

    The driver reads this once: call it before anything uses CUDA, even `torch.cuda.is_available()`.
    """
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")


def start(on_cpu: bool) -> torch.device:
    """Join the processes that torchrun started and return the device of this process.

    Raises:
        RequestError: torchrun did not start this process.
    """
    if "RANK" not in os.environ:
        raise RequestError("exercise 3 runs under a launcher: torchrun --nproc-per-node N train.py …")
    # megatron-core warns about NVIDIA extensions that are not installed, and calls collectives by their old names.
    # A student can change neither.
    warnings.filterwarnings("ignore", module=r"megatron\.core")
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    if not on_cpu:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
        return device
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # megatron must not find a GPU that is not wanted
    cpu_shim.install()
    dist.init_process_group("gloo")
    return torch.device("cpu")

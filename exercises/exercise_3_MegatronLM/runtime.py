"""Brings a process up: the device it trains on, the default process group, and the CPU shim where it is needed.

Must have run before anything imports megatron.
"""

from __future__ import annotations

import os
import warnings

import torch
import torch.distributed as dist

from exercises.exercise_3_MegatronLM import cpu_shim
from harness.common.errors import RequestError


def order_launches() -> None:
    """One hardware queue, in which communication and computation keep the order in which megatron launches them.

    The driver reads this once: call it before anything asks for a GPU, even `torch.cuda.is_available()`.
    """
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")


def start(on_cpu: bool) -> torch.device:
    """Join the processes that torchrun started and return this one's device.

    Raises RequestError when torchrun did not start this process.
    """
    if "RANK" not in os.environ:
        raise RequestError("exercise 3 runs under a launcher: torchrun --nproc-per-node N train.py …")
    _silence_what_no_student_can_change()
    if not on_cpu:
        return _start_on_gpu()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a GPU that is not wanted must not be found by megatron either
    cpu_shim.install()
    dist.init_process_group("gloo")
    return torch.device("cpu")


def _silence_what_no_student_can_change() -> None:
    # megatron-core lists at import the NVIDIA extensions it does without, and calls collectives by their old names.
    warnings.filterwarnings("ignore", module=r"megatron\.core")
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")


def _start_on_gpu() -> torch.device:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    return device

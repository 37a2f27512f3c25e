"""The processes of one test: torch.distributed on each one's device, and what they are."""

from __future__ import annotations

import os
import platform
import socket
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

SETUP_TIMEOUT = timedelta(minutes=5)


@contextmanager
def processes(options: Namespace, timeout: timedelta = SETUP_TIMEOUT) -> Iterator[torch.device]:
    """torch.distributed on this process's device, from torchrun's environment."""
    on_gpu = options.device != "cpu" and torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    backend = options.backend if options.backend != "auto" else ("nccl" if on_gpu else "gloo")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(backend, timeout=timeout, device_id=device if backend == "nccl" else None)
    try:
        yield device
    finally:
        dist.destroy_process_group()


def about(device: torch.device) -> dict[str, Any]:
    """Backend, device, ranks and hosts of this test. Every rank must call it."""
    hosts: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(hosts, socket.gethostname())
    on_gpu = device.type == "cuda"
    return {
        "backend": dist.get_backend(),
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device) if on_gpu else f"CPU ({platform.machine()})",
        "world_size": dist.get_world_size(),
        "hosts": list(dict.fromkeys(hosts)),
        "ranks_per_node": int(os.environ["LOCAL_WORLD_SIZE"]),
        "torch": torch.__version__,
    }

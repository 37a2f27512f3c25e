"""The process group and device of a rank; and what lets megatron-core, which asks for CUDA by name in many places, run
on a machine that has none: install it before the first `import megatron`. Knows no model, layout or training loop.
"""

from __future__ import annotations

import functools
import importlib
import os
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist

from harness.common.errors import RequestError

CPU = torch.device("cpu")

# Factories that megatron-core calls with device="cuda" or with torch.cuda.current_device().
FACTORIES = (
    "arange", "as_tensor", "empty", "empty_like", "full", "ones", "ones_like", "rand", "randn", "tensor", "zeros",
    "zeros_like",
)  # fmt: skip


class HostStream:
    """Replaces a CUDA stream: on the host every operation is already in order."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def wait_stream(self, _stream: object) -> None: ...

    def wait_event(self, _event: object) -> None: ...

    def synchronize(self) -> None: ...

    def record_event(self, event: object = None) -> HostStream:
        """The work on this stream is always done, so the stream serves as its own event."""
        return self

    def __enter__(self) -> HostStream:
        return self

    def __exit__(self, *_: object) -> None: ...


def install() -> None:
    """Redirect torch's CUDA functions to the host, permanently for this process. Raises RuntimeError: CUDA works here,
    and the redirection would silently train on the CPU."""
    if torch.cuda.is_available():
        raise RuntimeError("the CPU shim is only for machines without CUDA")
    for name in FACTORIES:
        setattr(torch, name, _on_host(getattr(torch, name)))
    _redirect_cuda_namespace()
    _redirect_tensor_methods()
    # megatron compiles small functions for the GPU; on a CPU that takes seconds and needs a C++ compiler.
    torch.__dict__["compile"] = lambda function, *_, **__: function
    random = importlib.import_module("megatron.core.tensor_parallel.random")
    random.__dict__["_get_cuda_rng_state"] = lambda *_, **__: torch.get_rng_state()
    random.__dict__["_set_cuda_rng_state"] = lambda state, *_, **__: torch.set_rng_state(state)


def _on_host(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(factory)
    def on_host(*args: Any, **kwargs: Any) -> torch.Tensor:
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = CPU
        kwargs.pop("pin_memory", None)  # pinning asks for a CUDA allocator
        return factory(*args, **kwargs)

    return on_host


def _redirect_cuda_namespace() -> None:
    stream = HostStream()
    replacements: dict[str, Callable[..., object]] = {
        "current_device": lambda: CPU,
        "synchronize": lambda *_, **__: None,
        "manual_seed": torch.manual_seed,
        "get_rng_state": lambda *_, **__: torch.get_rng_state(),
        "set_rng_state": lambda state, *_, **__: torch.set_rng_state(state),
        "current_stream": lambda *_, **__: stream,
        "default_stream": lambda *_, **__: stream,
        "stream": nullcontext,  # work on the host is always in order
        "Stream": HostStream,
    }
    for name, replacement in replacements.items():
        setattr(torch.cuda, name, replacement)


def _redirect_tensor_methods() -> None:
    original_type: Callable[..., Any] = torch.Tensor.type

    def type_as_on_cuda(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        # megatron's optimizer sorts parameters by the string 'torch.cuda.FloatTensor'.
        result = original_type(self, *args, **kwargs)
        return result if args or kwargs else result.replace("torch.", "torch.cuda.", 1)

    tensor_class: Any = torch.Tensor
    tensor_class.type = type_as_on_cuda
    tensor_class.cuda = lambda self, *_, **__: self


def order_launches() -> None:
    """Set one hardware queue, which keeps communication and computation in the order of their launches.

    The driver reads this once: call it before anything uses CUDA, even `torch.cuda.is_available()`.
    """
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")


def start(on_cpu: bool) -> torch.device:
    """Join the processes that torchrun started and return the device of this process. Raises RequestError: torchrun did
    not start this process."""
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
    install()
    dist.init_process_group("gloo")
    return CPU

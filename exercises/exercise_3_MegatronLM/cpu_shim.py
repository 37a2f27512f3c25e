"""Lets megatron-core, which asks for CUDA by name in many places, run on a machine that has none.

Install before the first `import megatron`. It knows torch and the names of three of megatron's helpers; it must not
know the model, the parallel layout or the training loop.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

import torch

CPU = torch.device("cpu")

# Factories that megatron-core calls with device="cuda" or with torch.cuda.current_device().
FACTORIES = (
    "arange",
    "as_tensor",
    "empty",
    "empty_like",
    "full",
    "ones",
    "ones_like",
    "rand",
    "randn",
    "tensor",
    "zeros",
    "zeros_like",
)


class HostStream:
    """Stands where a CUDA stream is expected: on the host every operation is already in order."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def wait_stream(self, _stream: object) -> None: ...

    def wait_event(self, _event: object) -> None: ...

    def synchronize(self) -> None: ...

    def record_event(self, event: object = None) -> HostStream:
        """The event of a stream that is always done is as good as the stream itself."""
        return self

    def __enter__(self) -> HostStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def install() -> None:
    """Redirect torch's CUDA entry points to the host, for this process and for good.

    Raises RuntimeError where CUDA works: there the redirection would silently train on the CPU.
    """
    if torch.cuda.is_available():
        raise RuntimeError("the CPU shim is only for machines without CUDA")
    _redirect_factories()
    _redirect_cuda_namespace()
    _redirect_tensor_methods()
    _run_functions_as_written()
    _redirect_megatron_rng()
    _redirect_expert_splits()


def _redirect_factories() -> None:
    for name in FACTORIES:
        setattr(torch, name, _on_host(getattr(torch, name)))


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
        "stream": _in_order,
        "Stream": HostStream,
    }
    for name, replacement in replacements.items():
        setattr(torch.cuda, name, replacement)


def _in_order(_stream: object) -> AbstractContextManager[None]:
    return nullcontext()


def _redirect_tensor_methods() -> None:
    original_type: Callable[..., Any] = torch.Tensor.type

    def type_as_on_cuda(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        # megatron's optimizer sorts parameters by the string 'torch.cuda.FloatTensor'.
        result = original_type(self, *args, **kwargs)
        is_question = not args and not kwargs
        return result.replace("torch.", "torch.cuda.", 1) if is_question else result

    tensor_class: Any = torch.Tensor
    tensor_class.type = type_as_on_cuda
    tensor_class.cuda = lambda self, *_, **__: self


def _run_functions_as_written() -> None:
    # megatron compiles small functions for the GPU; here that costs seconds at import and needs a C++ compiler.
    torch.__dict__["compile"] = lambda function, *_, **__: function


def _redirect_megatron_rng() -> None:
    random = importlib.import_module("megatron.core.tensor_parallel.random")
    random.__dict__["_get_cuda_rng_state"] = lambda *_, **__: torch.get_rng_state()
    random.__dict__["_set_cuda_rng_state"] = lambda state, *_, **__: torch.set_rng_state(state)


def _redirect_expert_splits() -> None:
    dispatcher = importlib.import_module("megatron.core.transformer.moe.token_dispatcher")

    def move_to_cpu(tensor: Any, as_numpy: bool = False, **_: object) -> Any:
        # Only what leaves a GPU becomes an array there, but all-to-all takes its sizes as an array alone.
        return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor

    dispatcher.__dict__["maybe_move_tensor_to_cpu"] = move_to_cpu

"""One vocabulary for collectives and dtypes of every tool and library."""

from __future__ import annotations

import re
from functools import lru_cache

from harness.traces.trace import CopyKind, HostKind

_DTYPES = {
    "float32": ("float", "f32", "fp32", "c10::float32"),
    "float64": ("double", "f64", "fp64"),
    "float16": ("half", "c10::half", "f16", "fp16"),
    "bfloat16": ("bfloat16", "c10::bfloat16", "bf16", "__nv_bfloat16"),
    "float8_e4m3fn": ("float8_e4m3fn", "c10::float8_e4m3fn", "f8e4m3"),
    "float8_e5m2": ("float8_e5m2", "c10::float8_e5m2", "f8e5m2"),
    "int64": ("long", "long int", "i64", "int64_t"),
    "int32": ("int", "i32", "int32_t"),
    "int16": ("short", "short int", "int16_t"),
    "int8": ("char", "signed char", "i8", "int8_t"),
    "uint64": ("unsigned long", "uint64_t", "u64"),
    "uint32": ("unsigned int", "uint32_t", "u32"),
    "uint8": ("byte", "unsigned char", "u8", "uint8_t"),
    "bool": ("bool",),
    "complex64": ("c10::complex<float>", "complexfloat"),
    "complex128": ("c10::complex<double>", "complexdouble"),
}
_BY_ALIAS = {alias: name for name, aliases in _DTYPES.items() for alias in (name, *aliases)}
_REDUCED = re.compile(r"_(?:Sum|Prod|Max|Min|MinMax|PreMulSum|SumPostDiv)_(\w+?)(?=_RING|_TREE|_COLL|_NVLS|_PAT|\W|$)")
_BITS = re.compile(r"(\d+)")

_COLLECTIVES = {
    "all_reduce": ("allreduce",),
    "all_gather": ("allgather",),
    "reduce_scatter": ("reducescatter",),
    "all_to_all": ("alltoall",),
    "broadcast": ("broadcast", "bcast"),
    "reduce": ("reduce",),
    "gather": ("gather",),
    "scatter": ("scatter",),
    "barrier": ("barrier",),
    "send_recv": ("sendrecv",),
    "send": ("send",),
    "recv": ("recv",),
}
_LAUNCH = re.compile(
    r"^(cuda|cu|hip|ze)\w*Launch(?!HostFunc)|^(cuda|cu|hip)Mem(cpy|set)|^runFunction\b|^enqueueCommand mem"
)
OFF_CORE = "not on a core"  # the name of a span in which a thread ran on no core
POINT_TO_POINT = ("send", "recv", "send_recv")  # one of a pair, which has no common instance on all ranks
_STEMS = [(stem, kind) for kind, stems in _COLLECTIVES.items() for stem in stems]
_NOISE = re.compile(r"[^a-z]")
# What CUPTI calls overhead and CUDA does without a profiler too: a kernel's first use loads it, and a launch waits
# where the device has too much to do already.
_DRIVERS_WORK = re.compile(r"(?:lazy|module|function).*loading|command buffer full|compiler", re.IGNORECASE)


@lru_cache(maxsize=1024)
def dtype_name(word: str) -> str | None:
    """PyTorch's name of an element type in any tool's spelling, or None for any other word.

    >>> dtype_name("c10::BFloat16"), dtype_name("Float"), dtype_name("TensorList")
    ('bfloat16', 'float32', None)
    """
    return _BY_ALIAS.get(word.lower())


def reduced_dtype(kernel: str) -> str | None:
    """The element type in the name of an NCCL kernel that reduces, or None.

    >>> reduced_dtype("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    'bfloat16'
    """
    reduced = _REDUCED.search(kernel)
    return dtype_name(reduced.group(1)) if reduced else None


def dtype_bytes(name: str) -> int:
    """Bytes of one element of a type as `dtype_name` names it; 0 when unknown."""
    if name == "bool":
        return 1
    bits = _BITS.search(name)
    return int(bits.group(1)) // 8 if bits else 0


def launches_work(call: str) -> bool:
    """Whether a call of a device's library puts work on the device.

    >>> launches_work("cudaLaunchKernel"), launches_work("cudaMemcpyAsync"), launches_work("cudaStreamIsCapturing")
    (True, True, False)
    """
    return _LAUNCH.search(call) is not None


def is_communication(kernel: str) -> bool:
    """Whether a kernel is NCCL's or RCCL's, by its name."""
    return "nccl" in kernel.lower() or "rccl" in kernel.lower()


def collective_kind(word: str) -> str | None:
    """The collective that a kernel, an operator or an API call carries out, or None for any other.

    Knows NCCL's and RCCL's kernels of every version, NCCL's API, `c10d::` operators and `gloo:`/`nccl:` spans.

    >>> collective_kind("ncclDevKernel_AllReduce_Sum_bf16_RING_LL"), collective_kind("c10d::_allgather_base_")
    ('all_reduce', 'all_gather')
    """
    letters = _NOISE.sub("", word.lower())
    return next((kind for stem, kind in _STEMS if stem in letters), None)


def copy_name(copy_kind: int) -> str:
    """The name of a copy whose tool names only its direction, as Kineto writes it.

    >>> copy_name(CopyKind.H2D), copy_name(CopyKind.UNKNOWN)
    ('Memcpy HtoD', 'Memcpy')
    """
    return "Memcpy" if copy_kind == CopyKind.UNKNOWN else f"Memcpy {CopyKind(copy_kind).name.replace('2', 'to')}"


def overhead_kind(name: str) -> HostKind:
    """What a span is that a profiler lists as overhead: its own work, or the driver's.

    >>> overhead_kind("Activity Buffer Request").name, overhead_kind("Lazy Function Loading").name
    ('PROFILER', 'OS_CALL')
    """
    return HostKind.OS_CALL if _DRIVERS_WORK.search(name) else HostKind.PROFILER

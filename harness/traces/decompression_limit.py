"""How much a compressed trace may hold: a small file can unpack to a thousand times its size. Knows no format."""

from __future__ import annotations

_ALWAYS_BYTES = 128 << 20
_MOST_RATIO = 100  # real traces: 15 to 30 (benchmarks/bench_read_kineto.py), exports of nsys less


def unpacks_to_too_much(packed_bytes: int, unpacked_bytes: int) -> str:
    """Why a file is not unpacked further, after so many bytes of it; empty: it is."""
    if unpacked_bytes <= max(_ALWAYS_BYTES, _MOST_RATIO * packed_bytes):
        return ""
    return f"unpacks to more than {_MOST_RATIO} times its size, more than any trace: it is damaged, or is not a trace"

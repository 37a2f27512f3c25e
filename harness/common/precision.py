"""What a training's matrix products are computed in, by the names that flags, the device table and kernels have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Precision = Literal["fp32", "tf32", "bf16", "fp8"]

FP8_BLOCK = 16
"""What each size of an fp8 product is a multiple of: the tensor cores take it in such blocks."""

DTYPES: Mapping[Precision, str] = {
    "fp32": "float32",
    "tf32": "tf32",
    "bf16": "bfloat16",
    "fp8": "float8",
}
"""As a training's metrics have it. TF32 and fp8 are of the products alone: weights stay float32."""

PRECISION_OF: Mapping[str, str] = {dtype: precision for precision, dtype in DTYPES.items()} | {
    "float16": "fp16"
}
"""The other way round, as the device table names it."""

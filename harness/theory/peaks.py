"""The peak of a device by its name, from configs/devices.yaml. A device without an entry has no peak, never a guess."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from harness.common.errors import RequestError
from harness.common.paths import CONFIGS

DEVICES = CONFIGS / "devices.yaml"


class _DevicePeaks(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    match: str
    tflops: dict[str, float]
    note: str | None = None


class _Devices(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    devices: tuple[_DevicePeaks, ...]


def peak_flops_per_s(device_name: str, precision: str) -> tuple[float, str] | None:
    """Dense FLOP/s of one device at a precision (bf16, fp16, tf32, fp32, fp8) and the source of the number.

    None: the table does not have the device or the precision.

    Raises:
        RequestError: the table is not valid.

    >>> peak_flops_per_s("NVIDIA A100-SXM4-40GB", "bf16")
    (312000000000000.0, 'the device table')
    """
    found = next((d for d in _table().devices if re.search(d.match, device_name, re.IGNORECASE)), None)
    if found is None or precision not in found.tflops:
        return None
    source = "the device table" + (f" ({found.note})" if found.note else "")
    return found.tflops[precision] * 1e12, source


@cache
def _table() -> _Devices:
    try:
        raw: Any = yaml.safe_load(DEVICES.read_text(encoding="utf-8"))
        return _Devices.model_validate(raw)
    except (OSError, yaml.YAMLError, ValidationError) as error:
        raise RequestError(f"{DEVICES}: the table of devices cannot be read: {error}") from error

"""What is known of a device by its name, from configs/devices.yaml: peak, memory, power, link to its host. An entry
that is missing is unknown, never a guess."""

from __future__ import annotations

import re
from functools import cache

import msgspec.yaml

from harness.common.errors import RequestError
from harness.common.paths import CONFIGS

DEVICES = CONFIGS / "devices.yaml"
TABLE = "the device table"


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    match: str

    def is_meant(self, name: str | None) -> bool:
        """Whether a device's name has the pattern."""
        return bool(name and re.search(self.match, name, re.IGNORECASE))


class DevicePeaks(_Entry, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An entry: dense TFLOP/s by precision, memory as the driver shows it, thermal design power."""

    tflops: dict[str, float]
    memory_gib: float | None = None
    watts: float | None = None
    note: str | None = None

    @property
    def memory_bytes(self) -> float | None:
        return None if self.memory_gib is None else self.memory_gib * 2**30


class HostLink(_Entry, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The link between a device and its host's memory: nominal GB/s (10⁹ bytes) of one direction."""

    gb_per_s: float
    name: str


class _Devices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    devices: tuple[DevicePeaks, ...]
    host_links: tuple[HostLink, ...]
    without_bf16: str
    without_16_bits: str


def find_device(name: str | None) -> DevicePeaks | None:
    """The first entry whose pattern the name has; None: there is none, or no name. Raises RequestError: the table is
    not valid."""
    return next((d for d in _table().devices if d.is_meant(name)), None)


def host_link(device_name: str | None) -> HostLink | None:
    """The link of a device to its host; None: the table does not have the device, or no name. Raises as `find_device`.

    >>> host_link("NVIDIA A100-SXM4-80GB").gb_per_s
    31.5
    """
    return next((link for link in _table().host_links if link.is_meant(device_name)), None)


def peak_flops_per_s(device_name: str, precision: str) -> tuple[float, str] | None:
    """Dense FLOP/s of one device at a precision (bf16, fp16, tf32, fp32, fp8) and the source of the number.

    None: the table does not have the device or the precision. Raises as `find_device` does.

    >>> peak_flops_per_s("NVIDIA A100-SXM4-40GB", "bf16")
    (312000000000000.0, 'the device table')
    """
    found = find_device(device_name)
    if found is None or precision not in found.tflops:
        return None
    return found.tflops[precision] * 1e12, TABLE + (f" ({found.note})" if found.note else "")


def half_precision(device_name: str | None) -> str | None:
    """In which 16 bits a device multiplies faster than in 32: bf16, or fp16 where it has no bf16; None: it has no units
    for such products. A name that is not known is taken for a newer one. Raises as `find_device` does.

    >>> half_precision("NVIDIA H200"), half_precision("Tesla T4"), half_precision("NVIDIA GeForce GTX 1080 Ti")
    ('bf16', 'fp16', None)
    """
    if re.search(_table().without_16_bits, device_name or ""):
        return None
    return "fp16" if re.search(_table().without_bf16, device_name or "") else "bf16"


def rates_in_16_bits(device_name: str | None) -> tuple[str, dict[str, float]]:
    """bf16, or fp16 where a device has no bf16, and by how much its peak is higher than that of fp32 and of tf32.

    Of a device or precision that is not in the table, the highest ratio of any device there. Raises as `find_device`.

    >>> rates_in_16_bits("NVIDIA A100-SXM4-80GB"), rates_in_16_bits("Tesla V100-SXM2-16GB")[0]
    (('bf16', {'fp32': 16.0, 'tf32': 2.0}), 'fp16')
    """
    found = find_device(device_name)
    half = half_precision(device_name) or "fp16"
    ratios = {}
    for of in ("fp32", "tf32"):
        ratios[of] = _ratio(found, half, of) or max(_ratio(d, "fp16", of) or 1.0 for d in _table().devices)
    return half, ratios


def _ratio(device_peaks: DevicePeaks | None, half: str, precision: str) -> float | None:
    peaks = {} if device_peaks is None else device_peaks.tflops
    return peaks[half] / peaks[precision] if half in peaks and precision in peaks else None


@cache
def _table() -> _Devices:
    try:
        return msgspec.yaml.decode(DEVICES.read_bytes(), type=_Devices)
    except (OSError, msgspec.DecodeError) as error:
        raise RequestError(f"{DEVICES}: the table of devices cannot be read: {error}") from error

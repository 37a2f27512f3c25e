"""A recording that begins, or goes on in a folder whose monitor died: its description and its clock.

The monitor that goes on keeps the first one's clock, so that a change of the wall clock cannot reorder the samples.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

from harness.monitor.cores import boot_id
from harness.monitor.errors import MonitorError
from harness.monitor.samples import STARTS, read_meta


class SampleClock(NamedTuple):
    """The wall clock when the recording began, plus monotonic time, which all processes of a machine share."""

    began_unix_ns: int
    began_monotonic_ns: int

    def unix_ns(self) -> int:
        """Now."""
        return self.began_unix_ns + time.monotonic_ns() - self.began_monotonic_ns


def begin_or_go_on(path: Path, about: dict[str, Any]) -> tuple[dict[str, Any], SampleClock]:
    """The description to write to `path`, `about` and what is there already; and the recording's clock.

    Raises:
        MonitorError: the samples there are of other devices.
    """
    before = _before(path)
    clock = _clock(before)
    own = {
        "started_unix_ns": clock.began_unix_ns,
        "started_monotonic_ns": clock.began_monotonic_ns,
        "boot": boot_id(),
        STARTS: [*before.get(STARTS, []), clock.unix_ns()],
        "devices": _together(path, before.get("devices", []), about["devices"]),
    }
    return {**about, **own}, clock


def _before(path: Path) -> dict[str, Any]:
    """What the monitor that died wrote; empty if there was none, or it died too early."""
    try:
        found = read_meta(path)
    except MonitorError:
        return {}
    starts, devices = found.get(STARTS), found.get("devices")
    if not isinstance(starts, list) or not isinstance(devices, list):
        return {}
    return found if all(isinstance(each, dict) and "index" in each for each in devices) else {}


def _clock(before: dict[str, Any]) -> SampleClock:
    unix_ns, monotonic_ns = before.get("started_unix_ns"), before.get("started_monotonic_ns")
    if isinstance(unix_ns, int) and isinstance(monotonic_ns, int) and before.get("boot") == boot_id():
        return SampleClock(unix_ns, monotonic_ns)
    return SampleClock(time.time_ns(), time.monotonic_ns())


def _together(path: Path, before: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The devices of both, by index: one that was lost meanwhile keeps its samples."""
    devices = {device["index"]: device for device in before}
    for device in now:
        known = devices.setdefault(device["index"], device)
        if known.get("uuid") != device.get("uuid"):
            raise MonitorError(
                f"{path.parent} has samples of another device {device['index']} ({known.get('uuid')}, not "
                f"{device.get('uuid')}): choose another --out"
            )
    return [devices[index] for index in sorted(devices)]

"""Bytes that a node's network devices have sent and received, by the kernel's counters. Standard library only.

InfiniBand and RoCE by their ports' own counters, in units of 4 bytes (the Linux kernel's
Documentation/ABI/stable/sysfs-class-infiniband); other interfaces by /proc/net/dev, which is of the process's own
network namespace. The traffic is the whole node's, not the job's alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness.common.model.alpha_beta import MOST_BYTES_PER_S
from harness.common.run_folder.run_files import MONITOR_NETWORK
from harness.monitor.samples import META_FILE, DeviceSeries, read_meta, read_series, starts_of
from harness.monitor.source import MonitorError, SampleValue, find_gaps

NETWORK_FILE = MONITOR_NETWORK.base  # in a node's folder
NETWORK_COLUMNS = ("received_bytes", "sent_bytes")
_WORD_BYTES = 4  # of the counters of an InfiniBand port
_IP_OVER_INFINIBAND = "32"  # ARPHRD_INFINIBAND: its traffic is in the port's counters already
_VIRTUAL = re.compile(r"^(lo$|docker|veth|br-|virbr|ifb|dummy|tun|tap|bond|cni|flannel)")
_MOST_GBPS = 10_000


@dataclass(frozen=True)
class Nic:
    """One port. name: as the kernel has it. gbps: its link's speed, Gb/s; None if the kernel does not know it."""

    name: str
    kind: str  # infiniband | ethernet
    gbps: float | None


class NodePorts:
    """The ports of this node."""

    columns = NETWORK_COLUMNS

    def __init__(self, root: Path = Path("/")) -> None:
        self._dev, self._net = root / "proc/net/dev", root / "sys/class/net"
        ports = sorted((root / "sys/class/infiniband").glob("*/ports/*"))
        self._ports = [port for port in ports if "ACTIVE" in (_word(port / "state") or "")]
        self.nics = [_port_nic(port) for port in self._ports] + self._interfaces()

    def _interfaces(self) -> list[Nic]:
        names = sorted(self._counters())
        types = {name: _word(self._net / name / "type") for name in names}
        real = [n for n in names if n != "lo" and (self._net / n / "device").exists()]
        chosen = real or [n for n in names if not _VIRTUAL.match(n)]
        chosen = [n for n in chosen if not (self._ports and types[n] == _IP_OVER_INFINIBAND)]
        return [Nic(name, "ethernet", _speed(self._net / name / "speed")) for name in chosen]

    def describe(self) -> list[dict[str, Any]]:
        """The ports for meta.json, in the order of `sample`."""
        return [{"index": i, "name": nic.name, "kind": nic.kind, "gbps": nic.gbps} for i, nic in enumerate(self.nics)]

    def sample(self) -> list[tuple[SampleValue, ...]]:
        """A row per port: all bytes that it has received and sent. None if the counter cannot be read."""
        counters = self._counters()
        interfaces = [counters.get(nic.name, (None, None)) for nic in self.nics[len(self._ports) :]]
        return [*(_port_bytes(port) for port in self._ports), *interfaces]

    def _counters(self) -> dict[str, tuple[SampleValue, ...]]:
        try:
            lines = self._dev.read_text(encoding="ascii", errors="replace").splitlines()
        except OSError:
            return {}
        rows = (line.partition(":") for line in lines if ":" in line)
        cells = {name.strip(): rest.split() for name, _, rest in rows}
        return {name: (int(c[0]), int(c[8])) for name, c in cells.items() if len(c) > 8 and c[0].isdigit()}


def _port_nic(port: Path) -> Nic:
    rate = re.match(r"([0-9.]+) Gb/sec", _word(port / "rate") or "")
    return Nic(f"{port.parents[1].name}:{port.name}", "infiniband", float(rate.group(1)) if rate else None)


def _port_bytes(port: Path) -> tuple[SampleValue, ...]:
    words = (_word(port / "counters" / name) for name in ("port_rcv_data", "port_xmit_data"))
    return tuple(_WORD_BYTES * int(word) if word and word.isdigit() else None for word in words)


def _word(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None


def _speed(path: Path) -> float | None:
    """Gb/s; the kernel has -1 or an error for what it does not know."""
    word = _word(path) or ""
    return int(word) / 1000 if word.isdigit() and int(word) > 0 else None


@dataclass(frozen=True)
class NicSeries:
    """A port and its counters over time."""

    nic: Nic
    series: DeviceSeries

    def rates(self, column: str) -> list[tuple[int, int, float]]:
        """(from, to, bytes per second) between neighbouring samples, unix nanoseconds. Nothing over a gap, where the
        counter began anew, nor what no port reaches."""
        holes = {before for before, _ in self.series.gaps}
        found = (
            (start, end, (after - before) * 1e9 / (end - start))
            for (start, before), (end, after) in pairwise(self.series.points(column))
            if end > start and start not in holes
        )
        return [rate for rate in found if 0 <= rate[2] <= MOST_BYTES_PER_S]


def read_network(folder: Path) -> tuple[str, list[NicSeries]]:
    """The node's name and the ports of its recording; none in a recording without.

    Raises:
        MonitorError: the file or its description cannot be read.
    """
    meta = read_meta(folder / META_FILE)
    if not (folder / NETWORK_FILE).is_file():
        return str(meta.get("host")), []
    try:
        about = [(int(n["index"]), Nic(str(n["name"]), str(n["kind"]), _gbps(n["gbps"]))) for n in meta["nics"]]
        period_ns = int(meta["period_ns"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise MonitorError(f"{folder / META_FILE} does not describe its nics: {error!r}") from error
    series = {i: DeviceSeries(i, nic.name, None) for i, nic in about}
    read_series(folder / NETWORK_FILE, series)
    moments = sorted({moment for each in series.values() for moment in each.unix_ns})
    gaps = find_gaps(moments, starts_of(meta), period_ns)
    return str(meta.get("host")), [NicSeries(nic, replace(series[i], gaps=gaps)) for i, nic in about]


def _gbps(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and 0 < value < _MOST_GBPS else None


def summed(nics: Sequence[NicSeries], column: str) -> list[tuple[int, int, float]]:
    """The rates of all ports together: of those that have a sample at the same moments."""
    found: dict[tuple[int, int], float] = {}
    for nic in nics:
        for start, end, rate in nic.rates(column):
            found[start, end] = found.get((start, end), 0.0) + rate
    return [(start, end, rate) for (start, end), rate in sorted(found.items())]

"""The samples of the network ports that `nsys profile --nic-metrics` takes. A value is a rate over its own stretch."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.traces.database import Database, whole
from harness.traces.trace import I64, NicSamples

_SAMPLES, _METRICS = "NET_NIC_METRIC", "TARGET_INFO_NETWORK_METRICS"
_KEYS = ("globalId", "portId", "metricsListId", "metricsIdx")  # of one metric of one port
MOST_PORTS = 256  # of one node
_BYTES = re.compile(
    r"(IB|Eth): Bytes (sent|received)"
)  # IP over InfiniBand is in the InfiniBand bytes already
_UNIT = re.compile(r"(?:bytes|B)\s*/\s*(s|ms|us|ns)", re.IGNORECASE)
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


class _Metric(NamedTuple):
    """One row of nsys' list. scale: from its unit to bytes per second."""

    family: str  # IB | Eth
    sent: bool
    scale: float


def nic_samples(database: Database) -> tuple[list[NicSamples], str | None]:
    """Each direction of each port that has samples, by port; and a sentence where they cannot be read.

    A port has a metric for InfiniBand and one for Ethernet: that with more bytes is taken, and never both.
    """
    if not database.has_rows(_SAMPLES):
        return [], None
    metrics = _metrics(database)
    if not metrics:
        return [], "its samples of network ports are left out: none of their metrics is bytes per time"
    wanted = ("start", "end", *_KEYS)
    numbers = {number for _, number in metrics}
    raw, value = database.measured(_SAMPLES, *wanted, value="value", only=("metricsIdx", numbers))
    names = _device_names(database)
    found: dict[tuple[int, int], dict[str, list[NicSamples]]] = defaultdict(lambda: defaultdict(list))
    for rows in _series(raw):
        device, port, listed, number = (int(raw[name][rows[0]]) for name in _KEYS)
        metric = metrics.get((listed, number))
        if metric is None:
            continue
        name = names.get(device, f"adapter {device}") + (f":{port}" if port > 0 else "")
        start, end, rate = raw["start"][rows], raw["end"][rows], value[rows] * metric.scale
        found[device, port][metric.family].append(NicSamples(name, metric.sent, start, end, rate))
    if len(found) > MOST_PORTS:
        return [], f"its samples of network ports are left out: they are of more than {MOST_PORTS} ports"
    return [one for families in found.values() for one in max(families.values(), key=_moved)], None


def _series(raw: dict[str, I64]) -> list[NDArray[np.intp]]:
    """The rows of each metric of each port, in order of time."""
    order = np.lexsort((raw["start"], *(raw[name] for name in reversed(_KEYS))))
    changes = np.zeros(max(len(order) - 1, 0), bool)
    for name in _KEYS:
        changes |= np.diff(raw[name][order]) != 0
    return np.split(order, np.flatnonzero(changes) + 1) if len(order) else []


def _moved(directions: list[NicSamples]) -> float:
    return sum(float(np.dot(each.bytes_per_s, each.end_ns - each.start_ns)) for each in directions)


def _metrics(database: Database) -> dict[tuple[int, int], _Metric]:
    """The metrics that are bytes per time, by list and number."""
    found = {}
    for listed, number, name, unit in database.rows(
        _METRICS, "metricsListId", "metricsIdx", "name", "unit", filled=["name"]
    ):
        kind, scale = _BYTES.fullmatch(str(name)), _UNIT.fullmatch(str(unit).strip())
        if kind and scale and whole(listed) is not None and whole(number) is not None:
            per_second = _PER_SECOND[scale[1].lower()]
            found[listed, number] = _Metric(kind[1], kind[2] == "sent", per_second)
    return found


def _device_names(database: Database) -> dict[int, str]:
    """The adapters' names by the id that the samples have."""
    names = dict(database.rows("TARGET_INFO_NIC_INFO", "nicId", "name"))
    listed = database.rows("NIC_ID_MAP", "globalId", "nicId")
    return {number: str(names[nic]) for number, nic in listed if nic in names and whole(number) is not None}

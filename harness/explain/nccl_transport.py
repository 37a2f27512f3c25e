"""Sentences about what transports a job's messages, from NCCL's own log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from harness.analysis.summary import Nccl, NcclConnection

_SOCKETS = "NET/Socket"
_SWITCHED_OFF = ("NCCL_IB_DISABLE", "NCCL_IBEXT_DISABLE")
_INSIDE = {"P2P": "from GPU to GPU", "SHM": "through host memory", "NET": "over the network"}
_NEARER = ("NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")


def between_nodes(n: Nccl) -> str | None:
    """The transport between nodes; None if no connection between nodes is known."""
    used = [row for row in n.connections if row.between_nodes]
    if not used:
        return None
    return "; ".join(_across(n, kind, used) for kind in _kinds(used))


def inside_a_node(n: Nccl) -> str | None:
    """The transport between a node's GPUs; None if no connection inside a node is known."""
    used = [row for row in n.connections if row.between_nodes is False]
    if not used:
        return None
    total = sum(row.count for row in used)
    parts = []
    for kind in _kinds(used):
        how = _INSIDE.get(kind.partition("/")[0], "")
        count = sum(row.count for row in used if row.transport == kind)
        share = f" on {count:,} of {total:,} connections" if count < total else ""
        parts.append(f"{how} ({kind}){share}" if how else f"{kind}{share}")
    told = _set(n, _NEARER)
    return "; ".join(parts) + (f": {told}" if told and set(_kinds(used)) - {"P2P/CUMEM", "P2P/IPC"} else "")


def _kinds(nccl_connections: Sequence[NcclConnection]) -> list[str]:
    """The transports, that of most connections first."""
    counts: Counter[str] = Counter()
    for row in nccl_connections:
        counts[row.transport] += row.count
    return [kind for kind, _ in counts.most_common()]


def _across(n: Nccl, kind: str, used: Sequence[NcclConnection]) -> str:
    rows = [row for row in used if row.transport == kind]
    if kind == _SOCKETS:
        return f"sockets ({kind}), not InfiniBand{_why_sockets(n)}"
    if not kind.startswith("NET/"):
        return kind
    total, direct = sum(row.count for row in rows), sum(row.count for row in rows if row.gdrdma)
    way = "without GPUDirect RDMA"
    if direct:
        way = "with GPUDirect RDMA" + (f" on {direct:,} of {total:,} connections" if direct < total else "")
    told = _set(n, _SWITCHED_OFF)
    return f"{_word(n, kind)} ({kind}) {way}" + (f", although {told}" if told and "/IB" in kind else "")


def _word(n: Nccl, kind: str) -> str:
    name = kind.removeprefix("NET/")
    devices = [device for row in n.networks if row.name == name for device in row.network_devices]
    if devices and all(device.endswith("(RoCE)") for device in devices):
        return "RoCE"
    return "InfiniBand" if name.startswith("IB") else name


def _why_sockets(n: Nccl) -> str:
    told = _set(n, _SWITCHED_OFF)
    if told:
        return f": {told}"
    chosen = next((v for v in n.variables if v.name == "NCCL_NET"), None)
    if chosen is not None:
        return f": NCCL_NET is set to {', '.join(chosen.values)}"
    return ": NCCL found no InfiniBand device" if n.without_infiniband else ""


def _set(n: Nccl, names: Sequence[str]) -> str:
    """Those of the variables that are set to something but 0, in words; empty where none is."""
    found = [v.name for v in n.variables if v.name in names and v.values != ["0"]]
    return f"{' and '.join(found)} {'is' if len(found) == 1 else 'are'} set" if found else ""

"""The tables of NCCL's log."""

from __future__ import annotations

from typing import Any

from harness.analysis import summary
from harness.analysis.summary import Summary
from harness.common.format import amount, cut
from harness.explain.nccl_transport import between_nodes, inside_a_node, why_unknown
from harness.report.tables.table import Column, File, TableOf, plain

SECTION = "nccl"
_OF_LOG: dict[str, Any] = {"section": SECTION, "most": 16}
_LONG = 70


def _file(part: str) -> File:
    return File(f"{SECTION}_{part}", lambda s: map(plain, getattr(s.nccl, part) if s.nccl else ()))


def _facts(s: Summary) -> list[tuple[str, str]]:
    n, why = s.nccl, why_unknown(s)
    if n is None:
        return [("NCCL", why)] if why else []
    told = [("between nodes", between_nodes(n)), ("inside a node", inside_a_node(n))]
    told += [("version", ", ".join(n.versions))]
    told += [(f"network {network.name}", _network(network)) for network in n.networks]
    told += [("NVLink SHARP (NVLS)", {True: "available", False: "not available", None: ""}[n.nvls])]
    told += [(variable.name, " or ".join(variable.values)) for variable in n.variables]
    lines = f"{n.processes:,} processes, {n.understood_count:,} lines used, {n.skipped_count:,} skipped"
    return [(name, text) for name, text in [*told, ("the log", lines)] if text]


def _network(network: summary.NcclNetwork) -> str:
    direct = {True: "GPUDirect RDMA possible", False: "no GPUDirect RDMA", None: ""}[network.gpu_direct_rdma]
    plugin = f"plugin {network.plugin}" if network.plugin else ""
    return "; ".join(filter(None, (", ".join(network.network_devices), direct, plugin))) or "used"


NCCL = TableOf[tuple[str, str]](
    caption="Transport chosen by NCCL",
    rows=_facts,
    columns=(Column("", lambda x: x[0]), Column("", lambda x: x[1])),
    left=2,
    section=SECTION,
)


CONNECTIONS = TableOf[summary.NcclConnection](
    caption="NCCL's connections, one for each direction and channel",
    rows=lambda s: s.nccl.connections if s.nccl else [],
    columns=(
        Column("transport", lambda c: c.transport),
        Column("where", lambda c: {True: "between nodes", False: "inside a node", None: "–"}[c.between_nodes]),
        Column("ranks of the group", lambda c: str(c.communicator_size or "–")),
        Column("connections", lambda c: f"{c.count:,}"),
        Column("GPUDirect RDMA", lambda c: {True: "yes", False: "no", None: "–"}[c.gdrdma]),
    ),
    left=2,
    **_OF_LOG,
    rest="kinds of connection",
    file=_file("connections"),
)
COMMUNICATORS = TableOf[summary.NcclCommunicator](
    caption="NCCL's groups of ranks (communicators)",
    rows=lambda s: s.nccl.communicators if s.nccl else [],
    columns=(
        Column("ranks", lambda c: str(c.size)),
        Column("nodes", lambda c: str(c.hosts) if c.ranks_seen == c.size else f"≥ {c.hosts}"),
        Column("channels", lambda c: _number(c.channel_count)),
        Column("NVLS channels", lambda c: _number(c.nvls_channel_count)),
        Column("send/recv channels", lambda c: _number(c.p2p_channel_count)),
        Column("first ring", lambda c: cut(c.rings[0], _LONG) if c.rings else "–"),
    ),
    **_OF_LOG,
    rest="groups",
    spare=("send/recv channels", "NVLS channels"),
    file=_file("communicators"),
)
RANKS = TableOf[summary.NcclRank](
    caption="NCCL's ranks; tree: children/…->rank->parent, of the first channel",
    rows=lambda s: s.nccl.ranks if s.nccl else [],
    columns=(
        Column("rank", lambda r: _number(r.rank)),
        Column("host", lambda r: r.host),
        Column("process", lambda r: str(r.pid)),
        Column("device", lambda r: _number(r.device)),
        Column("bus", lambda r: r.bus_id or "–"),
        Column("tree", lambda r: _first_tree(r.trees)),
    ),
    left=2,
    **_OF_LOG,
    rest="ranks",
    spare=("process", "bus"),
    file=_file("ranks"),
)
CHOICES = TableOf[summary.NcclChoice](
    caption="NCCL's choice for each message size",
    rows=lambda s: s.nccl.choices if s.nccl else [],
    columns=(
        Column("collective", lambda c: c.collective or "–"),
        Column("bytes", lambda c: amount(c.bytes)),
        Column("algorithm", lambda c: c.algorithm),
        Column("protocol", lambda c: c.protocol),
        Column("calls", lambda c: f"{c.count:,}"),
    ),
    **_OF_LOG,
    rest="choices",
    file=_file("choices"),
)
WARNINGS = TableOf[summary.NcclWarning](
    caption="NCCL's warnings",
    rows=lambda s: s.nccl.warnings if s.nccl else [],
    columns=(
        Column("warning", lambda w: cut(w.text, 2 * _LONG)),
        Column("host", lambda w: w.host),
        Column("times", lambda w: f"{w.count:,}"),
    ),
    left=2,
    **_OF_LOG,
    rest="warnings",
    file=_file("warnings"),
)


def _number(value: int | None) -> str:
    return "–" if value is None else str(value)


def _first_tree(trees: str | None) -> str:
    """Of `[0] 1/-1/-1->0->-1 [1] …` the first."""
    return trees.split(" [")[0].partition("] ")[2] if trees else "–"


TABLES: tuple[TableOf[Any], ...] = (NCCL, CONNECTIONS, COMMUNICATORS, RANKS, CHOICES, WARNINGS)

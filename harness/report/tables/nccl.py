"""The tables of what NCCL says about itself: see `--nccl-debug`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from harness.analysis.metrics import Number
from harness.analysis.summary import (
    NcclChoice,
    NcclCommunicator,
    NcclConnection,
    NcclNetwork,
    NcclRank,
    NcclWarning,
    Summary,
    SummaryPart,
)
from harness.explain.transport import between_nodes, inside_a_node, why_unknown
from harness.format.format import amount, cut
from harness.report.tables.table import Column, File, TableOf, plain

SECTION = "nccl"
_TOPIC = "what NCCL did"
_LONG = 70
_IN_TERMINAL = 16


def _file(part: str) -> File:
    """A file with all rows of one of the log's lists."""

    def rows(s: Summary) -> Iterable[SummaryPart]:
        return getattr(s.nccl, part) if s.nccl else ()

    return File(f"{SECTION}_{part}", lambda s: map(plain, rows(s)))


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


def _network(network: NcclNetwork) -> str:
    direct = {True: "GPUDirect RDMA possible", False: "no GPUDirect RDMA", None: ""}[network.gpu_direct_rdma]
    plugin = f"plugin {network.plugin}" if network.plugin else ""
    return "; ".join(filter(None, (", ".join(network.network_devices), direct, plugin))) or "used"


NCCL = TableOf[tuple[str, str]](
    caption="Transport chosen by NCCL",
    rows=_facts,
    columns=(Column("", lambda x: x[0]), Column("", lambda x: x[1])),
    left=2,
    section=SECTION,  # without a topic: where there is only the reason, the short form does not promise more
)


def _connections(s: Summary) -> list[NcclConnection]:
    return s.nccl.connections if s.nccl else []


def _counted(fits: Callable[[NcclConnection], bool]) -> Callable[[Summary], float | None]:
    def number(s: Summary) -> float | None:
        return sum(row.count for row in _connections(s) if fits(row)) if s.nccl else None

    return number


def _of(kind: str) -> Callable[[Summary], float | None]:
    return _counted(lambda row: row.transport.startswith(kind))


def _channels(s: Summary) -> float | None:
    return next((c.channel_count for c in s.nccl.communicators), None) if s.nccl else None


CONNECTIONS = TableOf[NcclConnection](
    caption="NCCL's connections, one for each direction and channel",
    rows=_connections,
    columns=(
        Column("transport", lambda c: c.transport),
        Column(
            "where", lambda c: {True: "between nodes", False: "inside a node", None: "–"}[c.between_nodes]
        ),
        Column("ranks of the group", lambda c: str(c.communicator_size or "–")),
        Column("connections", lambda c: f"{c.count:,}"),
        Column("GPUDirect RDMA", lambda c: {True: "yes", False: "no", None: "–"}[c.gdrdma]),
    ),
    left=2,
    section=SECTION,
    topic=_TOPIC,
    most=_IN_TERMINAL,
    rest="kinds of connection",
    file=_file("connections"),
    numbers=(
        Number(
            "nccl_channel_count",
            "NCCL: channels of the largest group",
            _channels,
            "`channel_count` of the largest communicator.",
        ),
        Number(
            "nccl_p2p_connection_count",
            "NCCL: connections from GPU to GPU",
            _of("P2P"),
            "Σ `count` of `nccl.connections` whose transport is `P2P/…`.",
        ),
        Number(
            "nccl_shm_connection_count",
            "NCCL: connections through host memory",
            _of("SHM"),
            "The same of `SHM/…`.",
        ),
        Number(
            "nccl_net_connection_count",
            "NCCL: connections over a network",
            _of("NET"),
            "The same of `NET/…`.",
        ),
        Number(
            "nccl_socket_connection_count",
            "NCCL: connections over sockets",
            _of("NET/Socket"),
            "The same of `NET/Socket`.",
        ),
        Number(
            "nccl_gdrdma_connection_count",
            "NCCL: connections with GPUDirect RDMA",
            _counted(lambda row: bool(row.gdrdma)),
            "Σ `count` of `nccl.connections` with `gdrdma`.",
        ),
    ),
)


COMMUNICATORS = TableOf[NcclCommunicator](
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
    section=SECTION,
    topic=_TOPIC,
    most=_IN_TERMINAL,
    rest="groups",
    spare=("send/recv channels", "NVLS channels"),
    file=_file("communicators"),
)

RANKS = TableOf[NcclRank](
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
    section=SECTION,
    topic=_TOPIC,
    most=_IN_TERMINAL,
    rest="ranks",
    spare=("process", "bus"),
    file=_file("ranks"),
)

CHOICES = TableOf[NcclChoice](
    caption="NCCL's choice for each message size",
    rows=lambda s: s.nccl.choices if s.nccl else [],
    columns=(
        Column("collective", lambda c: c.collective or "–"),
        Column("bytes", lambda c: amount(c.bytes)),
        Column("algorithm", lambda c: c.algorithm),
        Column("protocol", lambda c: c.protocol),
        Column("calls", lambda c: f"{c.count:,}"),
    ),
    section=SECTION,
    topic=_TOPIC,
    most=_IN_TERMINAL,
    rest="choices",
    file=_file("choices"),
)

WARNINGS = TableOf[NcclWarning](
    caption="NCCL's warnings",
    rows=lambda s: s.nccl.warnings if s.nccl else [],
    columns=(
        Column("warning", lambda w: cut(w.text, 2 * _LONG)),
        Column("host", lambda w: w.host),
        Column("times", lambda w: f"{w.count:,}"),
    ),
    left=2,
    section=SECTION,
    topic=_TOPIC,
    most=_IN_TERMINAL,
    rest="warnings",
    file=_file("warnings"),
)


def _number(value: int | None) -> str:
    return "–" if value is None else str(value)


def _first_tree(trees: str | None) -> str:
    """Of `[0] 1/-1/-1->0->-1 [1] …` the first."""
    return trees.split(" [")[0].partition("] ")[2] if trees else "–"

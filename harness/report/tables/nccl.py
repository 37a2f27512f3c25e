"""The tables of NCCL's log."""

from __future__ import annotations

from typing import Any

from harness.analysis import summary
from harness.analysis.summary import Summary
from harness.common.display.format import cut
from harness.explain.nccl_transport import between_nodes, inside_a_node
from harness.report.tables.table import Column, File, TableOf, plain

SECTION = "nccl"
_OF_LOG: dict[str, Any] = {"section": SECTION, "most": 16}
_LONG = 70


def _file(part: str) -> File:
    return File(f"{SECTION}_{part}", lambda s: map(plain, getattr(s.nccl, part) if s.nccl else ()))


def _facts(s: Summary) -> list[tuple[str, str]]:
    n = s.nccl
    if n is None:
        return []
    told = [("between nodes", between_nodes(n)), ("inside a node", inside_a_node(n))]
    told += [("version", ", ".join(n.versions))]
    told += [(f"network {network.name}", ", ".join(network.network_devices) or "used") for network in n.networks]
    told += [(variable.name, " or ".join(variable.values)) for variable in n.variables]
    told += [("the log", f"{n.processes:,} processes")]
    return [(name, text) for name, text in told if text]


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
        Column("transport", "transport"),
        Column("where", lambda c: {True: "between nodes", False: "inside a node", None: "–"}[c.between_nodes]),
        Column("ranks of the group", "communicator_size"),
        Column("connections", "count"),
        Column("GPUDirect RDMA", lambda c: {True: "yes", False: "no", None: "–"}[c.gdrdma]),
    ),
    left=2,
    **_OF_LOG,
    rest="kinds of connection",
    file=_file("connections"),
)
WARNINGS = TableOf[summary.NcclWarning](
    caption="NCCL's warnings",
    rows=lambda s: s.nccl.warnings if s.nccl else [],
    columns=(Column("warning", lambda w: cut(w.text, 2 * _LONG)), Column("host", "host"), Column("times", "count")),
    left=2,
    **_OF_LOG,
    rest="warnings",
    file=_file("warnings"),
)


TABLES: tuple[TableOf[Any], ...] = (NCCL, CONNECTIONS, WARNINGS)

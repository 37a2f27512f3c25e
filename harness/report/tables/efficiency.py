"""The table of the efficiencies that POP and TALP define, and the same in one line."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.analysis.metrics import Number
from harness.analysis.summary import PopEfficiency, Summary
from harness.format.format import percent
from harness.format.labels import are_cpus
from harness.report.tables.table import Column, File, TableOf, plain

_NAMES = {
    "parallel": "parallel efficiency",
    "load_balance": "load balance",
    "communication": "communication efficiency",
    "serialisation": "serialisation",
    "transfer": "transfer",
    "orchestration": "orchestration efficiency",
}
_DEPTH = {"parallel": 0, "serialisation": 2, "transfer": 2}
_OF = {
    "parallel": "mean compute of the devices / elapsed time",
    "load_balance": "mean compute of the devices / largest compute of a device",
    "communication": "largest compute of a device / largest active time of a device",
    "serialisation": "the part that remains after waiting for other ranks",
    "transfer": "elapsed time with an ideal network / elapsed time",
    "orchestration": "largest active time of a device / elapsed time",
}
METRICS = {  # field of PopEfficiency -> name for compare and --fail-if
    "parallel": "parallel_efficiency",
    "load_balance": "load_balance",
    "communication": "communication_efficiency",
    "serialisation": "serialisation_efficiency",
    "transfer": "transfer_efficiency",
    "orchestration": "orchestration_efficiency",
}


def efficiency_label(field: str, indent: str) -> str:
    """The name of an efficiency, indented below the one of which it is a factor."""
    return indent * _DEPTH.get(field, 1) + _NAMES[field]


Row = tuple[str, float | None, str]  # the field, its value, and of what it is a share, or why it is not known


def efficiency_rows(p: PopEfficiency) -> list[Row]:
    """Each efficiency below the one of which it is a factor."""
    values = [(field, getattr(p, field)) for field in _NAMES]
    return [
        (field, value, _OF[field] if value is not None else p.split_unknown or "") for field, value in values
    ]


def _rows(s: Summary) -> Sequence[Row]:
    return efficiency_rows(s.pop) if s.pop is not None else ()


def _caption(s: Summary) -> str:
    kind = "processes (CPU: operators are counted as kernels)" if are_cpus(s.devices) else "devices"
    count = s.pop.devices if s.pop is not None else 0
    return f"Efficiency as POP and TALP define it, {count} {kind}; an indented row is a factor of the row above it"


def efficiency_words(s: Summary) -> str:
    """The efficiencies of several devices in one sentence; empty for one device, whose split says the same."""
    p = s.pop
    if p is None or p.devices < 2:
        return ""
    factors = (
        f"{name} {percent(value)}"
        for name, value in (
            ("load balance", p.load_balance),
            ("communication", p.communication),
            ("orchestration", p.orchestration),
        )
    )
    return f"Parallel efficiency (POP): {percent(p.parallel)} = {' × '.join(factors)}"


def _value(field: str) -> Callable[[Summary], float | None]:
    return lambda s: getattr(s.pop, field) if s.pop is not None else None


EFFICIENCY = TableOf[Row](
    caption=_caption,
    rows=_rows,
    columns=(
        Column("efficiency", lambda x: efficiency_label(x[0], "· ")),
        Column("value", lambda x: "not known" if x[1] is None else percent(x[1])),
        Column("of what", lambda x: x[2]),
    ),
    left=3,
    section="efficiency",
    topic="efficiency",
    file=File("pop", lambda s: [plain(s.pop)] if s.pop is not None else []),
    numbers=tuple(
        Number(name, efficiency_label(field, "  "), _value(field), f"`pop.{field}`.")
        for field, name in METRICS.items()
    ),
)

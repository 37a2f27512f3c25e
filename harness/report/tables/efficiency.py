"""The table of efficiencies as POP defines them and of the training's speed, and the same in one line."""

from __future__ import annotations

from collections.abc import Callable

from harness.analysis.labels import are_cpus
from harness.analysis.metric_values import Facts
from harness.analysis.metrics import Metric
from harness.analysis.summary import Summary
from harness.common.format import amount, percent
from harness.report.tables.table import Column, File, TableOf, plain

_SHOWN = {  # field of PopEfficiency -> how far it is indented, its name, and of what it is a share
    "parallel": (0, "parallel efficiency", "mean compute of the devices / elapsed time"),
    "load_balance": (1, "load balance", "mean compute of the devices / largest compute of a device"),
    "communication": (
        1, "communication efficiency", "largest compute of a device / largest active time of a device",
    ),
    "serialisation": (2, "serialisation", "the part that remains after waiting for other ranks"),
    "transfer": (2, "transfer", "elapsed time with an ideal network / elapsed time"),
    "orchestration": (1, "orchestration efficiency", "largest active time of a device / elapsed time"),
}  # fmt: skip
# field of PopEfficiency -> name for compare and --fail-if
METRICS = {field: field if field == "load_balance" else f"{field}_efficiency" for field in _SHOWN}
Row = tuple[str, float | None, str]  # the field, its value, and of what it is a share, or why it is not known
_NO_PEAK = "not given: the peak of this device is not known"


def efficiency_label(field: str, indent: str) -> str:
    """The name of an efficiency, indented below the one of which it is a factor."""
    depth, name, _ = _SHOWN[field]
    return indent * depth + name


def _rows(s: Summary) -> list[Row]:
    """Each efficiency below the one of which it is a factor."""
    if s.pop is None:
        return []
    values = [(field, of, getattr(s.pop, field)) for field, (_, _, of) in _SHOWN.items()]
    return [(field, value, of if value is not None else s.pop.split_unknown or "") for field, of, value in values]


def _caption(s: Summary) -> str:
    kind = "processes (CPU: operators are counted as kernels)" if are_cpus(s.devices) else "devices"
    count = s.pop.devices if s.pop is not None else 0
    return f"Efficiency as POP and TALP define it, {count} {kind}; an indented row is a factor of the row above it"


def efficiency_words(s: Summary) -> str:
    """The efficiencies of several devices in one sentence; empty for one device, whose split says the same."""
    p = s.pop
    if p is None or p.devices < 2:
        return ""
    return (
        f"Parallel efficiency (POP): {percent(p.parallel)} = load balance {percent(p.load_balance)} "
        f"× communication {percent(p.communication)} × orchestration {percent(p.orchestration)}"
    )


def _value(field: str) -> Callable[[Facts], float | None]:
    return lambda facts: getattr(facts.summary.pop, field) if facts.summary.pop is not None else None


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
    file=File("pop", lambda s: [plain(s.pop)] if s.pop is not None else []),
    metrics=tuple(
        Metric(name, _value(field), f"`pop.{field}`.", efficiency_label(field, "  "), "less")
        for field, name in METRICS.items()
    ),
)


def _speed(s: Summary) -> list[tuple[str, str]]:
    """The throughput and its share of the machine's peak, or why the share is not given."""
    e = s.efficiency
    if e is None or e.tokens_per_s is None:
        return []
    peak = f"{percent(e.mfu)} of {amount(e.peak_flops_per_s, 'FLOP/s')} ({e.peak_source})"
    without_hfu = "as MFU: nothing is recomputed" if e.mfu is not None else _NO_PEAK
    together = f"{amount(e.tokens_per_s, 'tokens/s')}, {amount(e.samples_per_s, 'samples/s')}"
    return [
        ("all ranks together", together),
        ("model FLOP/s of each device", amount(e.model_flops_per_s_per_device, "FLOP/s")),
        ("MFU", peak if e.mfu else _NO_PEAK),
        ("HFU", percent(e.hfu) if e.hfu is not None else without_hfu),
    ]


SPEED = TableOf[tuple[str, str]](
    caption="Speed of the job",
    rows=_speed,
    columns=(Column("", lambda x: x[0]), Column("", lambda x: x[1])),
    left=2,
    section="steps",
)

"""The tables of efficiencies as POP defines them, and of the training's speed."""

from __future__ import annotations

from harness.analysis.labels import are_cpus
from harness.analysis.summary import Summary
from harness.analysis.summary.efficiency import POP_FACTORS, EfficiencyFactor
from harness.common.display.format import amount, percent
from harness.report.tables.table import Column, File, TableOf, plain

# The efficiency, its value, and of what it is a share, or why it is not known.
Row = tuple[EfficiencyFactor, float | None, str]


def _rows(s: Summary) -> list[Row]:
    """Each efficiency below the one of which it is a factor."""
    if s.pop is None:
        return []
    values = [(factor, getattr(s.pop, factor.field)) for factor in POP_FACTORS]
    unknown = s.pop.split_unknown or ""
    return [(factor, value, unknown if value is None else factor.of_what) for factor, value in values]


def _caption(s: Summary) -> str:
    kind = "processes (CPU: operators are counted as kernels)" if are_cpus(s.devices) else "devices"
    count = s.pop.devices if s.pop is not None else 0
    return f"Efficiency as POP and TALP define it, {count} {kind}; an indented row is a factor of the row above it"


EFFICIENCY = TableOf[Row](
    caption=_caption,
    rows=_rows,
    columns=(
        Column("efficiency", lambda x: x[0].indented("· ")),
        Column("value", lambda x: "not known" if x[1] is None else percent(x[1])),
        Column("of what", lambda x: x[2]),
    ),
    left=3,
    section="efficiency",
    file=File("pop", lambda s: [plain(s.pop)] if s.pop is not None else []),
)


def _speed(s: Summary) -> list[tuple[str, str]]:
    """The throughput and its share of the machine's peak, as far as they are known."""
    e = s.efficiency
    if e is None or e.tokens_per_s is None:
        return []
    rows = [("all ranks together", f"{amount(e.tokens_per_s, 'tokens/s')}, {amount(e.samples_per_s, 'samples/s')}")]
    if e.model_flops_per_s_per_device is not None:
        rows.append(("model FLOP/s of each device", amount(e.model_flops_per_s_per_device, "FLOP/s")))
    if e.mfu is not None:
        peak = f"{percent(e.mfu)} of {amount(e.peak_flops_per_s, 'FLOP/s')} ({e.peak_source})"
        hfu = "as MFU: nothing is recomputed" if e.hfu is None else percent(e.hfu)
        rows += [("MFU", peak), ("HFU", hfu)]
    return rows


SPEED = TableOf[tuple[str, str]](
    caption="Speed of the job",
    rows=_speed,
    columns=(Column("", lambda x: x[0]), Column("", lambda x: x[1])),
    left=2,
    section="steps",
)

"""A comparison as text: configuration first, then results, one line each; of several runs each against the
first."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.compare import Comparison
from harness.report.compare_rows import (
    SHOWN_KERNELS,
    Pairs,
    Row,
    collective_rows,
    configuration_rows,
    kernel_rows,
    letters,
    medians,
    precision_rows,
    remarks,
    result_rows,
    said,
)

_KERNEL_WIDTH = 70


def render_comparison(comparison: Comparison) -> str:
    """The comparison of two runs for a terminal."""
    return render_comparisons([comparison])


def render_comparisons(pairs: Pairs) -> str:
    """The comparison for a terminal: one column for each run, b, c, … against a."""
    others = list(zip(letters(pairs)[1:], pairs, strict=True))
    blocks = [
        "\n".join(f"{x}: {name}" for x, name in zip(letters(pairs), names(pairs), strict=True)),
        _configuration(pairs),
        "\n".join(_step_time(pair, other) for other, pair in others),
        _titled("Results", result_rows(pairs)),
        _titled("Collectives per step (ms: of a rank)", collective_rows(pairs)),
        *(
            _titled("Precision that changed, share of the kind's time", precision_rows(pair, "a", other))
            for other, pair in others
        ),
        *(_kernels(pair, other) for other, pair in others),
        "\n".join(f"note: {note}" for note in remarks(pairs)),
    ]
    return "\n\n".join(b for b in blocks if b) + "\n"


def names(pairs: Pairs) -> list[str]:
    """Of the base and of every run against it."""
    return [pairs[0].a, *(pair.b for pair in pairs)]


def _configuration(pairs: Pairs) -> str:
    rows = configuration_rows(pairs)
    return _titled("Configuration that differs", rows) or "Configuration: the same, as far as recorded"


def _step_time(comparison: Comparison, other: str) -> str:
    ratio = comparison.step_time
    if ratio is None:
        return f"Step time: not recorded in both a and {other}"
    return (
        f"Step time, {comparison.normalisation} ({comparison.why_normalised})\n"
        f"  median {medians(comparison, ratio)}: ratio {other} / a {ratio.ratio:.3f}, "
        f"95 % interval {ratio.low:.3f} to {ratio.high:.3f} ({ratio.steps_a} and {ratio.steps_b} steps): "
        f"{said(ratio, other)}"
    )


def _kernels(comparison: Comparison, other: str) -> str:
    rows = kernel_rows(comparison, other, SHOWN_KERNELS, _KERNEL_WIDTH)
    more = len(comparison.kernels) - len(rows)
    title = f"Kernels that appeared or vanished, {other} against a"
    return _titled(title, rows) + (f"\n  and {more} more" if more else "")


def _titled(title: str, rows: Sequence[Row]) -> str:
    return f"{title}\n{_aligned(rows)}" if rows else ""


def _aligned(rows: Sequence[Row]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows
    )

"""A scaling study as people read it: a table, a CSV file, and the plots. Knows no run."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from harness.analysis.repeats import Repeated
from harness.analysis.scaling_study import FACTORS, Size
from harness.format.csv_cells import cells
from harness.format.format import amount, percent, rate
from harness.report.elements import Table
from harness.report.plots.plain import plain
from harness.report.sweeps.plot import Look, canvas_of, dress, save, with_bars
from harness.report.sweeps.table import INTERVALS
from harness.run import naming_flag, write_atomically

_SHARES = {"exposed_communication_share": "exposed communication", **FACTORS}
_EXPLAINED = {
    **_SHARES,
    "computation_scalability": "computation scalability",
    "global_efficiency": "global efficiency (POP)",
}


def scaling_table(title: str, sizes: Sequence[Size]) -> Table:
    """Throughput, speed-up and efficiency of each size."""
    rows = []
    for size in sizes:
        speed, up, share = size.throughput, size.speed_up, size.efficiency
        ideal = size.devices / sizes[0].devices
        rows.append(
            [
                str(size.devices),
                f"{amount(speed.mean, size.unit)}{_spread(speed)}" if speed else "–",
                f"{up.mean:.2f}{_between(up, 1, 2)}" if up else "–",
                f"{percent(share.mean)}{_between(share, 100, 0)}" if share else "–",
                f"{ideal:g}",
                str(len(size.runs)),
                _settings(size),
            ]
        )
    # A narrow terminal shows the first ones.
    head = ("devices", "throughput", "speed-up", "efficiency", "ideal", "runs", "with")
    repeats = any(len(size.runs) > 1 for size in sizes)
    return Table(f"{title}: {INTERVALS}" if repeats else title, head, rows)


def why_table(sizes: Sequence[Size]) -> Table:
    """What explains it: a column per size."""
    names = [name for name in _EXPLAINED if any(name in size.values for size in sizes)]
    rows = [
        [
            _EXPLAINED[name],
            *(percent(size.values[name].mean) if name in size.values else "–" for size in sizes),
        ]
        for name in names
    ]
    return Table(
        "What explains it, means of the runs", ("devices", *(str(size.devices) for size in sizes)), rows
    )


def _settings(size: Size) -> str:
    """The options that vary with the size."""
    return ", ".join(f"{name} {value}" for name, value in list(size.settings.items())[1:])


def _spread(value: Repeated) -> str:
    """Half of the interval, relative to the mean; empty if one run has none."""
    return "" if value.high is None else f" ± {percent(value.high / value.mean - 1)}"


def _between(value: Repeated, factor: float, digits: int) -> str:
    if value.low is None or value.high is None:
        return ""
    return f" ({factor * value.low:.{digits}f} to {factor * value.high:.{digits}f})"


def write_scaling_csv(sizes: Sequence[Size], path: Path) -> None:
    """Every number of every size, with the ends of its interval. Raises DiskError: the file cannot be written."""
    names = [name for name in _EXPLAINED if any(name in size.values for size in sizes)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = ["throughput", "speed_up", "efficiency", *names]
    axes = list(sizes[0].settings) if sizes else []
    ends = ("", "_low", "_high")
    writer.writerow(
        cells(["devices", *axes, "runs", "unit", *(f"{c}{end}" for c in columns for end in ends)])
    )
    for size in sizes:
        values = [size.throughput, size.speed_up, size.efficiency, *(size.values.get(name) for name in names)]
        numbers = [part for v in values for part in ((v.mean, v.low, v.high) if v else (None, None, None))]
        settings = [size.settings[name] for name in axes]
        writer.writerow(cells([size.devices, *settings, " ".join(size.runs), size.unit, *numbers]))
    with naming_flag("--csv"):
        write_atomically(path, text.getvalue())


def plot_scaling(title: str, sizes: Sequence[Size], path: Path) -> None:
    """Speed-up beside its ideal line, and the efficiency, with intervals. Raises WorkError: it cannot be written."""
    known = [size for size in sizes if size.speed_up is not None and size.efficiency is not None]
    x = [float(size.devices) for size in known]
    canvas = canvas_of(10, 4.6)
    left, right = canvas.subplots(1, 2)
    left.plot(x, [each / x[0] for each in x], linestyle="--", color="#9aa0a6", label="ideal")
    with_bars(left, x, [size.speed_up for size in known if size.speed_up], 1.0, Look(0, "measured"))
    left.set_ylabel(f"speed-up over {x[0]:g} device{'s' * (x[0] > 1)}")
    left.legend(frameon=False, fontsize=9)
    right.axhline(100, linestyle="--", color="#9aa0a6")
    with_bars(right, x, [size.efficiency for size in known if size.efficiency], 100.0, Look(0))
    right.set_ylabel("parallel efficiency (%)")
    tops = (x[-1] / x[0], 100.0)  # of the ideal: a wide interval must not flatten the rest
    for axes, top, factor, values in (
        (left, tops[0], 1.0, [size.speed_up for size in known]),
        (right, tops[1], 100.0, [size.efficiency for size in known]),
    ):
        axes.set_ylim(0, 1.25 * max(top, *(factor * value.mean for value in values if value)))
        axes.set_xlabel("devices")
        if len(x) > 1 and x[-1] >= 8 * x[0]:
            axes.set_xscale("log", base=2)
        axes.set_xticks(x, [rate(each) for each in x])
        axes.minorticks_off()
        dress(axes)
    counts = sorted({len(size.runs) for size in known})
    told = (
        "one run per size, so there are no intervals"
        if counts == [1]
        else "bars: 95 % intervals, cut at the plot's edge"
    )
    canvas.suptitle(plain(f"{title} ({told})"), fontsize=11)
    save(canvas, path)

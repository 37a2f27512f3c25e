"""Plots of a node's samples, as the slides show them: memory, utilisation and power per device over time.

The only part of the monitor that imports matplotlib; it runs after the training.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from harness.common.system.files import write_whole
from harness.monitor.samples import DeviceSeries, NodeSamples, read, replace_json
from harness.monitor.source import Points, pieces
from harness.monitor.summary import SUMMARY_FILE, DeviceSummary, NodeSummary, summarize

# Okabe and Ito's palette, which colour-blind readers can distinguish.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8B5A2B")
_GREY = "#888888"
_GIB = 2**30
_FEW_POINTS = 60  # up to this number each sample has a dot, so that a short run shows its samples
_MANY_POINTS = 300  # from this number neighbours are drawn as one point, so that noise does not hide lines

Label = Callable[[DeviceSeries, DeviceSummary], str]


class Panel:
    """One plot: its axes, and the node that is drawn on them."""

    def __init__(self, axes: Axes, profiler_recording: NodeSamples, summary: NodeSummary) -> None:
        self.axes = axes
        self.recording = profiler_recording
        self.summary = summary
        self.is_gpu = profiler_recording.of_gpus
        self._start_ns, end_ns = profiler_recording.span_ns
        self._unit_ns, self._unit = (60e9, "min") if end_ns - self._start_ns > 600e9 else (1e9, "s")

    def label(self, device: DeviceSeries) -> str:
        return _plain(f"GPU {device.index}: {device.name}" if self.is_gpu else device.name)

    def draw_devices(self, column: str, label: Label, scale: float = 1, peaks: bool = False) -> bool:
        """A line per device that has `column`; whether any has. Long lines show means or peaks."""
        for device, numbers in zip(self.recording.devices, self.summary.devices, strict=True):
            points = thinned(device, column, max if peaks else fmean)
            color = _COLORS[device.index % len(_COLORS)]
            self._line(points, scale, label=label(device, numbers), color=color, alpha=0.85)
        self.axes.set_xlabel(f"time since the monitor's start ({self._unit}){self._thinning(peaks)}")
        return bool(self.axes.lines)

    def _thinning(self, peaks: bool) -> str:
        size = bucket_size(self.summary.samples)
        together = "maximum" if peaks else "mean"
        return f", {together} of every {size * self.recording.period_ns / 1e9:g} s" if size > 1 else ""

    def _line(self, points: Points, scale: float, **style: str | float) -> None:
        if not points:
            return
        self.axes.plot(
            [(at_ns - self._start_ns) / self._unit_ns for at_ns, _ in points],
            [value / scale for _, value in points],
            marker="." if len(points) <= _FEW_POINTS else None,
            **style,  # type: ignore[arg-type]
        )

    def say_unknown(self, what: str) -> str:
        """Show a sentence instead of an empty plot; returns the title."""
        self.axes.set_axis_off()
        sentence = f"{what} not available on this machine"
        self.axes.text(0.5, 0.5, sentence, ha="center", fontsize=14, transform=self.axes.transAxes)
        return what.capitalize()


def bucket_size(count: int) -> int:
    """The number of neighbouring samples that are drawn as one point."""
    return max(1, math.ceil(count / _MANY_POINTS))


def thinned(device: DeviceSeries, column: str, together: Callable[[list[float]], float]) -> Points:
    """About _MANY_POINTS (unix_ns, value): the first time of some neighbours, and `together` of their values. A point
    without a value is in each gap, so that no line bridges it."""
    points = device.points(column)
    size = bucket_size(len(points))
    found: Points = []
    for piece in pieces(points, device.gaps):
        found += [(piece[0][0] - 1, math.nan)] if found else []
        buckets = (piece[i : i + size] for i in range(0, len(piece), size))
        found += [(bucket[0][0], together([value for _, value in bucket])) for bucket in buckets]
    return found


def _plain(name: str) -> str:
    """A name that is drawn as it is: matplotlib takes what stands between two dollar signs for a formula, and has no
    picture of a control character."""
    return "".join(c if c.isprintable() else " " for c in name).replace("$", r"\$")


Draw = Callable[[Panel], str]


def plot(folder: Path) -> list[Path]:
    """Write memory.png, utilization.png, power.png and summary.json into `folder`; returns their paths.

    Raises:
        MonitorError: the samples cannot be read.
    """
    recording = read(folder)
    summary = summarize(recording)
    replace_json(folder / SUMMARY_FILE, asdict(summary))
    drawings: dict[str, Draw] = {"memory": _memory, "utilization": _utilization, "power": _power}
    for name, draw in drawings.items():
        _draw(folder / f"{name}.png", draw, recording, summary)
    return [folder / f"{name}.png" for name in drawings] + [folder / SUMMARY_FILE]


def _draw(path: Path, draw: Draw, recording: NodeSamples, summary: NodeSummary) -> None:
    figure = Figure(figsize=(10, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    gaps = f" · no samples for {summary.gaps_ns / 1e9:.1f} s of it" if summary.gaps_ns else ""
    axes.set_title(f"{draw(Panel(axes, recording, summary))} · {_plain(recording.host)}{gaps}", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, alpha=0.3)
    if axes.lines:
        # Below the axes: with eight devices no corner inside is certainly empty.
        figure.legend(loc="outside lower left", frameon=False, fontsize=9, ncols=2)
    write_whole(path, lambda temporary: figure.savefig(temporary, format="png"))


def _memory(panel: Panel) -> str:
    def label(device: DeviceSeries, numbers: DeviceSummary) -> str:
        return f"{panel.label(device)}, peak {(numbers.peak_memory_bytes or 0) / _GIB:.2f} GiB"

    if not panel.draw_devices("memory_used_bytes", label, _GIB, peaks=True):
        return panel.say_unknown("memory use")
    sizes = {device.memory_total_bytes for device in panel.recording.devices}
    if len(sizes) == 1 and (size := sizes.pop()):
        panel.axes.axhline(size / _GIB, color=_GREY, ls=":", label=f"capacity {size / _GIB:.0f} GiB")
    panel.axes.set_ylim(bottom=0)
    panel.axes.set_ylabel("memory in use (GiB)")
    return "GPU memory" if panel.is_gpu else "Memory of the job (PSS)"


def _utilization(panel: Panel) -> str:
    def label(device: DeviceSeries, numbers: DeviceSummary) -> str:
        sms = numbers.mean_sm_active_percent
        of_sms = "" if sms is None else f", SM Active {sms:.0f} %"
        return f"{panel.label(device)}, mean {numbers.mean_utilization_percent or 0:.0f} %{of_sms}"

    if not panel.draw_devices("utilization_percent", label):
        return panel.say_unknown("utilisation")
    panel.axes.set_ylim(0, 105)
    title = "GPU utilisation" if panel.is_gpu else "CPU utilisation"
    panel.axes.set_ylabel(f"{title} (%)")
    return title


def _power(panel: Panel) -> str:
    def label(device: DeviceSeries, numbers: DeviceSummary) -> str:
        return f"{panel.label(device)}, {format_energy(numbers.energy_joules)}"

    if not panel.draw_devices("power_watts", label):
        return panel.say_unknown("power")
    panel.axes.set_ylim(bottom=0)
    panel.axes.set_ylabel("power (W)")
    lacks = any(numbers.energy_lacks_ns for numbers in panel.summary.devices)
    return f"GPU power, energy {format_energy(panel.summary.energy_joules)}{' of the sampled time' * lacks}"


def format_energy(joules: float | None) -> str:
    """Joules as J, kJ or MJ with three digits, "unknown" for None."""
    if joules is None:
        return "unknown"
    for unit, size in (("MJ", 1e6), ("kJ", 1e3)):
        if joules >= size:
            return f"{joules / size:.3g} {unit}"
    return f"{joules:.3g} J"

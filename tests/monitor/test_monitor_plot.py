"""The pictures: their text, and that no part covers another."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from harness.monitor import plot as plots
from harness.monitor.plot import Panel, format_energy, plot, thinned
from harness.monitor.samples import DeviceSeries, read
from harness.monitor.summary import summarize
from tests.waiting import limit_s

Write = Callable[..., Path]
GPU_COLUMNS = ["memory_used_bytes", "utilization_percent", "power_watts"]


def panel_of(folder: Path) -> Panel:
    figure = Figure()
    FigureCanvasAgg(figure)
    recording = read(folder)
    return Panel(figure.add_subplot(), recording, summarize(recording))


def test_every_recording_gets_three_pictures_and_a_summary(write_samples: Write) -> None:
    folder = write_samples(GPU_COLUMNS, [[2**30, 50, 100]] * 3)
    written = plot(folder)
    assert sorted(path.name for path in written) == ["memory.png", "power.png", "summary.json", "utilization.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written if path.suffix == ".png")
    assert not list(folder.glob(".*"))


def test_power_has_its_energy_in_the_title_and_in_each_legend_entry(write_samples: Write) -> None:
    panel = panel_of(write_samples(GPU_COLUMNS, [[1, 1, 1000]] * 3, [[1, 1, 500]] * 3))
    assert plots._power(panel) == "GPU power, energy 3 kJ"
    assert [line.get_label() for line in panel.axes.lines] == ["GPU 0: NVIDIA H200, 2 kJ", "GPU 1: NVIDIA H200, 1 kJ"]
    assert panel.axes.get_ylabel() == "power (W)"
    assert panel.axes.get_xlabel() == "time since the monitor's start (s)"


@pytest.mark.parametrize(
    ("draw", "sentence"),
    [
        ("_power", "power not available on this machine"),
        ("_memory", "memory use not available on this machine"),
        ("_utilization", "utilisation not available on this machine"),
    ],
)
def test_an_unmeasured_quantity_is_named_instead_of_drawn(write_samples: Write, draw: str, sentence: str) -> None:
    panel = panel_of(write_samples(GPU_COLUMNS, [[None, None, None]] * 3))
    getattr(plots, draw)(panel)
    assert [text.get_text() for text in panel.axes.texts] == [sentence]
    assert not panel.axes.lines


def test_without_a_gpu_the_job_stands_beside_the_machine(write_samples: Write) -> None:
    columns = [*GPU_COLUMNS, "machine_memory_used_bytes", "machine_utilization_percent"]
    panel = panel_of(write_samples(columns, [[2**30, 50, None, 2**32, 80]] * 3, source="processes"))
    assert plots._utilization(panel) == "CPU utilisation"
    assert [line.get_label() for line in panel.axes.lines] == ["NVIDIA H200, mean 50 %", "whole machine"]


def test_what_the_sms_did_is_a_dashed_line_in_the_devices_colour_with_one_entry_for_all(write_samples: Write) -> None:
    columns = ["utilization_percent", "sm_active_percent"]
    rows: list[list[float | None]] = [[98, None], [98, 40], [98, 60]]
    panel = panel_of(write_samples(columns, rows, rows))
    plots._utilization(panel)
    labels = [f"GPU {i}: NVIDIA H200, mean 98 %, SM Active 50 %" for i in range(2)]
    dashed = "dashed: SM Active, the time in which an SM had work"
    assert panel.axes.get_legend_handles_labels()[1] == [*labels, dashed]
    first, _, of_first, *_ = panel.axes.lines
    assert (first.get_color(), first.get_linestyle()) == (of_first.get_color(), "-")
    assert (of_first.get_linestyle(), len(of_first.get_xdata())) == ("--", 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("devices", [1, 4, 8])
def test_the_legend_lies_neither_on_the_lines_nor_outside_the_picture(
    write_samples: Write, monkeypatch: pytest.MonkeyPatch, devices: int
) -> None:
    figures: list[Figure] = []

    def keep(figure: Figure, path: Path, **_: str) -> None:
        figures.append(figure)
        path.touch()

    monkeypatch.setattr(Figure, "savefig", keep)
    plot(write_samples(GPU_COLUMNS, *[[[2**36, 97, 690]] * 5] * devices))
    assert len(figures) == 3
    for figure in figures:
        figure.canvas.draw()
        legend, axes = figure.legends[0].get_window_extent(), figure.axes[0].get_tightbbox()
        assert axes and legend.y1 <= axes.y0
        assert legend.x0 >= 0 and legend.y0 >= 0 and legend.x1 <= figure.bbox.x1


def test_long_recordings_are_thinned_and_say_so(write_samples: Write) -> None:
    panel = panel_of(write_samples(["power_watts"], [[100 + second % 2] for second in range(900)]))
    plots._power(panel)
    assert len(panel.axes.lines[0].get_xdata()) == 300  # type: ignore[arg-type]
    assert panel.axes.get_xlabel() == "time since the monitor's start (min), mean of every 3 s"


def test_thinning_for_memory_keeps_the_peak() -> None:
    device = DeviceSeries(
        0, "gpu", None, list(range(1000)), {"memory": [float(second == 501) for second in range(1000)]}
    )
    assert max(value for _, value in thinned(device, "memory", max)) == 1.0


@pytest.mark.parametrize(
    ("joules", "expected"), [(None, "unknown"), (0, "0 J"), (999, "999 J"), (12_345, "12.3 kJ"), (4_560_000, "4.56 MJ")]
)
def test_energy_is_written_for_people(joules: float | None, expected: str) -> None:
    assert format_energy(joules) == expected


def test_plotting_a_folder_without_samples_is_one_sentence(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    process = start("plot", tmp_path)
    _, errors = process.communicate(timeout=limit_s())
    assert process.returncode == 2
    assert errors == f"monitor: {tmp_path}: no samples.csv in it, nor in a folder below it\n"

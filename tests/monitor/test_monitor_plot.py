"""The pictures: their text and their lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from harness.monitor import plot as plots
from harness.monitor.plot import Panel, format_energy, thinned
from harness.monitor.samples import DeviceSeries, read
from harness.monitor.summary import summarize
from tests.monitor.conftest import Start, Write
from tests.waiting import limit_s

GPU_COLUMNS = ["memory_used_bytes", "utilization_percent", "power_watts"]


def panel_of(folder: Path) -> Panel:
    figure = Figure()
    FigureCanvasAgg(figure)
    recording = read(folder)
    return Panel(figure.add_subplot(), recording, summarize(recording))


def test_power_has_its_energy_in_the_title_and_in_each_legend_entry(write_samples: Write) -> None:
    panel = panel_of(write_samples(GPU_COLUMNS, [[1, 1, 1000]] * 3, [[1, 1, 500]] * 3))
    assert plots._power(panel) == "GPU power, energy 3 kJ"
    assert [line.get_label() for line in panel.axes.lines] == ["GPU 0: NVIDIA H200, 2 kJ", "GPU 1: NVIDIA H200, 1 kJ"]
    assert (panel.axes.get_ylabel(), panel.axes.get_xlabel()) == ("power (W)", "time since the monitor's start (s)")


UNMEASURED = {"_power": "power", "_memory": "memory use", "_utilization": "utilisation"}


@pytest.mark.parametrize(("draw", "what"), UNMEASURED.items())
def test_an_unmeasured_quantity_is_named_instead_of_drawn(write_samples: Write, draw: str, what: str) -> None:
    panel = panel_of(write_samples(GPU_COLUMNS, [[None, None, None]] * 3))
    getattr(plots, draw)(panel)
    assert [text.get_text() for text in panel.axes.texts] == [f"{what} not available on this machine"]
    assert not panel.axes.lines


UTILIZATION: dict[str, tuple[str, list[float | None], str, str]] = {
    "nvml": ("sm_active_percent", [98, 50], "GPU utilisation", "GPU 0: NVIDIA H200, mean 98 %, SM Active 50 %"),
    "processes": ("machine_utilization_percent", [50, 80], "CPU utilisation", "NVIDIA H200, mean 50 %"),
}


@pytest.mark.parametrize(("source", "drawn"), UTILIZATION.items(), ids=UTILIZATION)
def test_utilisation_is_a_line_with_its_mean_and_what_the_sms_did(
    write_samples: Write, source: str, drawn: tuple[str, list[float | None], str, str]
) -> None:
    column, row, title, label = drawn
    panel = panel_of(write_samples(["utilization_percent", column], [row] * 3, source=source))
    assert (plots._utilization(panel), [line.get_label() for line in panel.axes.lines]) == (title, [label])


def test_long_recordings_are_thinned_and_say_so_and_memory_keeps_its_peak(write_samples: Write) -> None:
    panel = panel_of(write_samples(["power_watts"], [[100 + second % 2] for second in range(900)]))
    plots._power(panel)
    assert len(panel.axes.lines[0].get_xdata()) == 300  # type: ignore[arg-type]
    assert panel.axes.get_xlabel() == "time since the monitor's start (min), mean of every 3 s"
    peak = [float(second == 501) for second in range(1000)]
    device = DeviceSeries(0, "gpu", None, list(range(1000)), {"memory": peak})
    assert max(value for _, value in thinned(device, "memory", max)) == 1.0


@pytest.mark.parametrize(
    ("joules", "expected"), [(None, "unknown"), (0, "0 J"), (999, "999 J"), (12_345, "12.3 kJ"), (4_560_000, "4.56 MJ")]
)
def test_energy_is_written_for_people(joules: float | None, expected: str) -> None:
    assert format_energy(joules) == expected


def test_plotting_a_folder_without_samples_is_one_sentence(tmp_path: Path, start: Start) -> None:
    process = start("-m", "harness.monitor", "plot", tmp_path)
    _, errors = process.communicate(timeout=limit_s())
    wanted = f"monitor: {tmp_path}: no samples.csv in it, nor in a folder below it\n"
    assert (process.returncode, errors) == (2, wanted)

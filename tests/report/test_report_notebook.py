"""configs/report.ipynb, the page of the Python API: its cells run on any run and show the report's numbers."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pytest

import harness
from harness.analysis.summary import Collective, Device, IdleCause, RankTraining, Summary
from harness.common.errors import RequestError
from harness.experiment.exercises import DDP
from tests.report.notebook_cells import CODE, NOTEBOOK, WORDS, executed
from tests.study.kit import completed
from tests.synthetic.job import write_traces


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The traces of two ranks; the folder and a kernel in them are named by somebody hostile."""
    place = tmp_path / "a \"q\" 'q' $\\frac <i>"
    write_traces(place)
    return place


def kept(folder: Path, summary: Summary) -> Path:
    """A folder with a summary, and without traces."""
    folder.mkdir(exist_ok=True)
    (folder / "summary.json").write_text(summary.model_dump_json())
    return folder


def test_the_cells_show_what_the_report_shows(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names, figures = executed(monkeypatch, folder)
    said = capsys.readouterr().out
    assert "A step takes 1.00 ms" in names["summary"]._repr_html_()
    assert re.search(r"all_reduce +2 +4 +\d+\.\d\d ", said), said
    labels = [axes.get_xlabel() + axes.get_ylabel() for figure in figures for axes in figure.axes]
    assert len(labels) == len(figures) == 6
    units = [label for label in labels if re.search(r"\((ms|%|GB/s)\)", label)]
    assert units == labels
    device, (axes,) = names["summary"].devices[0], figures[0].axes
    fields = (device.compute_ns, device.exposed_communication_ns, device.exposed_memory_ns, device.idle_ns)
    drawn = [bar[0].get_width() for bar in axes.containers]
    assert drawn == pytest.approx([100 * ns / device.window_ns for ns in fields]) and sum(drawn) == pytest.approx(100)
    parts = figures[0].legends[0].get_texts()
    assert [text.get_text() for text in parts] == ["computing", "communicating alone", "copying", "idle"]


def test_the_newest_run_is_compared_and_its_events_have_the_columns_that_the_notebook_defines(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path / "runs"))
    torch = completed(tmp_path / "runs", "1", DDP()).path / "torch"
    torch.mkdir()
    for trace in folder.iterdir():
        (torch / f"{trace.name}.gz").write_bytes(gzip.compress(trace.read_bytes()))
    write_traces(tmp_path / "other", ranks=1)
    names, figures = executed(monkeypatch, "last", tmp_path / "other")
    said = capsys.readouterr().out
    assert "1.0 ms per step" in said and "same 1.0 (1.0, 1.0)" in said and "1.00 ms replayed" in said
    assert (
        {"communication", "gemm"} <= {*names["table"]["kind"]} and len(names["kernels"]) and len(names["collectives"])
    )
    assert [len(times) for times in names["boxes"]] == [8, 4], "of two ranks, and of one"
    assert ["this run", "the other run"] in [[t.get_text() for t in f.axes[0].get_xticklabels()] for f in figures]
    documented = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", WORDS, re.MULTILINE)))
    assert {*documented} == {*names["table"].columns}


def test_it_is_a_notebook_as_nbformat_4_has_it_nobody_ran_it_and_it_uses_public_functions() -> None:
    """The fields that nbformat.v4.5.schema.json requires, and no other."""
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)
    assert set(NOTEBOOK) == {"nbformat", "nbformat_minor", "metadata", "cells"}
    assert {"name", "display_name"} <= set(NOTEBOOK["metadata"]["kernelspec"])
    for cell in NOTEBOOK["cells"]:
        of_code: dict[str, object] = {"execution_count": None, "outputs": []} if cell["cell_type"] == "code" else {}
        assert set(cell) == {"id", "cell_type", "metadata", "source", *of_code}
        assert re.fullmatch(r"[a-zA-Z0-9-_]{1,64}", cell["id"]) and "".join(cell["source"]).strip()
        assert {name: cell[name] for name in of_code} == of_code
    kinds = [cell["cell_type"] for cell in NOTEBOOK["cells"]]
    assert kinds == ["markdown", "code"] * (len(kinds) // 2) + ["markdown"], "each cell has its sentence above"
    imported = [each for code in CODE for each in re.findall(r"^(?:from|import) (harness.*)$", code, re.MULTILINE)]
    used = {name for each in imported for name in each.removeprefix("harness import ").split(", ")}
    assert used - {*harness.__all__} == {"harness.compare.summaries import compare"}


UNKNOWN = Device(
    rank=None, device=0, source="x", gpu_events=1, kernels=1, window_ns=100, compute_ns=40,
    communication_ns=None, exposed_communication_ns=None, overlapped_communication_ns=None,
    memory_ns=0, exposed_memory_ns=0, idle_ns=None,
    idle_causes=[IdleCause(cause="of a later version", duration_ns=10, share=1.0)],
)  # fmt: skip
NAMED = Collective(kind="$all$", count=1, ranks=1, duration_ns=5, mean_ns=5)
CLOCKS = [RankTraining(rank=r, step_durations_ns=[10**7, 2 * 10**7]) for r in range(9)]


@pytest.mark.parametrize(
    ("given", "figures", "lines"),
    [
        pytest.param(Summary(devices=[UNKNOWN], collectives=[NAMED]), 2, None, id="numbers that are not known"),
        pytest.param(Summary(training=CLOCKS), 1, [10.0, 20.0], id="no trace: by the training's own clock"),
        pytest.param(Summary(), 0, None, id="nothing"),
    ],
)
def test_whatever_a_run_lacks_its_cells_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: Summary, figures: int, lines: list[float] | None
) -> None:
    names, shown = executed(monkeypatch, kept(tmp_path / "run", given), traces=False)
    assert (len(shown), names["summary"]) == (figures, given)
    if lines:
        drawn = shown[0].axes[0].lines
        assert len(drawn) == 8 and np.asarray(drawn[0].get_ydata()).tolist() == lines


def test_a_summary_that_was_kept_is_read_and_other_traces_are_measured(folder: Path, tmp_path: Path) -> None:
    measured = harness.load_summary(sorted(folder.iterdir()))
    assert measured == harness.analyse(folder) == harness.load_summary(folder)
    assert harness.load_summary(kept(tmp_path / "kept", measured)).steps == measured.steps
    with pytest.raises(RequestError, match="there is no such file"):
        harness.load_summary(tmp_path / "gone")

"""`report --notebook`: cells that run from top to bottom whatever the traces and folders are called, in a file that
takes the place of no other. They are executed here without Jupyter, one after the other in one namespace."""

from __future__ import annotations

import gc
import json
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure

import harness
from harness.analysis.summary import Collective, Device, IdleCause, RankTraining, Summary, TraceSource, Window
from harness.cli.main import main
from harness.common.errors import RequestError
from harness.measure.paths import measure_jobs
from harness.report.notebook import _environment, loads, notebook, write_notebook
from tests.synthetic.job import HOSTILE, write_traces

# A line that begins a cell in the template, both quotes, a formula, an end of Jinja, a backslash.
FOLDER = "a \"q\" 'q' '''\n# %%\nraise SystemExit\n{{ none }} {% x %} $\\frac <i>"


def cells_of(text: str, kind: str = "code") -> list[str]:
    return ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == kind]


def executed(text: str, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], list[Figure]]:
    """The names that the cells leave, and the figures that they show. A warning, as of a plot without room, fails."""
    figures: list[Figure] = []

    def show() -> None:
        figures.append(plt.gcf())
        plt.gcf().canvas.draw()
        plt.close("all")

    plt.switch_backend("agg")
    monkeypatch.setattr(plt, "show", show)
    names: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for code in cells_of(text):
            exec(compile(code, "a cell", "exec"), names)
        gc.collect()
    assert not plt.get_fignums(), "a figure that was not shown"
    return names, figures


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The traces of two ranks; the folder and a kernel in them are named by somebody hostile."""
    place = tmp_path / FOLDER
    write_traces(place)
    return place


def written(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """What `export notebook` says."""
    assert main(["export", "notebook", *map(str, words)]) == 0
    return capsys.readouterr().out


# --- what is in it ----------------------------------------------------------------------------------------------------


def test_the_cells_run_and_show_what_the_report_shows(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = folder.parent / "mine.ipynb"
    assert str(file) in written(capsys, folder, "-o", file)
    names, figures = executed(file.read_text(), monkeypatch)
    said = capsys.readouterr().out
    assert names["RUN"] == str(folder)
    assert "A step takes 1.00 ms" in names["summary"]._repr_html_()
    assert re.search(r"all_reduce +2 +4 +\S+ MB", said), said
    labels = [axes.get_xlabel() + axes.get_ylabel() for figure in figures for axes in figure.axes]
    assert len(labels) == len(figures) > 5
    units = [label for label in labels if re.search(r"\((ms|%|GB/s)\)", label)]
    assert units == labels
    parts = figures[1].legends[0].get_texts()
    assert [text.get_text() for text in parts] == ["computing", "communicating alone", "copying", "idle"]


def test_the_split_of_a_rank_in_its_cell_is_that_of_the_summary(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written(capsys, folder, "-o", tmp_path / "a.ipynb")
    names, figures = executed((tmp_path / "a.ipynb").read_text(), monkeypatch)
    device = names["summary"].devices[0]
    (axes,) = next(f.axes for f in figures if f.axes[0].get_xlabel() == "share of the window (%)")
    drawn = [bar[0].get_width() for bar in axes.containers]
    fields = (device.compute_ns, device.exposed_communication_ns, device.exposed_memory_ns, device.idle_ns)
    assert drawn == pytest.approx([100 * ns / device.window_ns for ns in fields])
    assert sum(drawn) == pytest.approx(100)


def test_several_runs_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / name for name in ("1", "2", "3")]
    for number, path in enumerate(paths, 1):
        write_traces(path, ranks=number)
    file = tmp_path / "all.ipynb"
    written(capsys, *paths, "-o", file)
    names, figures = executed(file.read_text(), monkeypatch)
    said = capsys.readouterr().out
    assert names["RUNS"] == dict(zip("abc", map(str, paths), strict=True))
    assert "c against a\n  world_size: a 1, c 3" in said
    assert "step time per step: × 1.000, 95 % interval 1.000 to 1.000 (4 and 4 steps): same (within 5 %)" in said
    assert [t.get_text() for t in figures[0].axes[0].get_xticklabels()] == ["a", "b", "c"]


def test_it_is_a_notebook_as_nbformat_4_has_it(folder: Path) -> None:
    """The fields that nbformat.v4.5.schema.json requires, and no other."""
    summaries = measure_jobs([folder])
    content = json.loads(notebook({"a": str(folder)}, summaries, Window.STEPS))
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    assert set(content) == {"nbformat", "nbformat_minor", "metadata", "cells"}
    assert {"name", "display_name"} <= set(content["metadata"]["kernelspec"])
    for cell in content["cells"]:
        own = {"execution_count", "outputs"} if cell["cell_type"] == "code" else set()
        assert set(cell) == {"id", "cell_type", "metadata", "source"} | own
        assert re.fullmatch(r"[a-zA-Z0-9-_]{1,64}", cell["id"])
        assert all(line.endswith("\n") for line in cell["source"][:-1])
        assert "".join(cell["source"]).strip()
        assert not own or (cell["execution_count"], cell["outputs"]) == (None, [])
    kinds = [cell["cell_type"] for cell in content["cells"]]
    assert kinds == ["markdown", "code"] * (len(kinds) // 2) + ["markdown"], "each cell has its sentence above"
    assert len({cell["id"] for cell in content["cells"]}) == len(kinds)


def test_names_that_others_chose_are_only_in_literals(folder: Path) -> None:
    (summary,) = measure_jobs([folder])
    text = notebook({"a": str(folder)}, [summary], Window.STEPS)
    assert [cell for cell in cells_of(text) if repr(str(folder)) in cell] == [cells_of(text)[1]]
    assert not [cell for cell in cells_of(text, "markdown") if folder.name[:6] in cell]
    assert "raise SystemExit" not in text.splitlines()
    assert HOSTILE[:20] not in text
    assert text == notebook({"a": str(folder)}, [summary], Window.STEPS)


def test_only_a_checkout_is_put_on_the_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summaries = measure_jobs([folder])
    assert "sys.path.append" in notebook({"a": "x"}, summaries, Window.STEPS)
    monkeypatch.setattr("harness.report.notebook.IN_CHECKOUT", False)
    assert "sys.path" not in notebook({"a": "x"}, summaries, Window.STEPS)


def test_a_template_that_forgets_to_quote_is_an_error() -> None:
    with pytest.raises(TypeError, match="without the filter"):
        _environment().from_string("RUN = {{ run }}").render(run="x; import os")


def test_numbers_that_are_not_known_leave_no_cell_without_a_plot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Idle time and communication withheld, a rank that no trace names, a collective without bytes."""
    unknown = Device(
        rank=None, device=0, source="x", gpu_events=1, kernels=1, window_ns=100, compute_ns=40,
        communication_ns=None, exposed_communication_ns=None, overlapped_communication_ns=None,
        memory_ns=0, exposed_memory_ns=0, idle_ns=None,
        idle_causes=[IdleCause(cause="of a later version", duration_ns=10, share=1.0)],
    )  # fmt: skip
    collective = Collective(kind="$all$", count=1, ranks=1, duration_ns=5, mean_ns=5)
    summary = Summary(devices=[unknown], collectives=[collective])
    (tmp_path / "summary.json").write_text(summary.model_dump_json())
    _, figures = executed(notebook({"a": str(tmp_path)}, [summary], Window.STEPS), monkeypatch)
    assert len(figures) == 2
    assert "$all$" in capsys.readouterr().out


def test_a_run_without_traces_shows_the_steps_by_its_own_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = Summary(training=[RankTraining(rank=r, step_durations_ns=[10**7, 2 * 10**7]) for r in range(9)])
    (tmp_path / "summary.json").write_text(summary.model_dump_json())
    _, (figure,) = executed(notebook({"a": str(tmp_path)}, [summary], Window.STEPS), monkeypatch)
    assert len(figure.axes[0].lines) == 8
    assert np.asarray(figure.axes[0].lines[0].get_ydata()).tolist() == [10.0, 20.0]


def test_a_run_without_anything_still_gives_cells_that_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "summary.json").write_text(Summary().model_dump_json())
    names, figures = executed(notebook({"a": str(tmp_path)}, [Summary()], Window.STEPS), monkeypatch)
    assert (figures, names["summary"]) == ([], Summary())


# --- what it loads ----------------------------------------------------------------------------------------------------


def test_a_folder_of_two_jobs_is_loaded_by_the_files_of_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    both = tmp_path / "both"
    both.mkdir()
    for name, ranks in (("one", 1), ("two", 2)):
        for trace in write_traces(tmp_path / name, ranks=ranks):
            trace.rename(both / f"{name}-{trace.name}")
    file = tmp_path / "both.ipynb"
    written(capsys, both, "--window", "gpu", "-o", file)
    names, _ = executed(file.read_text(), monkeypatch)
    assert names["RUNS"] == {
        "a": str(both / "one-rank0.json"),
        "b": [str(both / f"two-rank{rank}.json") for rank in (0, 1)],
    }
    assert sorted(s.world_size for s in names["summaries"].values()) == [1, 2]
    assert {s.window for s in names["summaries"].values()} == {Window.GPU}


def test_what_is_loaded_is_what_was_asked_for_where_that_is_one_job(tmp_path: Path) -> None:
    def of(*paths: str) -> Summary:
        return Summary(sources=[TraceSource(path=str(tmp_path / path), tool="kineto") for path in paths])

    runs = {name: tmp_path / name for name in ("traced", "bare")}
    for run in runs.values():
        (run / "metrics").mkdir(parents=True)
    asked = [runs["bare"], tmp_path / "r0.json", tmp_path / "r1.json", runs["traced"]]
    found = loads(asked, [of("r0.json", "r1.json"), of("traced/torch/rank0.json.gz"), Summary()])
    assert found == {
        "a": [str(tmp_path / "r0.json"), str(tmp_path / "r1.json")],
        "b": str(runs["traced"]),
        "c": str(runs["bare"]),
    }


def test_a_summary_that_was_kept_is_read_and_other_traces_are_measured(folder: Path) -> None:
    files = sorted(folder.iterdir())
    measured = harness.load_summary(files)
    assert measured == harness.analyse(folder) == harness.load_summary(folder)
    kept = folder.parent / "kept"
    kept.mkdir()
    (kept / "summary.json").write_text(measured.model_dump_json())
    assert harness.load_summary(kept).steps == measured.steps
    with pytest.raises(RequestError, match="there is no such file"):
        harness.load_summary(folder.parent / "gone")


# --- where it is, and what is kept ------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder with one trace."""
    place = tmp_path / "run"
    write_traces(place / "torch", ranks=1)
    (place / "run.json").write_text("{}")
    trace = place / "torch" / "rank0.json"
    shutil.move(trace, place / "torch" / "rank0.json.gz")
    return place


def test_a_students_notebook_is_kept_and_an_untouched_one_is_not_doubled(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert str(run / "report.ipynb") in written(capsys, run)
    first = run / "report.ipynb"
    said = written(capsys, run)
    assert (str(first) in said, "is kept" in said) == (True, False)
    assert len(list(run.glob("*.ipynb"))) == 1
    first.write_text(first.read_text().replace("A name", "My name") + " ")
    changed = first.read_bytes()
    said = written(capsys, run)
    assert str(run / "report-2.ipynb") in said
    assert f"{first} differs and is kept" in said
    assert first.read_bytes() == changed
    assert sorted(p.name for p in run.glob("*.ipynb")) == ["report-2.ipynb", "report.ipynb"]
    assert not list(run.glob(".*")), "no temporary file"


def test_traces_that_are_no_run_get_it_here(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(capsys, folder)
    assert (tmp_path / "report.ipynb").is_file()


def test_a_file_that_appears_while_it_is_written_is_not_replaced(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.ipynb"

    def slowly(*arguments: Any) -> str:
        file.write_text("another's")
        return notebook(*arguments)

    monkeypatch.setattr("harness.report.notebook.notebook", slowly)
    with pytest.raises(RequestError, match="exists already and is never overwritten"):
        write_notebook([str(folder)], measure_jobs([folder]), Window.STEPS, file)
    assert file.read_text() == "another's"


REFUSED = {
    "-o taken.ipynb": (2, "exists already and is never overwritten; give another name, for example "
                                  "taken-2.ipynb"),
    "-o dangling.ipynb": (2, "exists already and is never overwritten"),
    "--out=page.html": (2, "a notebook's name ends with .ipynb, as in --out page.ipynb"),
    "--out=traces": (2, "is a folder; give a file, as in --out traces/report.ipynb"),
    "-o taken.ipynb/x.ipynb": (1, "cannot be written"),
    "-o gone/x.ipynb": (1, "cannot be written"),
    "tests": (2, "tests is a run of the communication tests"),
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_refused_is_one_sentence_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_traces(tmp_path / "traces", ranks=1)
    (tmp_path / "taken.ipynb").write_text("mine")
    (tmp_path / "dangling.ipynb").symlink_to("nowhere")
    (tmp_path / "tests" / "comm").mkdir(parents=True)
    (tmp_path / "tests" / "run.json").write_text("{}")
    before = sorted(tmp_path.rglob("*"))
    code, said = REFUSED[words]
    assert main(["export", "notebook", "traces", *words.split()]) == code
    out, err = capsys.readouterr()
    (sentence,) = (line for line in err.splitlines() if line.startswith("slurm.sh: "))
    assert sentence.startswith(("slurm.sh: --out", "slurm.sh: export notebook"))
    assert f": {said}" in sentence
    assert not out
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "taken.ipynb").read_text() == "mine"

"""Where the wheel is installed and there is no checkout: reports, comparisons and exports of traces and of runs."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.wheel.wheel_shared import Installed


def test_it_reports_a_trace_and_writes_the_page(installed: Installed, traces: list[Path]) -> None:
    done = installed("report", traces[0].parent, "--full", "--html", "page.html")
    assert done.returncode == 0, done.stderr
    assert "of 1.00 ms a step" in done.stdout
    assert "gemm bf16" in done.stdout, "the rules of configs/kernels.yaml are applied"
    page = (installed.folder / "page.html").read_text()
    assert "plotly" in page
    assert len(page) > 1_000_000, "Plotly and our own scripts are inside"
    assert installed("export", "csv", traces[0].parent, "-o", "tables").returncode == 0
    assert (installed.folder / "tables" / "kernels.csv").is_file()


def test_it_compares_and_exports(installed: Installed, traces: list[Path]) -> None:
    first, second = traces
    compared = installed("compare", first, second, "--html", "compare.html")
    assert (compared.returncode, compared.stderr.count("Traceback")) == (0, 0), compared.stderr
    assert "Step time, mean over ranks" in compared.stdout
    assert installed("export", "perfetto", first, second, "--out", "merged").returncode == 0
    paraver = installed("export", "paraver", first, second, "--out", "merged")
    assert paraver.returncode == 0, paraver.stderr
    assert {p.name for p in installed.folder.glob("merged*")} >= {"merged.prv", "merged.pcf", "merged.row"}
    (views,) = (line.split(": ", 1)[1] for line in paraver.stdout.splitlines() if "views" in line)
    assert list(Path(views).parent.glob("*.cfg")), "the views are where it says"


def test_parquet_without_pyarrow_is_refused_before_anything_is_written(
    installed: Installed, traces: list[Path]
) -> None:
    before = installed.files()
    done = installed("export", "parquet", *traces, "-o", "tables")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("training-traces: export parquet needs pyarrow: run `pip install 'training-traces[tables]'`")
    assert installed.files() == before


@pytest.mark.parametrize(
    ("words", "named"), [(["report", "nowhere"], "there is no path 'nowhere'"), (["repor"], "report")]
)
def test_an_error_has_no_advice_that_only_a_checkout_can_follow(
    installed: Installed, words: list[str], named: str
) -> None:
    done = installed(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert named in done.stderr
    assert "slurm.sh" not in done.stderr


def test_runs_are_found_by_name_where_harness_runs_or_the_folder_says(installed: Installed, traces: list[Path]) -> None:
    run = installed.folder / "exercises" / "exercise_1_DDP" / "profiler" / "a-run"
    (run / "torch").mkdir(parents=True)
    for trace in traces:
        (run / "torch" / f"{trace.name}.gz").write_bytes(gzip.compress(trace.read_bytes()))
    (run / "run.json").write_text("{}")
    for token in ("last", "a-run", str(run)):
        done = installed("report", token, "--no-html")
        assert done.returncode == 0, done.stderr
        assert "of 1.00 ms a step" in done.stdout

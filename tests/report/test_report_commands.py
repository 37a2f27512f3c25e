"""A run's page and report say what really ran: the variables of its shell, and how its script was edited by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.analysis.summary import Summary
from harness.cli.main import main
from harness.common.run_folder.heartbeats import live_folder
from harness.compare.summaries import compare
from harness.heartbeats.hang import Hang, write_hang
from harness.measure.run_contents import read_contents, with_contents
from harness.report.compare.tables import configuration_table
from harness.report.exercise_0.terminal import render_comm
from harness.report.first_screen import first_screen
from harness.report.page.compose import compose, read_inputs, render_page
from harness.report.tables.terminal import render
from harness.run import Run
from harness.run.record import Status
from harness.study.reference.stored import compared_settings, differing
from tests.launch.launch_shared import a_run

html5lib = pytest.importorskip("html5lib", reason="pip install html5lib: it validates the page")
EDIT = """\
--- as requested
+++ as edited
@@ -3,3 +3,4 @@
 export NCCL_DEBUG=WARN
-  --micro-batch-size 2
+  --micro-batch-size 4
+export TOKEN=hf_abcdefghijkl <script>
"""


def run_of(folder: Path, number: int, **record: object) -> Run:
    run = a_run(folder, f"local-{number}")
    run.write_record(run.record.model_copy(update=record))
    return run


def summary_of(run: Run) -> Summary:
    return with_contents(Summary(), read_contents(run.path))


def page_of(run: Run) -> str:
    summary = summary_of(run)
    page = render_page(compose(summary, read_inputs(run, summary)))
    html5lib.HTMLParser(strict=True).parse(page)
    return page


def test_a_stuck_runs_report_begins_with_who_is_stuck_where_also_if_it_was_cancelled(tmp_path: Path) -> None:
    """Its page has what `status` has: a line for each rank, and what to try."""
    run = run_of(tmp_path, 7)
    where = ("rank 0: sleeping in hang.py:8", "rank 1: waits in all_reduce (hang.py:11)")
    stuck = Hang(
        kind="sleeps", ranks=(0,), waiting=(1,), step=30, since_ns=10**18, place=None, lines=where,
        until_ns=10**18 + 9,
        sentence="in step 30: rank 0 is sleeping in hang.py:8", advice="give that line an end",
    )  # fmt: skip
    live_folder(run.path).mkdir()
    write_hang(run.path, stuck)
    run.write_status(Status(state="cancelled", exit_code=143))
    summary = summary_of(run)
    said = " ".join(first_screen(summary).plain.split())
    assert "The run did not complete: cancelled: stuck since " in said
    assert " in step 30: rank 0 is sleeping in hang.py:8; try: give that line an end." in said
    page = page_of(run)
    assert all(line in page for line in where)
    beat = '{"event":"beat","unix_ns":1,"ranks":[[0,31,"-",1,1,2,314,1,"0.3",-1,1,"",""]],"samples":0,"tokens":0}'
    (live_folder(run.path) / "vm.jsonl").write_text(f"{beat}\n")
    assert "The run did not complete: cancelled." in first_screen(summary_of(run)).plain, "it went on"
    assert "Where each rank was" not in page_of(run)


def test_the_page_shows_variables_and_the_edit(tmp_path: Path) -> None:
    run = run_of(tmp_path, 1, edited=EDIT, inherited={"NCCL_P2P_LEVEL": "LOC", "UCX_TLS": "<img src=x>"})
    page = page_of(run)
    assert "<summary>The run: its script was edited by hand (2 lines differ)</summary>" in page
    assert "+  --micro-batch-size 4\n+export TOKEN=*** &lt;script&gt;" in page and "hf_abc" not in page
    assert "NCCL_P2P_LEVEL=LOC, " in page and "<img" not in page and "\x1b" not in page
    assert "edited by hand" not in page_of(a_run(tmp_path, "local-2"))


def test_the_report_says_in_one_line_that_the_script_was_edited(tmp_path: Path) -> None:
    run, plain = run_of(tmp_path, 7, edited=EDIT), a_run(tmp_path, "local-8")
    said = "Its script was edited by hand (2 lines differ): its page shows them"
    assert render(summary_of(run)).splitlines()[1] == f"{said}." and "edited" not in render(summary_of(plain))
    assert render_comm(run.path).splitlines()[0] == said and "by hand" not in render_comm(plain.path)


def test_report_of_a_communication_test_ends_with_its_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, page = a_run(tmp_path, "local-9"), tmp_path / "page.html"
    (run.path / "comm").mkdir()
    (run.path / "comm/verdict.json").write_text('{"verdict": "VERDICT: 1 problem", "findings": []}')
    assert main(["report", str(run.path), "--html", str(page)]) == 0
    assert capsys.readouterr().out.endswith(f"\nThe page: {page}\n")


def test_compare_names_variables_and_an_edited_script(tmp_path: Path) -> None:
    plain, varied = run_of(tmp_path, 1), run_of(tmp_path, 2, inherited={"NCCL_P2P_LEVEL": "LOC"}, edited=EDIT)
    limits = {"umask": "0022", "ulimit -n": "1024"}
    few, many = (run_of(tmp_path, 4 + i, limits=limits | {"ulimit -n": str(n)}) for i, n in enumerate((1024, 65536)))
    pair = compare(summary_of(few), summary_of(many), ("a", "b"))
    assert [tuple(row) for row in configuration_table([pair]).rows] == [("ulimit -n", "1024", "65536")]
    assert "ulimit -n" not in [
        each.name for each in compare(summary_of(plain), summary_of(few), ("a", "b")).configuration
    ]
    other = run_of(tmp_path, 3, edited=EDIT.replace("size 4", "size 8"))
    a, b, c, foreign = *map(summary_of, (plain, varied, other)), Summary()
    pair = compare(a, b, ("a", "b"))
    rows = [("NCCL_P2P_LEVEL", "–", "LOC"), ("script", "as requested", "edited (2 lines)")]
    assert sorted(map(tuple, configuration_table([pair]).rows)) == rows
    names = [difference.name for difference in compare(b, c, ("b", "c")).configuration]
    assert names == ["NCCL_P2P_LEVEL", "edits of the script"]
    assert "script" not in [difference.name for difference in compare(a, foreign, ("a", "f")).configuration]
    assert "script" in [difference.name for difference in compare(foreign, b, ("f", "b")).configuration]
    assert differing(compared_settings(a), compared_settings(a)) == {}
    assert differing(compared_settings(a), compared_settings(b))["NCCL_P2P_LEVEL"] == (None, "LOC"), "of a reference"


@pytest.mark.parametrize(
    "bad",
    [
        {"inherited": {"NCCL_X": 1}},
        {"limits": {"umask": 1}},
        {"limits": 3},
        {"inherited": 3},
        {"edited": 3},
        {"edited": {"lines": "x"}},
        {"edited": {}},
    ],
)
def test_summaries_with_damaged_records_are_compared_all_the_same(bad: dict[str, object]) -> None:
    assert compare(Summary(run=bad), Summary(run=bad), ("a", "b")).configuration == []

"""The page of a comparison: results on one scale, and nothing that no run shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.analysis.metrics import metrics_by_name
from harness.analysis.summary import Problem, Quality, RankSteps, RankTraining, RecordingVerdict, Summary
from harness.analysis.summary.problem_texts import CROWDED
from harness.cli.main import main
from harness.compare.summaries import compare
from harness.report.compare.breakdown import explained, is_per_token, split_section, steps_in_parts
from harness.report.compare.page import ComparedRuns, compose_comparison
from harness.report.compare.tables import collectives_section, kinds_section
from harness.report.page.compose import figures
from tests.report.conftest import Made
from tests.synthetic.job import HOSTILE, STEP_US, write_traces

STEP_MS = STEP_US / 1000


def changed(s: Summary, step_factor: float, tokens: int = 100) -> Summary:
    """The same job with longer steps of `tokens` tokens; the added time is idle for an unknown reason."""
    assert s.steps.duration is not None
    spread = s.steps.duration.model_copy(update={"median_ns": round(step_factor * s.steps.duration.median_ns)})
    ranks = [
        r.model_copy(update={"durations_ns": [round(step_factor * ns) for ns in r.durations_ns]})
        for r in s.steps.per_rank
    ]
    devices = [
        d.model_copy(
            update={
                "window_ns": round(step_factor * d.window_ns),
                "idle_ns": (d.idle_ns or 0) + round((step_factor - 1) * d.window_ns),
            }
        )
        for d in s.devices
    ]
    steps = s.steps.model_copy(update={"duration": spread, "per_rank": ranks})
    training = [RankTraining(rank=0, tokens=tokens, steps_counted=1)]
    return s.model_copy(update={"steps": steps, "devices": devices, "training": training})


def test_the_part_that_grew_is_what_makes_the_difference(made: Made) -> None:
    runs = (changed(made.summary, 1.0), changed(made.summary, 1.5))
    found = steps_in_parts(("a", "b"), runs, [compare(*runs, ("a", "b"))])
    assert [run.whole for run in found] == pytest.approx([STEP_MS, 1.5 * STEP_MS], rel=0.01)
    assert found[1].parts["compute"] == pytest.approx(found[0].parts["compute"], rel=0.01)
    assert explained(found, 1, per_token=False) == (
        "The difference, +0.5 ms per step, is mostly +0.5 ms idle, cause unknown."
    )
    assert explained(found, 0, per_token=False) == ""


def test_the_parts_add_up_to_the_step_of_the_comparison(made: Made) -> None:
    """Ranks with unlike steps: the median of all their steps is not that of the steps' means over ranks."""
    ranks = [
        RankSteps(rank=0, durations_ns=[10_000_000, 10_000_000, 30_000_000]),
        RankSteps(rank=1, durations_ns=[20_000_000, 40_000_000, 40_000_000]),
    ]
    uneven = made.summary.model_copy(update={"steps": made.summary.steps.model_copy(update={"per_rank": ranks})})
    (run,) = steps_in_parts(("a",), (uneven,), [])
    assert run.whole == pytest.approx(metrics_by_name(uneven)["step_ns"] / 1e6) == pytest.approx(25.0)


def test_steps_of_other_sizes_stand_on_one_scale_per_token(made: Made) -> None:
    runs = (changed(made.summary, 1.0), changed(made.summary, 2.0, tokens=200))
    pairs = [compare(*runs, ("a", "b"))]
    assert is_per_token(runs, pairs)
    first, second = steps_in_parts(("a", "b"), runs, pairs)
    assert first.whole == pytest.approx(10 * STEP_MS, rel=0.01)
    assert second.whole == pytest.approx(first.whole, rel=0.01)
    (figure,) = split_section([first, second], per_token=True).figures
    assert "ms per 1,000 tokens" in figure.layout["xaxis"]["title"]["text"]


def test_collectives_are_counted_and_timed_per_step(made: Made) -> None:
    section = collectives_section([compare(made.summary, made.summary, ("a", "b"))])
    (table,) = section.tables
    (row,) = (row for row in table.rows if row[0] == "all_reduce")
    # Rank 0's takes 100 µs, rank 1's 60 µs: 80 µs a rank.
    assert list(row[1:]) == ["1", "1", "2.1", "2.1", "0.08", "0.08"]


def test_a_kind_in_another_precision_stands_in_the_table(made: Made) -> None:
    kinds = [k.model_copy(update={"precision": "fp32" if k.precision else None}) for k in made.summary.kinds]
    other = made.summary.model_copy(update={"kinds": kinds})
    pair = compare(made.summary, other, ("a", "b"))
    _, table = kinds_section(("a", "b"), (made.summary, other), [pair]).tables
    assert ["gemm", "bf16", "100.0 %", "0.0 %"] in [list(row) for row in table.rows]


@pytest.fixture
def compared(made: Made) -> ComparedRuns:
    """A base, a run half as slow again, and one that is the same."""
    a, b, c = made.summary, changed(made.summary, 1.5), changed(made.summary, 1.0)
    names = ("base", "slow", "same")
    return ComparedRuns(names, (a, b, c), [compare(a, x, ("base", n)) for n, x in (("slow", b), ("same", c))])


def test_the_comparison_comes_first_and_says_whose_times_are_doubtful(compared: ComparedRuns) -> None:
    finding = Problem(severity=RecordingVerdict.DOUBTFUL, what=CROWDED, evidence="n0: 4 ranks on 2 cores")
    a, b, c = compared.summaries
    crowded = c.model_copy(update={"quality": Quality(verdict=RecordingVerdict.DOUBTFUL, problems=[finding])})
    pairs = [compared.pairs[0], compare(a, crowded, ("base", "same"))]
    page = compose_comparison(ComparedRuns(compared.names, (a, b, crowded), pairs))
    first, second = page.said.sentences
    assert first.startswith("b: worse, +50.") and "; b / a is 1.50" in first and "doubtful" not in first
    assert re.match(r"c: same \(within 5 %\), \+0\.0 % ± \S+ %, doubtful;", second), second
    sections = {section.id: section for section in page.before}
    lead = sections["steps"].lead
    assert lead.count("interval is of one run each") == 1 and f"Doubtful: c: {CROWDED}: n0: 4 ranks on 2 cores." in lead
    assert list(sections["results"].tables[0].head) == ["", "a", "b", "c", "b / a", "c / a"]
    (split,) = [figure for figure in figures(page) if figure.id == "time-split"]
    totals = [sum(trace["x"][run] for trace in split.data) for run in range(3)]
    assert totals == pytest.approx([1.0, 1.5, 1.0], rel=0.01), "on one scale, in milliseconds"
    assert split.table is not None and split.table.head[-1] == "c − a"
    *parts, whole = split.table.rows
    assert sum(float(row[2]) for row in parts) == pytest.approx(float(whole[2]), rel=0.02)


def test_jobs_are_called_by_their_ids(made: Made) -> None:
    a, b = (made.summary.model_copy(update={"run": {"job_id": job}}) for job in ("local-1", "local-2"))
    page = compose_comparison(ComparedRuns(("x", "y"), (a, b), [compare(a, b, ("x", "y"))]))
    assert page.title == "Comparison of a · local-1 and b · local-2"


pytest.importorskip("websocket", reason="pip install websocket-client: it speaks with the browser")
from chromium import Chromium  # noqa: E402 - skipped without a way to speak with it


def test_the_page_draws_with_labels_of_each_run_and_no_name_runs_as_code(chromium: Chromium, tmp_path: Path) -> None:
    runs, page = [tmp_path / name for name in ("one", "<b>two")], tmp_path / "page.html"
    for run in runs:
        write_traces(run)
    assert main(["compare", *map(str, runs), "--html", str(page)]) == 0
    assert HOSTILE not in page.read_text() and page.stat().st_size < 6_000_000
    with chromium.page() as browser:
        browser.open(page)
        browser.wait("document.body.dataset.plots === 'ready'")
        ticks = "[...document.querySelectorAll('#plot-time-split .ytick text')].map(t => t.textContent)"
        assert sorted(browser.evaluate(ticks)) == ["a · one", "b · <b>two"]
        assert browser.evaluate("typeof window.hacked") == "undefined" and browser.problems == []
        assert not [r for r in browser.requests if not r.startswith(("data:", "blob:", "file:"))]

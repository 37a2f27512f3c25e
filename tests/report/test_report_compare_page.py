"""The page of a comparison: configuration, then results on one scale, then both timelines from the same moment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.analysis.compare import compare
from harness.analysis.machine import CROWDED
from harness.analysis.summary import Finding, Quality, Summary, Verdict
from harness.cli.main import main
from harness.measure.paths import measure_jobs
from harness.report.compare.page import Compared, compose_comparison
from harness.report.page.compose import figures, render_page
from tests.report.conftest import Made
from tests.report.test_report_page import NAMESPACE, all_of, parse, unpacked
from tests.synthetic.job import write_traces


def slower(s: Summary, factor: float) -> Summary:
    """The same job with longer steps."""
    ranks = [
        r.model_copy(update={"durations_ns": [round(factor * ns) + i for i, ns in enumerate(r.durations_ns)]})
        for r in s.steps.per_rank
    ]
    assert s.steps.duration is not None
    spread = s.steps.duration.model_copy(update={"median_ns": round(factor * s.steps.duration.median_ns)})
    return s.model_copy(update={"steps": s.steps.model_copy(update={"per_rank": ranks, "duration": spread})})


@pytest.fixture
def compared(made: Made) -> Compared:
    """A base, a run half as slow again, and one that is the same."""
    a, b, c = made.summary, slower(made.summary, 1.5), slower(made.summary, 1.0)
    names = ("base", "slow", "same")
    return Compared(names, (a, b, c), [compare(a, x, ("base", n)) for n, x in (("slow", b), ("same", c))])


def test_the_comparison_is_told_first_and_no_difference_is_called_that(compared: Compared) -> None:
    first, second = compose_comparison(compared).sentences
    assert first.startswith("b is 50.") and "slower; its median step takes 1.50" in first
    assert second.startswith("c: no difference seen")


def test_the_page_says_once_what_its_intervals_do_not_know_and_whose_times_are_doubtful(
    compared: Compared,
) -> None:
    finding = Finding(severity=Verdict.DOUBTFUL, what=CROWDED, evidence="n0: 4 ranks on 2 cores")
    a, b, c = compared.summaries
    crowded = c.model_copy(update={"quality": Quality(verdict=Verdict.DOUBTFUL, findings=[finding])})
    pairs = [compared.pairs[0], compare(a, crowded, ("base", "same"))]
    page = compose_comparison(Compared(compared.names, (a, b, crowded), pairs))
    (steps,) = [section for section in page.before if section.id == "steps"]
    assert steps.lead.count("knows one run of each only") == 1
    assert f"Doubtful: c: {CROWDED}: n0: 4 ranks on 2 cores." in steps.lead
    first, second = page.sentences
    assert "doubtful" not in first
    assert second.startswith("c: no difference seen, doubtful")


def test_parts_of_a_step_stand_on_one_scale_in_milliseconds(compared: Compared) -> None:
    (split,) = [f for f in figures(compose_comparison(compared)) if f.id == "time-split"]
    totals = [sum(trace["x"][run] for trace in split.data) for run in range(3)]
    assert totals == pytest.approx([1.0, 1.5, 1.0], rel=0.01)


def test_summaries_alone_make_a_valid_page(compared: Compared) -> None:
    tree = parse(render_page(compose_comparison(compared)))
    assert not all_of(tree, "canvas")
    assert {"configuration", "steps", "split", "results"} <= {e.get("id") for e in all_of(tree, "section")}


def test_two_runs_stand_one_above_the_other_from_the_same_moment(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_traces(tmp_path / name)
    page = tmp_path / "compare.html"
    assert main(["compare", str(tmp_path / "one"), str(tmp_path / "two"), "--html", str(page)]) == 0
    parse(page.read_text())
    packed = unpacked(page, "timeline-data")
    head = json.loads(packed[4 : 4 + int.from_bytes(packed[:4], "little")])
    assert [(strip["run"], strip["steps"][0][1]) for strip in head["strips"]] == [
        *[("a · one", 0)] * 2,
        *[("b · two", 0)] * 2,
    ]


def test_jobs_are_called_by_their_ids(made: Made) -> None:
    a, b = (made.summary.model_copy(update={"run": {"job_id": job}}) for job in ("local-1", "local-2"))
    page = compose_comparison(Compared(("x", "y"), (a, b), [compare(a, b, ("x", "y"))]))
    assert page.title == "Comparison of a · local-1 and b · local-2"


def test_a_folder_is_no_file_for_the_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_traces(tmp_path / "one")
    assert main(["compare", str(tmp_path / "one"), str(tmp_path / "one"), "--html", str(tmp_path)]) == 2
    assert "is a folder; give a file" in capsys.readouterr().err


def test_more_than_words_tell_the_results(compared: Compared) -> None:
    tree = parse(render_page(compose_comparison(compared)))
    results = next(e for e in all_of(tree, "section") if e.get("id") == "results")
    cells = ["".join(cell.itertext()) for cell in results.iter(NAMESPACE + "th")]
    assert cells[:6] == ["", "a", "b", "c", "b / a", "c / a"]


def test_measured_again_the_jobs_are_the_same(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_traces(tmp_path / name)
    a, b = (measure_jobs([tmp_path / name])[0] for name in ("one", "two"))
    (sentence,) = compose_comparison(
        Compared(("one", "two"), (a, b), [compare(a, b, ("one", "two"))])
    ).sentences
    assert "no difference seen" in sentence

"""A series of runs: compute per unit of work against the smallest run, and why that is not known."""

from __future__ import annotations

from typing import Any

import pytest

from harness.analysis.job.pop import Times, from_times
from harness.analysis.scaling import how_it_scales, scaling
from harness.analysis.summary import RankTraining, Summary
from harness.compare.summaries import compare_series
from harness.report.compare.page import ComparedRuns, compose_comparison
from harness.report.compare.terminal import render_comparisons

STEPS = 5


def run(devices: int, useful_ns: int, work: int | None, of: str = "tokens", **more: Any) -> Summary:
    """`devices` devices that compute `useful_ns` each in every step of 1,000 ns; `work` tokens of all in a step."""
    each = Times(useful_ns * STEPS, useful_ns * STEPS, 1000 * STEPS)
    counts: dict[str, Any] = {of: work * STEPS // devices} if work else {}
    training = [RankTraining(rank=r, steps_counted=STEPS, **counts, **more) for r in range(devices)]
    return Summary(pop=from_times([each] * devices, STEPS), training=training)


def names(*runs: Summary) -> list[str]:
    return [f"run {i}" for i in range(len(runs))]


@pytest.mark.parametrize(
    ("runs", "scalability", "kind"),
    [
        # 4 devices compute 250 each in place of 900 in one: 1,000 in all
        ((run(4, 250, 64), run(1, 900, 64), run(2, 450, 64)), [0.9, 1.0, 1.0], "strong"),
        *(((run(1, 400, 10, of), run(8, 500, 80, of)), [1.0, 0.8], "weak") for of in ("tokens", "samples")),
        ((run(1, 400, 10), run(2, 400, 30)), [1.0, 1.5], "neither strong nor weak scaling: compute is counted per tok"),
    ],
)
def test_compute_is_counted_per_unit_of_work_against_the_smallest_run(
    runs: tuple[Summary, ...], scalability: list[float], kind: str
) -> None:
    rows = scaling(names(*runs), runs)
    parallel = [row.pop.parallel for row in runs if row.pop is not None]
    assert [row.computation_scalability for row in rows] == pytest.approx(scalability)
    assert [row.global_efficiency for row in rows] == pytest.approx(
        [a * b for a, b in zip(scalability, parallel, strict=True)]
    )
    assert how_it_scales(rows).startswith(kind)


@pytest.mark.parametrize(
    ("runs", "unknown"),
    [
        *(
            ((run(1, 400, 10), other), "neither the tokens nor the samples of a step are recorded in every run")
            for other in (run(2, 400, None), run(2, 400, 10, "samples"))
        ),
        ((run(1, 4, 1, model="a"), run(2, 4, 1, model="b")), "the runs train several models: a, b"),
    ],
)
def test_what_is_no_series_is_said_and_not_guessed(runs: tuple[Summary, ...], unknown: str) -> None:
    rows = scaling(names(*runs), runs)
    assert rows and {row.unknown for row in rows} == {unknown}
    assert all(row.computation_scalability is None and row.global_efficiency is None for row in rows)
    assert how_it_scales(rows) == "" or rows[0].work_per_step is not None


def test_a_run_without_efficiencies_is_in_the_series_with_its_reason() -> None:
    without = run(4, 400, 40).model_copy(update={"pop": None})
    runs = run(1, 400, 10), without, run(2, 500, 20)
    rows = scaling(names(*runs), runs)
    assert [row.computation_scalability for row in rows] == [1.0, None, pytest.approx(0.8)]
    assert rows[1].unknown == "its efficiencies are not known"


def test_runs_on_as_many_devices_are_no_series() -> None:
    runs = run(2, 400, 10), run(2, 500, 10)
    assert scaling(names(*runs), runs) == []


def test_every_pair_of_a_comparison_knows_its_place_in_the_whole_series() -> None:
    runs = run(4, 250, 64), run(1, 900, 64), run(2, 500, 64)
    pairs = compare_series(list(zip("abc", runs, strict=True)))
    assert [[row.run for row in pair.scaling] for pair in pairs] == [["a", "b"], ["a", "c"]]
    assert pairs[1].scaling[1].computation_scalability == pytest.approx(0.9), "against b, which is smallest"


def test_terminal_and_page_show_the_series_side_by_side() -> None:
    runs = run(1, 900, 64), run(4, 250, 64)
    pairs = compare_series(list(zip("ab", runs, strict=True)))
    (section,) = [x for x in compose_comparison(ComparedRuns(("a", "b"), runs, pairs)).before if x.id == "efficiency"]
    (table,) = section.tables
    shown = {row[0]: list(row[1:]) for row in table.rows}
    assert shown["devices"] == ["1", "4"] and shown["tokens per step"] == ["64", "64"]
    assert shown["· computation scalability"] == ["100.0 %", "90.0 %"]
    assert shown["global efficiency"] == ["90.0 %", "22.5 %"]
    assert shown["· · · transfer"] == ["not known", "not known"]
    assert "Strong scaling" in section.lead and "ideal network was not replayed" in section.lead
    text = render_comparisons(pairs, runs)
    assert "· computation scalability 100.0 % 90.0 %" in [" ".join(line.split()) for line in text.splitlines()]
    assert "Strong scaling" in text and "Serialisation and transfer are not known for a, b" in text

"""The pace of a whole training in its report: from its ranks' metrics to the sentence and the mark in the plot."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from harness.analysis.summary import PaceChange, Summary
from harness.common.run_folder.run_files import METRICS
from harness.measure.jobs import summarise
from harness.measure.run_files import read_training
from harness.measure.step_times import RankStepTimes, pace_of
from harness.report.page.inputs import gather
from harness.report.page.steps import steps_section
from harness.report.tables.terminal import render
from harness.run import Run
from tests.analysis.pace_series import Noise, Planted, Series, simulated

QUIET = Noise(sigma=0.02, persistence=0.3, tails=4, shared=0.5, period=0, peak=1, turn=0, drift=0, warm_up=3)
STEPS, STEP, RANK = 200, 120, 2


def _written(run: Path, series: Series, first: int = 0, profiled: range = range(0), *, with_own: bool = False) -> Path:
    """A run with the metrics of such a training. first: the number of its first step. profiled: take twice as long.
    with_own: the heartbeats have told the times without waiting."""
    for rank, steps in enumerate(series.step):
        lines = [{"event": "start", "rank": rank, "world_size": len(series.step), "device": "cpu"}]
        lines += [
            {
                "event": "step",
                "rank": rank,
                "step": first + number,
                "phase": "active" if number in profiled else "after",
                "step_ns": round(ns) * (2 if number in profiled else 1),
                "unix_ns": number * 10**9,
                "core_wait_ns": 0,
                **{f"{name}_ns": round(values[rank, number]) for name, values in series.phases.items()},
            }
            for number, ns in enumerate(steps)
        ]
        told = range(0, len(steps), 40) if with_own else ()
        lines += [
            {
                "event": "own",
                "rank": rank,
                "steps": [first + number for number in range(begin, begin + 40)],
                "own_ns": [round(ns) for ns in series.own[rank, begin : begin + 40]],
            }
            for begin in told
        ]
        lines.append({"event": "end", "rank": rank, "status": "completed", "steps": len(steps)})
        file = METRICS.path(run, rank)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return run


def _slower() -> Series:
    return simulated(4, STEPS, QUIET, Planted(STEP, 0.3, "data", RANK), np.random.default_rng(0))


def _steady() -> Series:
    return simulated(4, STEPS, QUIET, None, np.random.default_rng(0))


def _times(run: Path) -> RankStepTimes:
    times = RankStepTimes()
    read_training(Run(run).metrics(), times)
    return times


def test_a_change_has_the_numbers_of_the_trainings_steps(tmp_path: Path) -> None:
    ((change,), _) = pace_of(_times(_written(tmp_path, _slower(), first=1000)))
    assert abs(change.step - (1000 + STEP)) <= 2
    assert (change.ranks, change.named, change.phase, change.last_step) == ([RANK], True, "data", None)
    assert change.evidence.startswith(f"time without waiting for other ranks, of rank {RANK}: ")


@pytest.mark.parametrize("with_own", [False, True])
def test_the_rank_of_a_longer_backward_is_known_by_its_own_time(tmp_path: Path, with_own: bool) -> None:
    series = simulated(4, STEPS, QUIET, Planted(STEP, 0.3, "backward", RANK), np.random.default_rng(0))
    ((change,), slowest) = pace_of(_times(_written(tmp_path, series, with_own=with_own)))
    assert abs(change.step - STEP) <= 2
    assert (change.named, change.phase) == (with_own, "backward")
    assert not with_own or change.ranks == [RANK]
    assert slowest is not None


def test_profiled_steps_are_left_out_and_phases_with_collectives_name_nobody(tmp_path: Path) -> None:
    steady = _written(tmp_path / "steady", _steady(), profiled=range(60, 100))
    assert pace_of(_times(steady))[0] == []
    ((change,), _) = pace_of(_times(_written(tmp_path / "slower", _slower())), {"data loading", "forward"})
    assert not change.named and change.ranks == [0, 1, 2, 3]


def test_without_metrics_there_is_neither(tmp_path: Path) -> None:
    assert pace_of(_times(tmp_path)) == ([], None)


def test_a_damaged_line_is_left_out(tmp_path: Path) -> None:
    run = _written(tmp_path, _slower())
    file = METRICS.path(run, 0)
    odd: list[dict[str, object]] = [{"step": "7"}, {"step": -1}, {"step": 1 << 60}, {"step": 5, "step_ns": None}, {}]
    more = "".join(f"{json.dumps({'event': 'step', 'rank': 0, **each})}\n" for each in odd)
    file.write_text(file.read_text(encoding="utf-8") + more + "{", encoding="utf-8")
    ((change,), _) = pace_of(_times(run))
    assert abs(change.step - STEP) <= 2


def test_terminal_and_page_tell_the_change(tmp_path: Path) -> None:
    run = _written(tmp_path, _slower())
    (summary,) = summarise([], run_folders=[run])
    text = " ".join(render(summary, 100).split())
    assert "times as slow) from step 1" in text and f"on rank {RANK}, in data loading." in text
    section = steps_section(summary, gather(Run(run)))
    assert f"on rank {RANK}, in data loading." in section.lead
    figure = next(each for each in section.figures if each.id == "step-time")
    lines = [shape for shape in figure.layout["shapes"] if shape["type"] == "line"]
    assert [line["x0"] for line in lines] == [change.step - 0.5 for change in summary.pace_changes]
    assert "a new pace begins" in [trace["name"] for trace in figure.data]


def test_many_changes_have_a_table() -> None:
    change = PaceChange(step=100, before_ns=40_000_000, after_ns=50_000_000, ratio=1.25,
                        ranks=list(range(20)), named=True, phase="forward")  # fmt: skip
    slower = [change.model_copy(update={"step": 100 * n}) for n in range(1, 8)]
    text = " ".join(render(Summary(pace_changes=slower), 100).split())
    assert "3 more changes of pace are in the table." in text
    assert "0, 1, 2, 3, 4, 5, 6, 7 and 12 more" in text

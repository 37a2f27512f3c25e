"""`slurm.sh whatif`: the table, its commands, refusals, and predictions held against runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness import what_if as replayed
from harness.analysis.summary import Problem, Quality, RecordingVerdict, Summary, WhatIf, Withheld
from harness.cli.read import whatif_verify
from harness.common.errors import RequestError, WorkError
from harness.experiment.exercises import DDP, Experiment
from harness.explain.predictions import trials, verify
from harness.run import Run, all_runs
from tests.report.given_summary import MS
from tests.report.test_report_causes import faulty, job, replay, what_if
from tests.study.kit import Say, completed
from tests.synthetic.job import write_traces

STALLED = faulty("host-stall,ms=20")
CHANGES = (what_if("no-tiny-kernels", bound=True), what_if("no-host-stall-forward"), what_if("gas-x2", per=2))


def stepping(ms: float) -> Summary:
    """A run whose step takes so long."""
    return Summary(replay=replay().model_copy(update={"step_ns": round(ms * MS)}))


def stored(run: Run, *changes: WhatIf, **more: Any) -> None:
    """Give the run a summary with these what-ifs."""
    summary = job(replayed=replay(20, 4, 0.0, *changes), **STALLED).model_copy(update=more)
    run.summary.write_text(summary.model_dump_json(), encoding="utf-8")


@pytest.fixture
def run(runs: Path) -> Run:
    """A completed run with a stored summary."""
    made = completed(runs, "local-1", DDP(gpus_per_node=2, faults=STALLED["experiment"]["faults"]))
    stored(made, *CHANGES)
    return made


def test_each_change_that_an_option_makes_has_its_command_below(run: Run, say: Say) -> None:
    said = say("whatif", "local-1")
    lines = said.out.splitlines()
    row = next(i for i, line in enumerate(lines) if line.startswith("  no-host-stall-forward"))
    assert said.code == 0 and " ".join(lines[row].split()) == (
        "no-host-stall-forward 70.0 ms 68.0 to 72.0 ms 22.0 % prediction"
    )
    assert lines[row + 1].strip() == "bash slurm.sh -e 1"
    assert lines[row - 1].split()[-2:] == ["a", "bound"], "a bound has no command"
    told = say("whatif", "local-1", "--json").json
    assert (told["no_answer"], told["error"]) == (None, 0)
    assert [change["command"] for change in told["what_ifs"]] == [
        None,
        "bash slurm.sh -e 1",
        "bash slurm.sh -e 1 -- --fault host-stall,ms=20 --gradient-accumulation-steps 2",
    ]


HIDDEN = Quality(withheld=[Withheld(field="replay.what_ifs", reason="find it")])


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            {"replay": replay(error=0.034)},
            "the replay differs from the run by 3.4 % of the step: no answer (at most 2.0 % is",
        ),
        ({"replay": None}, "no replay is possible"),
        ({"quality": HIDDEN}, "find it"),
    ],
)
def test_a_replay_that_differs_and_a_mystery_give_no_answer(
    run: Run, say: Say, more: dict[str, Any], words: str
) -> None:
    stored(run, *CHANGES, **more)
    said = say("whatif", "local-1")
    assert said.code == 1 and words in said.words and "no-host-stall-forward" not in said.out


def test_traces_of_any_origin_are_answered_without_commands(tmp_path: Path, say: Say) -> None:
    write_traces(tmp_path / "traces")
    said = say("whatif", str(tmp_path / "traces"))
    assert said.code == 0 and "prediction" in said.out and "slurm.sh" not in said.out
    assert "micro-batch-x2" in [change.name for change in replayed(tmp_path / "traces").what_ifs]
    with pytest.raises(RequestError, match="no option of this run"):
        trials(job(replayed=replay()), 1)


BOUND = what_if("no-noisy-neighbour", bound=True, high_ns=None)
FEWER = what_if("one-bucket", low_ns=None, at_most=True)


@pytest.mark.parametrize(
    ("change", "now_ms", "then_ms", "held"),
    [
        (what_if("no-host-stall-forward"), 100, 76, True),  # 11 % slower than the replayed one: so is the prediction
        (what_if("no-host-stall-forward"), 100, 80, False),
        (what_if("no-host-stall-forward"), 100, 74, False),
        (what_if("gas-x2", per=2), 90.1, 140, True),  # by the work of one step of now
        (BOUND, 90.1, 80, True),
        (BOUND, 90.1, 40, False),
        (FEWER, 90.1, 40, True),
        (FEWER, 90.1, 80, False),
        (what_if("gas-x2", low_ns=None, high_ns=None), 90, 70, None),
    ],
)
def test_the_prediction_is_scaled_to_the_unchanged_run_and_held_against_its_interval(
    change: WhatIf, now_ms: float, then_ms: float, held: bool | None
) -> None:
    found = verify(job(replayed=replay()), change, stepping(now_ms), stepping(then_ms))
    assert found.held is held
    assert found.step.b.value == then_ms * MS / (change.per or 1)
    ends = (change.step_ns, change.low_ns, change.high_ns)
    scaled = [None if ns is None else pytest.approx(ns * now_ms / 90.1) for ns in ends]
    assert [found.step.a.value, found.step.a.low, found.step.a.high] == scaled


def test_a_step_that_is_not_known_is_an_error() -> None:
    with pytest.raises(WorkError, match="its step time is not known"):
        verify(job(replayed=replay()), what_if("gas-x2"), stepping(90), Summary())


@pytest.mark.parametrize(("same", "expected"), [(True, 70 * 1.2), (False, 70)])
def test_the_prediction_is_scaled_by_what_the_same_operators_took(same: bool, expected: float) -> None:
    now, then = stepping(90.1), stepping(168)
    for run, ms in ((now, 40), (then, 96)):
        assert run.replay is not None
        run.replay = run.replay.model_copy(update={"model_work_ns": ms * MS})
    twice = what_if("micro-batches-x2", per=2, same_work=same)
    found = verify(job(replayed=replay()), twice, now, then)
    assert found.step.a.value == pytest.approx(expected * MS)
    assert found.step.b.value == 84 * MS and found.slower == pytest.approx(1.2 if same else 1)


@pytest.fixture
def launched(runs: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Experiment, list[str]]]:
    """What was launched; each run takes 100 ms a step, without the fault 77 ms."""
    asked: list[tuple[Experiment, list[str]]] = []

    def make(experiment: Experiment, site: object, command: list[str], quiet: bool) -> Run:
        asked.append((experiment, command))
        made = completed(runs, f"local-{len(all_runs()) + 1}", experiment)
        slow = getattr(experiment, "faults", ())
        made.summary.write_text(stepping(100 if slow else 77).model_dump_json(), encoding="utf-8")
        return made

    monkeypatch.setattr(whatif_verify, "_made", make)
    return asked


Launched = list[tuple[Experiment, list[str]]]


def test_verifying_makes_an_unchanged_run_then_the_changed_one(run: Run, launched: Launched, say: Say) -> None:
    said = say("whatif", "--verify", "local-1")
    (same, again), (changed, command) = launched
    assert same == run.record.experiment and again[:3] == ["slurm.sh", "-e", "1"] and "host-stall,ms=20" in again
    assert changed == DDP() and command == ["slurm.sh", "-e", "1"]
    assert said.out.splitlines()[-6:] == [
        "verified: no-host-stall-forward",
        "  unchanged, local-2: 100 ms a step",
        "  measured: local-3",
        "                         predicted  measured      difference  verdict",
        "  no-host-stall-forward    77.7 ms   77.0 ms  −0.9 % ± 2.8 %     same",
        "  the interval of the prediction is 75.5 to 79.9 ms (95 %): it held",
    ]


BUSY = Quality(
    verdict=RecordingVerdict.DOUBTFUL, problems=[Problem.doubt("others used the cores while this was measured", "n0")]
)


def test_a_doubtful_recording_is_not_judged(run: Run, launched: Launched, say: Say) -> None:
    stored(run, *CHANGES, quality=BUSY)
    told = say("whatif", "local-1", "--json").json["doubts"]
    assert told[0] == "These numbers are doubtful: others used the cores while this was measured."
    said = say("whatif", "local-1", "--verify")
    assert (said.code, launched) == (3, []) and told[0] in said.words
    assert "--verify cannot tell: this run has a recording that is doubtful (others used" in said.words
    doubtful = stepping(70).model_copy(update={"quality": BUSY})
    found = verify(job(replayed=replay()), what_if("a"), stepping(90), doubtful)
    assert found.held is None and found.step.why.startswith("the run with the change has a")


def test_an_interval_that_did_not_hold_is_a_measurement(run: Run, launched: Launched, say: Say) -> None:
    stored(run, what_if("no-host-stall-forward", step_ns=40 * MS, low_ns=39 * MS, high_ns=41 * MS))
    *_, row, judgement = say("whatif", "local-1", "--verify").out.splitlines()
    assert row.endswith("44.4 ms   77.0 ms  +73.4 % ± 4.3 %    worse")
    outside = "the step is 31.5 ms outside of it. This is a measurement of how accurate such a prediction is"
    assert judgement.endswith(outside)


def test_verified_numbers_are_in_the_json(run: Run, launched: Launched, say: Say) -> None:
    first, second = say("whatif", "last", "--verify", "2", "--json").json["verified"]
    assert (first["step_time"]["verdict"], first["step_time"]["noise"], first["held"]) == ("same", "prediction", True)
    assert second["name"] == "gas-x2"
    assert [asked for asked, _ in launched[::2]] == 2 * [run.record.experiment]

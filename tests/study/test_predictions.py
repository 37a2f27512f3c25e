"""`slurm.sh whatif`: the table, its commands, refusals, and predictions held against runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import what_if as replayed
from harness.analysis.summary import Problem, Quality, RecordingVerdict, Summary, Withheld
from harness.cli.main import main
from harness.cli.parser import parameters_of
from harness.cli.read import whatif_verify
from harness.cli.read.whatif import whatif
from harness.common.errors import RequestError, WorkError
from harness.experiment.exercises import DDP, Experiment
from harness.explain.predictions import trials, verify
from harness.run import Run
from tests.report.given_summary import MS
from tests.report.test_report_causes import faulty, job, replay, what_if
from tests.study.kit import completed
from tests.synthetic.job import write_traces

STALLED = faulty("host-stall,ms=20")
CHANGES = (what_if("no-tiny-kernels", bound=True), what_if("no-host-stall-forward"), what_if("gas-x2", per=2))


def stepping(ms: float) -> Summary:
    """A run whose step takes so long."""
    return Summary(replay=replay().model_copy(update={"step_ns": round(ms * MS)}))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A completed run with a stored summary."""
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path))
    made = completed(tmp_path, "local-1", DDP(gpus_per_node=2, faults=STALLED["experiment"]["faults"]))
    stored = job(replayed=replay(20, 4, 0.0, *CHANGES), **STALLED)
    made.summary.write_text(stored.model_dump_json(), encoding="utf-8")
    return made


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def test_each_change_that_an_option_makes_has_its_command_below(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", "local-1"]) == 0
    lines = said(capsys).splitlines()
    row = next(i for i, line in enumerate(lines) if line.startswith("  no-host-stall-forward"))
    assert lines[row].split() == [
        "no-host-stall-forward",
        "70.0",
        "ms",
        "68.0",
        "to",
        "72.0",
        "ms",
        "22.0",
        "%",
        "prediction",
    ]
    assert lines[row + 1].strip() == "bash slurm.sh -e 1"
    assert lines[row - 1].split()[-2:] == ["a", "bound"], "a bound has no command"


def test_json_has_every_number_and_command(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", "local-1", "--json"]) == 0
    told = json.loads(said(capsys))
    assert told["no_answer"] is None and told["error"] == 0
    assert [change["command"] for change in told["what_ifs"]] == [
        None,
        "bash slurm.sh -e 1",
        "bash slurm.sh -e 1 -- --fault host-stall,ms=20 --gradient-accumulation-steps 2",
    ]


@pytest.mark.parametrize(
    ("replay_of_run", "words"),
    [
        (replay(error=0.034), "the replay differs from the run by 3.4 % of the step: no answer (at most 2.0 % is"),
        (None, "no replay is possible"),
    ],
)
def test_a_replay_that_differs_from_the_run_gives_no_answer(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], replay_of_run: Any, words: str
) -> None:
    path = tmp_path / "summary.json"
    path.write_text(job().model_copy(update={"replay": replay_of_run}).model_dump_json(), encoding="utf-8")
    assert main(["whatif", str(path)]) == 1
    assert words in " ".join(said(capsys).split())


def test_a_mystery_is_not_told(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = job(replayed=replay(20, 4, 0.0, *CHANGES), **STALLED)
    quality = whole.quality.model_copy(update={"withheld": [Withheld(field="replay.what_ifs", reason="find it")]})
    path = tmp_path / "summary.json"
    path.write_text(whole.model_copy(update={"quality": quality}).model_dump_json(), encoding="utf-8")
    assert main(["whatif", str(path)]) == 1
    text = said(capsys)
    assert "find it" in text and "no-host-stall-forward" not in text


def test_traces_of_any_origin_are_answered_without_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_traces(tmp_path / "traces")
    assert main(["whatif", str(tmp_path / "traces")]) == 0
    text = said(capsys)
    assert "prediction" in text and "slurm.sh" not in text
    names = [change.name for change in replayed(tmp_path / "traces").what_ifs]
    assert "micro-batch-x2" in names
    with pytest.raises(RequestError, match="no option of this run"):
        trials(job(replayed=replay()), 1)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["local-1", "local-1", "--verify"], "--verify makes runs of one run: give one, not 2"),
        (["local-1", "--verify", "0"], "--verify: got '0', takes a whole number ≥ 1"),
        (["local-2"], "there is no run 'local-2'"),
        (["local-1", "--times", "3"], "--times 3 is how often --verify makes its runs: add --verify"),
    ],
)
def test_a_wrong_request_is_one_sentence(
    run: Run, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    assert main(["whatif", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_only_changes_that_an_option_makes_are_verified() -> None:
    found = trials(job(replayed=replay(20, 4, 0.0, *CHANGES), **STALLED), 3)
    assert [trial.what_if.name for trial in found] == ["no-host-stall-forward", "gas-x2"]
    assert [trial.changed for trial in found] == [
        DDP(),
        DDP(faults=("host-stall,ms=20",), gradient_accumulation_steps=2),
    ]


@pytest.mark.parametrize(("measured", "held"), [(76, True), (80, False), (74, False)])
def test_the_prediction_is_scaled_to_the_unchanged_run(measured: float, held: bool) -> None:
    """That run is 11 % slower than the one that was replayed: so are the prediction and its interval."""
    predicted = job(replayed=replay())
    found = verify(predicted, what_if("no-host-stall-forward"), [stepping(100)], [stepping(measured)])
    assert found.step.a.value == pytest.approx(70 / 90.1 * 100 * MS)
    assert found.step.a.low == pytest.approx(68 / 90.1 * 100 * MS)
    assert found.step.a.high == pytest.approx(72 / 90.1 * 100 * MS)
    assert found.held is held


def test_a_larger_step_is_measured_by_the_work_of_one_of_now() -> None:
    found = verify(job(replayed=replay()), what_if("gas-x2", per=2), [stepping(90.1)], [stepping(140)])
    assert found.step.b.value == 70 * MS and found.held


@pytest.mark.parametrize(("same", "expected"), [(True, 70 * 1.2), (False, 70)])
def test_the_prediction_is_scaled_by_what_the_same_operators_took(same: bool, expected: float) -> None:
    now, then = stepping(90.1), stepping(168)
    for run, ms in ((now, 40), (then, 96)):
        assert run.replay is not None
        run.replay = run.replay.model_copy(update={"model_work_ns": ms * MS})
    twice = what_if("micro-batches-x2", per=2, same_work=same)
    found = verify(job(replayed=replay()), twice, [now], [then])
    assert found.step.a.value == pytest.approx(expected * MS)
    assert found.step.b.value == 84 * MS and found.slower == pytest.approx(1.2 if same else 1)


def test_a_bound_holds_above() -> None:
    bound = what_if("no-noisy-neighbour", bound=True, high_ns=None)
    assert verify(job(replayed=replay()), bound, [stepping(90.1)], [stepping(80)]).held
    assert not verify(job(replayed=replay()), bound, [stepping(90.1)], [stepping(40)]).held


def test_what_is_at_most_so_long_holds_below() -> None:
    fewer = what_if("one-bucket", low_ns=None, at_most=True)
    assert verify(job(replayed=replay()), fewer, [stepping(90.1)], [stepping(40)]).held
    assert not verify(job(replayed=replay()), fewer, [stepping(90.1)], [stepping(80)]).held


def test_without_an_interval_nothing_holds() -> None:
    unknown = what_if("gas-x2", low_ns=None, high_ns=None)
    assert verify(job(replayed=replay()), unknown, [stepping(90)], [stepping(70)]).held is None
    with pytest.raises(WorkError, match="its step time is not known"):
        verify(job(replayed=replay()), unknown, [stepping(90)], [Summary()])


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Experiment, list[str]]]]:
    """What was launched; each run takes 100 ms a step, without the fault 77 ms."""
    asked: list[tuple[Experiment, list[str]]] = []

    def make(experiment: Experiment, site: object, command: list[str], quiet: bool) -> Run:
        asked.append((experiment, command))
        made = completed(tmp_path, f"local-{1 + len(asked)}", experiment)
        slow = getattr(experiment, "faults", ())
        made.summary.write_text(stepping(100 if slow else 77).model_dump_json(), encoding="utf-8")
        return made

    monkeypatch.setattr(whatif_verify, "_made", make)
    yield asked


def test_verifying_makes_an_unchanged_run_then_the_changed_one(
    run: Run, launched: list[tuple[Experiment, list[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["whatif", "--verify", "local-1"]) == 0
    (same, again), (changed, command) = launched
    assert same == run.record.experiment and again[:3] == ["slurm.sh", "-e", "1"] and "host-stall,ms=20" in again
    assert changed == DDP() and command == ["slurm.sh", "-e", "1"]
    assert said(capsys).splitlines()[-6:] == [
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


def test_a_doubtful_recording_is_not_judged(
    run: Run, launched: list[tuple[Experiment, list[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    stored = job(replayed=replay(20, 4, 0.0, *CHANGES), **STALLED).model_copy(update={"quality": BUSY})
    run.summary.write_text(stored.model_dump_json(), encoding="utf-8")
    assert main(["whatif", "local-1", "--verify"]) == 3
    assert launched == [] and "--verify cannot tell: this run has a recording that is doubtful (others used" in (
        " ".join(capsys.readouterr().err.split())
    )
    found = verify(
        job(replayed=replay()), what_if("a"), [stepping(90)], [stepping(70).model_copy(update={"quality": BUSY})]
    )
    assert found.held is None and found.step.why.startswith("a run with the change has a")


def test_an_interval_that_did_not_hold_is_a_measurement(
    run: Run, launched: list[tuple[Experiment, list[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    far = what_if("no-host-stall-forward", step_ns=40 * MS, low_ns=39 * MS, high_ns=41 * MS)
    run.summary.write_text(job(replayed=replay(20, 4, 0.0, far), **STALLED).model_dump_json(), encoding="utf-8")
    assert main(["whatif", "local-1", "--verify"]) == 0
    first = said(capsys).splitlines()
    assert first[-2].endswith("44.4 ms   77.0 ms  +73.4 % ± 4.3 %    worse")
    assert first[-1].endswith(
        "the step is 31.5 ms outside of it. This is a measurement of how accurate such a prediction is"
    )


def test_several_runs_are_made_in_turn_and_their_means_compared(
    run: Run, launched: list[tuple[Experiment, list[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["whatif", "local-1", "--verify", "--times", "2"]) == 0
    assert [bool(getattr(asked, "faults", ())) for asked, _ in launched] == [True, False, True, False]
    unchanged, measured = said(capsys).splitlines()[-5:-3]
    assert unchanged == "  unchanged, mean of local-2, local-4: 100 ms a step"
    assert measured == "  measured: mean of local-3, local-5"
    two = verify(job(replayed=replay()), what_if("gas-x2"), [stepping(90), stepping(110)], [stepping(50)] * 2)
    assert two.unchanged_ns == 100 * MS


def test_verified_numbers_are_in_the_json(
    run: Run, launched: list[tuple[Experiment, list[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["whatif", "last", "--verify", "2", "--json"]) == 0
    first, second = json.loads(said(capsys))["verified"]
    assert (first["unchanged_runs"], first["changed_runs"], first["held"]) == (["local-2"], ["local-3"], True)
    assert (first["step_time"]["verdict"], first["step_time"]["noise"]) == ("same", "prediction")
    assert second["name"] == "gas-x2"
    assert [asked for asked, _ in launched[::2]] == 2 * [run.record.experiment], "`last` stays the run that it was"
    assert parameters_of(whatif)["verify"].alone == "1"

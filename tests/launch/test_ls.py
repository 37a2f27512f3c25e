"""`ls` shows each run's step time from what is stored, fits the terminal, and says what it leaves out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.summary import RankSteps, RankTraining, Spread, Steps, Summary
from harness.cli.main import main
from tests.launch.launch_shared import a_run

MS = 1_000_000


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path))
    return tmp_path


def steps(median_ns: int) -> Steps:
    times = Spread(count=1, median_ns=median_ns, min_ns=1, max_ns=1, p10_ns=1, p90_ns=1)
    return Steps(source="made", duration=times, per_rank=[RankSteps(rank=0, durations_ns=[1])])


def metrics(folder: Path, *lines: dict[str, Any]) -> None:
    (folder / "metrics").mkdir()
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics" / "rank0.jsonl").write_text(text, encoding="utf-8")


def step(phase: str, ms: int) -> dict[str, Any]:
    return {"event": "step", "phase": phase, "step_ns": ms * MS}


def listed(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[list[str], str]:
    assert main(["ls", *flags]) == 0
    out, err = capsys.readouterr()
    return out.splitlines(), err


def test_the_step_time_is_the_traces_else_the_trainings_own_else_not_known(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traced, untraced, unreported, nothing = (a_run(runs, f"local-{n}") for n in range(1, 5))
    traced.summary.write_text(Summary(steps=steps(41_600_000)).model_dump_json())
    own = [RankTraining(rank=rank, median_step_ns=ms * MS) for rank, ms in ((0, 30), (1, 40))]
    untraced.summary.write_text(Summary(training=own).model_dump_json())
    times = [step("skip", 900), step("active", 10), step("active", 20), step("active", 30)]
    metrics(unreported.path, {"event": "start"}, *times)
    nothing.summary.write_text("half a summ")
    lines, said = listed(capsys)
    assert [line.split()[:4] for line in lines[1:]] == [
        ["local-1", "queued", "41.6", "ms"],
        ["local-2", "queued", "~40.0", "ms"],
        ["local-3", "queued", "~20.0", "ms"],
        ["local-4", "queued", "–", lines[4].split()[3]],
    ]
    assert "~: measured by the training itself" in said
    main(["ls", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert [(r["step_ns"], r["step_traced"]) for r in rows] == [
        (41_600_000, True),
        (40 * MS, False),
        (20 * MS, False),
        (None, None),
    ]


def test_runs_that_are_left_out_are_counted(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (1, 2, 3):
        a_run(runs, f"local-{number}")
    lines, said = listed(capsys, "-n", "2")
    assert [line.split()[0] for line in lines] == ["run", "local-2", "local-3"]
    assert said == "2 of 3 runs are shown, the newest: slurm.sh ls -n 3 shows all\n"
    assert listed(capsys)[1] == ""


def test_names_that_do_not_fit_are_shortened_with_a_note(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # parallel tests get a width
    run = a_run(runs, "local-1")
    run.path.rename(run.path.with_name("tiny-llama-local-1-n1-g2-mbs2-gas1-mixed0-actckpt0"))
    assert listed(capsys)[0][1].endswith("tiny-llama-local-1-n1-g2-mbs2-gas1-mixed0-actckpt0")
    monkeypatch.setenv("COLUMNS", "92")
    lines, said = listed(capsys)
    assert max(map(len, lines)) <= 92
    assert lines[1].endswith("  tiny-llama-…-n1-g2-mbs2-gas1-mixed0-actckpt0")
    assert said == "names are shortened: slurm.sh ls -n 1 --json shows them in full\n"
    monkeypatch.setenv("COLUMNS", "70")
    assert max(map(len, listed(capsys)[0])) <= 70


def test_without_a_checkout_the_commands_named_are_the_installed_ones(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.cli.watch.ls.PROGRAM", "training-traces")
    monkeypatch.setenv("COLUMNS", "40")
    for number in (1, 2):
        a_run(runs, f"local-{number}")
    said = listed(capsys, "-n", "1")[1]
    assert "training-traces ls -n 2 shows all" in said and "training-traces ls -n 1 --json shows them" in said


def test_a_run_that_cannot_be_read_is_listed_all_the_same(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(runs, "local-1").path.joinpath("run.json").write_text("{")
    assert listed(capsys)[0][1].split()[:3] == ["?", "unknown", "–"]

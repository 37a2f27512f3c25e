"""`ls` shows each run's step time from what is stored, fits the terminal, and says what it leaves out."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.summary import (
    Problem,
    Quality,
    RankSteps,
    RankTraining,
    RecordingVerdict,
    Replay,
    Spread,
    Steps,
    Summary,
    TimeLost,
    Withheld,
)
from harness.cli.main import main
from harness.common.run_folder.run_files import HEARTBEATS
from harness.experiment.exercises import DDP, Experiment, OwnTraining
from harness.experiment.training import Mystery
from harness.replay.attribute.causes import CAUSES
from harness.run import Run, folder_bytes
from harness.run.record import Status
from harness.site.site import load_site
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
    assert [re.split("  +", line)[:5] for line in lines] == [
        ["id", "state", "asked", "step", "verdict"],
        ["local-1", "queued", "-e 1 -g 1", "41.6 ms", "–"],
        ["local-2", "queued", "-e 1 -g 1", "~40.0 ms", "–"],
        ["local-3", "queued", "-e 1 -g 1", "~20.0 ms", "–"],
        ["local-4", "queued", "-e 1 -g 1", "–", "–"],
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
    assert [line.split()[0] for line in lines] == ["id", "local-2", "local-3"]
    assert said == "2 of 3 runs are shown, the newest: bash slurm.sh ls -n 3 shows all\n"
    assert listed(capsys)[1] == ""


def completed(root: Path, job_id: str, experiment: Experiment | None = None, **changes: Any) -> Run:
    """A completed run; changes: of its summary."""
    run = a_run(root, job_id)
    if experiment is not None:
        run.write_record(run.record.model_copy(update={"experiment": experiment}))
    run.write_status(Status(state="completed"))
    run.summary.write_text(Summary(steps=steps(141 * MS), **changes).model_dump_json())
    return run


def lost(cause: str, share: float) -> TimeLost:
    return TimeLost(cause=cause, ranks=[0], lost_ns=1, share=share, evidence="made")


def replayed(error: float = 0.0) -> Replay:
    return Replay(steps=9, processes=2, step_ns=10, replayed_ns=10, error=error)


def quality(verdict: str = "good", withheld: str = "") -> Quality:
    problems = [Problem(severity=RecordingVerdict(verdict), what="made", evidence="made")]
    return Quality(
        verdict=problems[0].severity,
        problems=problems,
        withheld=[Withheld(field=withheld, reason="made")] if withheld else [],
    )


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ({"findings": [lost("data-stall", 0.434), lost("tiny-kernels", 0.1)], "replay": replayed()}, "{label} 43 %"),
        ({"findings": [lost("a-new-cause", 0.2)], "replay": replayed()}, "a new cause 20 %"),
        ({"findings": [lost("data-stall", 0.434)], "quality": quality("doubtful")}, "{label} 43 %?"),
        ({"replay": replayed()}, "nothing above 3 %"),
        ({"replay": replayed(error=0.03)}, "–"),
        ({}, "–"),
        ({"replay": replayed(), "quality": quality(withheld="findings.tiny-kernels")}, "–"),
        ({"findings": [lost("data-stall", 0.434)], "quality": quality(withheld="findings")}, "–"),
    ],
)
def test_the_verdict_is_the_largest_loss_unless_it_is_not_known_or_withheld(
    runs: Path, capsys: pytest.CaptureFixture[str], found: dict[str, Any], verdict: str
) -> None:
    completed(runs, "local-1", **found)
    lines, said = listed(capsys)
    assert re.split("  +", lines[1])[4] == verdict.format(label=CAUSES["data-stall"].label)
    assert ("%?: the recording has problems: bash slurm.sh report RUN names them\n" in said) == verdict.endswith("?")


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (
            Status(state="failed", why="rank 1 failed first, in step 5: ValueError: wrong (t.py:9)"),
            "rank 1: ValueError t.py:9",
        ),
        (Status(state="failed", why="t.py does not accept its arguments"), "t.py does not accept its arguments"),
        (Status(state="completed", note="no step was observed"), "no step was observed"),
        (Status(state="cancelled"), "–"),
    ],
)  # fmt: skip
def test_a_run_that_failed_or_left_something_open_says_why(
    runs: Path, capsys: pytest.CaptureFixture[str], status: Status, verdict: str
) -> None:
    run = a_run(runs, "local-1")
    run.write_status(status)
    file = HEARTBEATS.path(run.path, "here")
    file.parent.mkdir()
    error = {"type": "ValueError", "message": "wrong", "place": ["/home/me/t.py", 9, "main"], "unix_ns": 5}
    file.write_text(json.dumps({"event": "gone", "rank": 1, "step": 5, "unix_ns": 6, "error": error}) + "\n")
    assert re.split("  +", listed(capsys)[0][1])[4].startswith(verdict)


def test_what_was_asked_are_the_flags_that_differ_from_the_default(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = OwnTraining(command=("gpt.py", "--hf-token", "hf_abcdefghijklmnop"), start_in="/")
    mystery = Mystery(level=1, commitment="c")
    asked = [DDP(), DDP(nodes=2, slow_dataloading=True), own, DDP(mystery=mystery)]
    made = [completed(runs, f"local-{n}", each) for n, each in enumerate(asked, 1)]
    made[3].write_record(made[3].record.model_copy(update={"command": ["slurm.sh", "mystery", "-e", "1"]}))
    flags = ["-e 1", "-e 1 -n 2 --slow-dataloading", "run -- gpt.py --hf-token '***'", "mystery -e 1"]
    assert [re.split("  +", line)[2] for line in listed(capsys)[0][1:]] == flags
    made[0].write_record(made[0].record.model_copy(update={"site": load_site("leonardo")}))
    lines = listed(capsys)[0]
    assert [re.split("  +", line)[2] for line in lines[1:3]] == [
        "-e 1 --site leonardo",
        "-e 1 -n 2 --site local --slow-dataloading",
    ], "where there are several sites, each is named"


def test_age_and_size_are_those_of_the_folder_and_no_link_is_followed(
    runs: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_run(runs, "local-1")
    run.write_record(run.record.model_copy(update={"created_ns": time.time_ns() - 7_300 * 1_000_000_000}))
    before = folder_bytes(run.path)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "large").write_bytes(bytes(1 << 20))
    (run.path / "torch" / "deep").mkdir(parents=True)
    (run.path / "torch" / "deep" / "trace").write_bytes(bytes(3_000_000))
    (run.path / "link").symlink_to(elsewhere)
    assert 3_000_000 + before <= folder_bytes(run.path) < 3_001_000 + before
    assert listed(capsys)[0][1].endswith("  2 h  3.00 MB")
    main(["ls", "--json"])
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["age_s"] // 10, row["size_bytes"]) == (730, folder_bytes(run.path))


def test_the_list_is_no_wider_than_the_terminal_and_keeps_the_ids(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = {"findings": [lost("data-stall", 0.434)], "replay": replayed()}
    for number in (1, 2):
        completed(runs, f"local-{number}", DDP(slow_dataloading=True, gradient_accumulation_steps=8), **loss)
    heads = {
        40: ["id", "state", "verdict"],
        60: ["id", "state", "asked", "verdict"],
        80: ["id", "state", "asked", "step", "verdict", "age", "size"],
        120: ["id", "state", "asked", "step", "verdict", "age", "size"],
    }
    narrow = "shortened for this terminal: bash slurm.sh ls -n 2 --json shows all\n"
    for width, head in heads.items():
        monkeypatch.setenv("COLUMNS", str(width))
        lines, said = listed(capsys)
        assert (max(map(len, lines)) <= width, lines[0].split(), said) == (True, head, narrow * (width < 120))
        assert [line.split()[0] for line in lines[1:]] == ["local-1", "local-2"]
        assert "43 %" in lines[1], "the number is not what is cut"
    monkeypatch.setenv("COLUMNS", "20")
    assert all(len(line) <= 20 and "local-" in line for line in listed(capsys)[0][1:])


def test_a_run_that_cannot_be_read_or_is_of_another_backend_is_listed(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, other = a_run(runs, "local-1"), a_run(runs, "7")
    run.record_file.write_text("{")
    other.write_record(other.record.model_copy(update={"backend": "pbs"}))
    first, second = sorted(line.split()[:3] for line in listed(capsys)[0][1:])
    assert (first[:2], second) == (["7", "unknown"], ["?", "unknown", run.name])
    assert main(["status", "7"]) == 1
    assert "backend 'pbs', which started it, is not here" in capsys.readouterr().err

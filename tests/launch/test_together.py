"""Many runs in one submission, against stand-ins for Slurm's programs; tests/slurm runs them on a real one."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from harness.common.errors import RequestError, WorkError
from harness.experiment.exercises import DDP
from harness.launch import supervise
from harness.launch.backends import slurm
from harness.launch.backends.protocol import Together
from harness.launch.submit import Start, go_together, prepare, submit_together
from harness.run import Run
from harness.run.record import FINAL, SeriesPart, State, Status
from harness.site.site import Site, load_site
from tests.launch.launch_shared import site_file
from tests.waiting import limit_s, wait_until


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins that write their words to NAME.log."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path / "a student's runs; $HOME"))
    for name, body in {
        "sbatch": "echo 4711",
        "scancel": "",
        "squeue": "exit 1",
        "sacct": "exit 1",
        "scontrol": "exit 1",
    }.items():
        program(folder, name, body)
    return folder


def program(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >>"{folder}/{name}.log"\n{body}\n')
    (folder / name).chmod(0o755)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    fields = {"device": "cpu", "gpus": {"per_node": 1, "request": "none"}, "time": "00:10:00"}
    return load_site(site_file(tmp_path, **fields))


def starts(site: Site, *nodes: int) -> list[Start]:
    return [
        Start(prepare(DDP(nodes=n, seed=k), site), ["slurm.sh"], SeriesPart(series="s", point=str(k)))
        for k, n in enumerate(nodes)
    ]


def words_of(programs: Path, name: str) -> list[str]:
    return (programs / f"{name}.log").read_text().splitlines()


def test_an_array_is_one_submission_of_a_run_per_task(programs: Path, site: Site) -> None:
    runs = submit_together(starts(site, 1, 1, 1), "array", at_once=2)
    assert [run.job_id for run in runs] == ["4711_0", "4711_1", "4711_2"]
    assert [run.record.part and run.record.part.point for run in runs] == ["0", "1", "2"]
    assert [run.record.experiment.seed for run in runs] == [0, 1, 2]  # type: ignore[union-attr]  # trainings
    assert all(run.log_dir.is_dir() and run.script.is_file() for run in runs)
    words = words_of(programs, "sbatch")
    assert "--array=0-2%2" in words
    assert words[-2].endswith("/logs/slurm-%A_%a.out")
    assert words[-1].endswith("/array.sbatch")
    assert words.count("--parsable") == 1


def test_a_series_is_one_allocation_for_the_sum_of_the_limits(programs: Path, site: Site) -> None:
    runs = submit_together(starts(site, 1, 1, 1, 1), "series")
    assert [run.job_id for run in runs] == ["4711-0", "4711-1", "4711-2", "4711-3"]
    words = words_of(programs, "sbatch")
    assert "--time=00:42:00" in words
    assert not [word for word in words if word.startswith("--array") or word == "--time=00:10:00"]


@pytest.mark.parametrize("way", ["array", "series"])
def test_its_script_is_as_clean_as_a_runs(programs: Path, site: Site, way: Together) -> None:
    run, *_ = submit_together(starts(site, 1, 1), way)
    done = subprocess.run(
        ["shellcheck", "--shell=bash", "--exclude=SC2016", run.path / f"{way}.sbatch"],
        capture_output=True,
        text=True,
        check=False,
        timeout=limit_s(),
    )
    assert done.stdout == ""


@pytest.mark.parametrize("way", ["array", "series"])
def test_a_run_that_cannot_be_written_leaves_no_job_and_no_run(programs: Path, site: Site, way: Together) -> None:
    asked = starts(site, 1, 1, 1)
    separator = {"array": "_", "series": "-"}[way]
    third = asked[2].prepared.job
    taken = Path(third.output_dir) / "profiler" / third.name_for(f"4711{separator}2")
    taken.mkdir(parents=True)
    with pytest.raises(WorkError, match=r"job 4711 was cancelled again: .*exists already"):
        submit_together(asked, way)
    assert words_of(programs, "scancel") == ["4711"]
    assert list(taken.parent.iterdir()) == [taken]


def test_unlike_resources_do_not_go_together(programs: Path, site: Site) -> None:
    asked = starts(site, 1, 2)
    assert not go_together([start.prepared.job for start in asked])
    with pytest.raises(ValueError, match="different resources"):
        submit_together(asked, "array")


def test_this_machine_has_no_queue(programs: Path) -> None:
    with pytest.raises(RequestError, match="one after the other"):
        submit_together(starts(load_site("local"), 1), "series")


@pytest.mark.parametrize(
    ("own", "allocation", "state"),
    [
        (None, "PENDING", "queued"),
        (None, "RUNNING", "queued"),
        ("running", "RUNNING", "running"),
        ("completed", "RUNNING", "completed"),
        ("failed", "COMPLETED", "failed"),
        ("running", "TIMEOUT", "timeout"),
        (None, "CANCELLED", "cancelled"),
        (None, "COMPLETED", "failed"),
    ],
)
def test_a_run_of_an_allocation_has_a_state_of_its_own(
    programs: Path, site: Site, own: State | None, allocation: str, state: State
) -> None:
    run = submit_together(starts(site, 1, 1), "series")[1]
    program(programs, "squeue", f"echo {allocation}")
    if own is not None:
        run.write_status(Status(state=own))
    assert slurm.poll(run).state == state
    assert words_of(programs, "squeue")[-1] == "--jobs=4711"
    waits = slurm.poll(run).why if state == "queued" else ""
    assert ("runs before it" in waits) == (state == "queued" and allocation == "RUNNING")


def test_a_task_that_never_began_is_cancelled_also_where_slurm_forgets_it(programs: Path, site: Site) -> None:
    run = submit_together(starts(site, 1, 1), "array")[1]
    slurm.cancel(run)
    assert words_of(programs, "scancel") == ["4711_1"]
    assert slurm.poll(run).state == "cancelled"
    assert "cancelled" in FINAL


def series_of(runs: list[Run], scripts: list[str], programs: Path) -> subprocess.CompletedProcess[str]:
    """The script of a series, run by bash as Slurm would, over stand-ins for the runs' own scripts."""
    for run, text in zip(runs, scripts, strict=True):
        run.script.write_text(text)
    return subprocess.run(
        ["bash", str(runs[0].path / "series.sbatch")],
        env={**os.environ, "SLURM_JOB_ID": "4711"},
        capture_output=True,
        text=True,
        check=False,
        timeout=limit_s(60),
    )


def test_a_series_goes_on_after_a_run_that_failed(programs: Path, site: Site) -> None:
    runs = submit_together(starts(site, 1, 1, 1), "series")
    said = series_of(runs, ["echo $HARNESS_JOB_ID", "echo $HARNESS_JOB_ID; exit 3", "echo $HARNESS_JOB_ID"], programs)
    assert said.stdout.split() == ["4711-0", "4711-1", "4711-2"]
    assert said.returncode == 3
    assert words_of(programs, "scancel") == ["--signal=KILL", "4711"]


def test_a_series_that_is_stopped_warns_its_run_and_starts_no_other(programs: Path, site: Site) -> None:
    runs = submit_together(starts(site, 1, 1), "series")
    first = """trap 'echo warned; exit 0' USR1
        kill -USR1 "$PPID"
        for _ in {1..90}; do sleep 0.1; done
    """
    said = series_of(runs, [first, "echo second"], programs)
    assert said.stdout.split() == ["warned"]


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_what_is_said_while_a_run_starts_reaches_it(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A run may start, and the batch system may speak, before the new process has its name in the series."""
    ready = tmp_path / "ready"
    (tmp_path / "job.sbatch").write_text(f"""trap 'echo {number.name}; exit 0' {number.name}
        touch {ready}
        for _ in {{1..90}}; do sleep 0.1; done
    """)

    class Started(subprocess.Popen[bytes]):
        def __init__(self, argv: list[str], env: dict[str, str]) -> None:
            super().__init__(argv, env=env)
            wait_until(ready.exists, "the start of the run")
            os.kill(os.getpid(), number)

    handlers = {each: signal.getsignal(each) for each in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)}
    try:
        series = supervise.SupervisedSeries(60, 10)
        monkeypatch.setattr("harness.launch.supervise.subprocess.Popen", Started)
        assert series.one(tmp_path, "4711-0") == 0
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
    assert capfd.readouterr().out.split() == [number.name]

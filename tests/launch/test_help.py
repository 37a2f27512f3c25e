"""Help: one screen without arguments, all commands by what a user does, and one page for each, in one style."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from harness.cli.commands import COMMANDS, CommandEntry
from harness.cli.main import main
from harness.experiment.exercises import EXERCISES
from harness.experiment.options import options_of
from tests.launch.launch_shared import ROOT, Harness
from tests.waiting import limit_s


def _names(table: Mapping[str, CommandEntry], before: str = "") -> Iterator[str]:
    for name, entry in table.items():
        yield f"{before}{name}"
        yield from _names(entry.parts, f"{before}{name} ")


ALL_NAMES = list(_names(COMMANDS))
WIDTHS = ("80", "100", "200")


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 0, words
    return capsys.readouterr().out


def test_without_an_argument_there_is_one_screen(harness: Harness) -> None:
    done = harness()
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) <= 24 and max(map(len, lines)) <= 80
    started = [
        *(f"-e {number}" for number in range(len(EXERCISES))),
        "run -g 2 -- train.py",
        "observe -- bash train.sh",
    ]
    assert [words for words in started if f"\n  bash slurm.sh {words} " not in done.stdout] == []


def plain(page: str) -> str:
    """The words of a page, without the lines of its boxes."""
    return " ".join(re.sub("[─-╿]", " ", page).split())


def test_help_lists_all_commands_by_what_a_user_does(harness: Harness) -> None:
    page = harness("help").stdout
    assert page == harness("--help").stdout and len(COMMANDS) <= 20
    panels = {part.split(" ")[0]: part for part in page.split("╭─ ")[1:]}
    for name, entry in COMMANDS.items():
        assert re.search(rf"\n│ {name} +{re.escape(entry.help)} ", panels[entry.group])


@pytest.mark.parametrize("command", ALL_NAMES)
def test_each_way_to_ask_for_help_gives_the_same_page(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = command.split()
    (page,) = {shown(capsys, *way) for way in (["help", *words], [*words, "--help"], [*words, "-h"])}
    assert f"Usage: slurm.sh {command} " in page
    assert "\x1b" not in page


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_of_a_page_is_wider_than_the_terminal_but_commands_to_paste(
    width: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    for command in ALL_NAMES:
        for line in shown(capsys, "help", *command.split()).splitlines():
            assert len(line) <= int(width) or line.startswith("  bash slurm.sh"), line


@pytest.mark.parametrize("words", [["--all"], ["--site", "leonardo"], []])
def test_help_run_has_what_an_own_training_takes(harness: Harness, words: list[str]) -> None:
    page = harness("help", "run", *words).stdout
    assert page == harness("run", "--help", *words).stdout
    flags = set(re.findall(r"--[a-z][\w-]+", page))
    assert flags >= {"--launcher", "--active-steps", "--time", "--site"} and not flags & {"--tp", "--model"}


def test_every_option_is_in_the_help_with_its_text(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")  # no text is on two lines
    for number, cls in EXERCISES.items():
        page, whole = (plain(harness("-e", str(number), "--help", *more).stdout) for more in ([], ["--all"]))
        for option in options_of(cls):
            assert plain(option.help) in (whole if option.flag.rare else page)
            assert all(name in whole for name in option.flag.names)
    assert "--max-bytes" in plain(harness("help", "launch").stdout)


def test_the_help_of_an_exercise_has_its_own_flags_and_defaults(harness: Harness) -> None:
    first, third = (plain(harness("-e", number, "--help").stdout) for number in "13")
    assert "--tp" in third and "--tp" not in first
    assert "batches that are profiled [default: 20]" in first and "iterations that are profiled [default: 5]" in third


@pytest.mark.parametrize("words", [["--site", "leonardo"], ["--site=leonardo"]])
def test_the_help_shows_the_sites_defaults(harness: Harness, words: list[str]) -> None:
    page = harness("-e", "1", "--help", *words).stdout
    assert "[default: boost_usr_prod]" in plain(page)
    assert "[default: tra26_minwinsc]" in plain(page)


def test_the_version_says_which_commit_and_where(harness: Harness) -> None:
    done = harness("--version")
    number, *rest = done.stdout.splitlines()
    assert done.returncode == 0 and number == f"training-traces {_declared()}"
    assert rest[-1] == f"installed in {ROOT}"
    assert len(rest) == 1 or re.match(r"commit [0-9a-f]{40}(, with changes that are not committed)?$", rest[0])


def _declared() -> str:
    lines = Path(ROOT, "pyproject.toml").read_text(encoding="utf-8").splitlines()
    return next(line.split('"')[1] for line in lines if line.startswith("version = "))


WHOLE = f"bash {ROOT}/slurm.sh"


@pytest.mark.parametrize(
    ("folder", "typed"), [("checkout", "bash slurm.sh"), ("own", WHOLE), ("linked", "bash slurm.sh")]
)
def test_a_command_is_printed_as_it_can_be_pasted_here(tmp_path: Path, folder: str, typed: str) -> None:
    here = ROOT if folder == "checkout" else tmp_path
    if folder == "linked":
        (here / "slurm.sh").symlink_to(ROOT / "slurm.sh")
    for words in ("help watch", "ls --limt", "lesson 1a --no-run", "check last"):
        done = subprocess.run(
            [sys.executable, "-m", "harness", *words.split()], cwd=here, env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=False, timeout=limit_s(),
        )  # fmt: skip
        said = done.stdout + done.stderr
        assert f"{typed} " in said and (typed == WHOLE) == (f"{WHOLE} " in said), said
        page = re.search(r"More: (.*)", said)
        assert page is None or (here / page[1]).is_file()

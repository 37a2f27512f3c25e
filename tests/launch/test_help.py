"""Help: one screen without arguments, all commands by what a user does, and one page for each, in one style."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli.commands import COMMANDS
from harness.cli.main import main
from harness.cli.study import mystery, reference
from harness.experiment.exercises import EXERCISES
from harness.experiment.options import options_of
from tests.launch.launch_shared import ROOT, Harness
from tests.waiting import limit_s

PARTS = [
    "lesson mystery",
    *(f"lesson mystery {part}" for part in mystery.PARTS),
    "export paraver",
    *(f"reference {part}" for part in reference.PARTS),
]
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


def test_help_lists_all_commands_by_what_a_user_does(harness: Harness) -> None:
    page = harness("help").stdout
    assert page == harness("help").stdout and len(COMMANDS) <= 19
    groups = {part.split(":")[0]: part for part in page.split("\n\n")}
    for name, entry in COMMANDS.items():
        assert f"\n  {name} " in groups[entry.group]
        assert entry.help in page
    assert all(len(entry.help) <= 64 for entry in COMMANDS.values()), "each fits on one line of 80 characters"


@pytest.mark.parametrize("command", [*(name for name in COMMANDS if name != "run"), *PARTS])
def test_each_way_to_ask_for_help_gives_the_same_page_in_one_style(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command.split()
    ways = (["help", *words], ["--help", *words], ["-h", *words], [*words, "--help"], [*words, "-h"])
    (page,) = {shown(capsys, *way) for way in ways}
    parts = page.rstrip("\n").split("\n\n")
    assert parts[0].startswith(f"Usage: slurm.sh {command}")
    titles = [part.splitlines()[0] for part in parts[2:]]
    style = ["Arguments:", "Flags:", "Exit codes:", "Examples:"]
    assert [title for title in style if title in titles] == titles[: -1 if "More: " in titles[-1] else None]
    assert all(line.startswith("  ") for part in parts[2:] for line in part.splitlines()[1:])


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_of_a_page_is_wider_than_the_terminal_or_a_hundred_characters(
    width: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    for command in (*COMMANDS, *PARTS):
        for line in shown(capsys, "help", *command.split()).splitlines():
            assert len(line) <= min(int(width), 100), line


@pytest.mark.parametrize("words", [["--all"], ["--site", "leonardo"], []])
def test_help_run_has_what_an_own_training_takes_and_help_all_flags(harness: Harness, words: list[str]) -> None:
    assert harness("--help", *words).stdout == harness("-e", "1", "--help", *words).stdout
    (page,) = {harness(*first, *words).stdout for first in (["help", "run"], ["run", "--help"])}
    flags = set(re.findall(r"--[a-z][\w-]+", page))
    assert flags >= {"--launcher", "--active-steps", "--time", "--site"} and not flags & {"--tp", "--model"}


def test_every_option_is_in_the_help_with_its_text(harness: Harness) -> None:
    page, whole = (" ".join(harness("--help", *more).stdout.split()) for more in ([], ["--all"]))
    for cls in EXERCISES.values():
        for option in options_of(cls):
            assert option.help in (whole if option.flag.rare else page)
            assert all(name in whole for name in option.flag.names)
    assert "--no-pin-memory" in whole and "--no-pin-memory" not in page


@pytest.mark.parametrize("words", [["--site", "leonardo"], ["--site=leonardo"]])
def test_the_help_shows_the_sites_defaults(harness: Harness, words: list[str]) -> None:
    page = harness("--help", *words).stdout
    assert "[boost_usr_prod]" in page
    assert "[tra26_minwinsc]" in page


def test_the_version_says_which_commit_and_where(harness: Harness) -> None:
    done = harness("--version")
    number, *rest = done.stdout.splitlines()
    assert done.returncode == 0 and number == f"slurm.sh {_declared()}"
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

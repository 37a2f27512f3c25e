"""A command's function gets the values of its words by its own signature; each wrong word is one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer

from harness.cli.app import execute
from harness.cli.command import values_of
from harness.cli.commands import COMMANDS, CommandEntry
from harness.common.errors import RequestError


def command(
    kind: Annotated[Literal["csv", "png"], typer.Argument(metavar="KIND", help="what")],
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="of what")],
    *,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, max=9, help="how many")] = 3,
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="where")] = None,
    only: Annotated[list[str] | None, typer.Option(help="these")] = None,
    between: Annotated[tuple[str, str] | None, typer.Option(metavar="A B", help="two")] = None,
    window: Annotated[Literal["steps", "gpu"], typer.Option(help="which time")] = "steps",
    start: Annotated[bool | None, typer.Option("--run/--no-run", help="start it")] = None,
    sort: Annotated[bool, typer.Option("-s", "--sort", help="sorted [by age]")] = False,
    force: Annotated[bool, typer.Option("-f", help="anyway")] = False,
) -> int:
    """Do it."""
    return 7


@pytest.fixture(autouse=True)
def a_command_to_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMMANDS, "try", CommandEntry(f"{__name__}:command", "to try"))
    monkeypatch.setattr(CommandEntry, "group", "Try")


def given(*words: str) -> dict[str, Any]:
    """What the function gets besides its defaults and `csv a`."""
    plain = values_of("try", ["csv", "a"])
    return {name: value for name, value in values_of("try", ["csv", "a", *words]).items() if value != plain[name]}


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["-n", "5"], {"limit": 5}),
        (["-n5"], {"limit": 5}),
        (["-n=5"], {"limit": 5}),
        (["-o", "x y"], {"out": "x y"}),
        (["--only", "x", "--only=y"], {"only": ["x", "y"]}),
        (["--between", "x", "y"], {"between": ("x", "y")}),
        (["--window", "gpu"], {"window": "gpu"}),
        (["--no-run"], {"start": False}),
        (["-sf"], {"sort": True, "force": True}),
        (["--", "-s", "--", "-x"], {"paths": ["a", "-s", "--", "-x"]}),
        (["-"], {"paths": ["a", "-"]}),
    ],
)
def test_words_are_values_of_the_declared_type(words: list[str], values: dict[str, Any]) -> None:
    read = given(*words)  # an older Typer makes paths of them when it calls the function
    for name in {"paths", "only"} & read.keys():
        read[name] = [str(each) for each in read[name]]
    read |= {name: str(read[name]) for name in {"out"} & read.keys()}
    assert read == values


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["csv"], ["PATH"]),
        (["svc", "a"], ["KIND", "svc", "did you mean csv?"]),
        (["csv", "a", "--limt", "5"], ["unknown flag --limt: did you mean --limit?"]),
        (["csv", "a", "--junit"], ["unknown flag --junit (bash slurm.sh"]),  # only its hyphens are as those of --run
        (["csv", "a", "-n"], ["-n requires an argument"]),
        (["csv", "a", "-n", "--sort"], ["-n requires an argument"]),
        (["csv", "a", "-n", "x"], ["-n/--limit: got 'x', takes a whole number ≥ 1 and ≤ 9"]),
        (["csv", "a", "--limit=5.5"], ["got '5.5', takes a whole number"]),
        (["csv", "a", "-n", "10"], ["-n/--limit: got '10', takes a whole number ≥ 1 and ≤ 9"]),
        (["csv", "a", "-n", "9" * 5000], ["--limit", "9…"]),
        (["csv", "a", "-n", "1", "--limit", "2"], ["-n/--limit is given twice: drop one"]),
        (["csv", "a", "--between", "x"], ["--between", "2 arguments"]),
        (["csv", "a", "--sort=yes"], ["--sort takes no value: leave out =yes"]),
        (["csv", "a", "--run", "--no-run"], ["--run/--no-run is given twice: drop one"]),
        (["csv", "a", "--window", "gpus"], ["--window", "gpus", "did you mean gpu?"]),
        (["csv", "a", "-sx"], ["unknown flag -sx"]),
    ],
)
def test_each_wrong_word_is_one_sentence(words: list[str], told: list[str]) -> None:
    with pytest.raises(RequestError) as caught:
        values_of("try", words)
    (line,) = str(caught.value).splitlines()
    assert line.startswith("try: ") and [text for text in told if text not in line] == []
    assert "(bash slurm.sh help try" in line and len(line) < 300


def test_all_wrong_flags_are_told_at_once() -> None:
    with pytest.raises(RequestError) as caught:
        values_of("try", ["csv", "a", "--limt", "5", "-n", "1", "-n", "2", "-o"])
    assert [line.split(" (")[0] for line in str(caught.value).splitlines()] == [
        "try: unknown flag --limt: did you mean --limit?",
        "try: -o requires an argument",
        "try: -n/--limit is given twice: drop one",
    ]


def test_the_page_of_a_command_is_its_signature(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["try", "--help"]) == 0
    page = " ".join(capsys.readouterr().out.split())
    for text in ("Usage: slurm.sh try", "Do it.", "--limit", "how many", "[default: 3]", "sorted [by age]", "A B"):
        assert text in page

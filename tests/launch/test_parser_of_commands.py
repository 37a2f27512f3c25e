"""A command's function gets the values of its words by its own signature; each wrong word is one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer

from harness.cli.help import as_text, of_function
from harness.cli.parser import Alone, run_command
from harness.common.errors import RequestError

GOT: dict[str, Any] = {}


def command(
    kind: Annotated[Literal["csv", "png"], typer.Argument(metavar="KIND", help="what")],
    paths: Annotated[list[Path], typer.Argument(metavar="PATH…", help="of what")],
    *,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, max=9, help="how many")] = 3,
    every_s: Annotated[float | None, typer.Option(min=0.2, help="how often")] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="where")] = None,
    page: Annotated[str | None, typer.Option(metavar="[FILE]", help="a page"), Alone("here")] = None,
    verify: Annotated[int | None, typer.Option(metavar="[N]", help="check"), Alone("1")] = None,
    only: Annotated[list[str] | None, typer.Option(help="these")] = None,
    between: Annotated[tuple[str, str] | None, typer.Option(metavar="A B", help="two")] = None,
    window: Annotated[Literal["steps", "gpu"], typer.Option(help="which time")] = "steps",
    start: Annotated[bool | None, typer.Option("--run/--no-run", help="start it")] = None,
    sort: Annotated[bool, typer.Option("-s", "--sort", help="sorted")] = False,
    force: Annotated[bool, typer.Option("-f", help="anyway")] = False,
) -> int:
    """Do it."""
    GOT.update(locals())
    return 7


def given(*words: str) -> dict[str, Any]:
    """What the function got besides its defaults and `csv a`."""
    GOT.clear()
    assert run_command("try", command, ["csv", "a", *words]) == 7
    plain = dict(GOT)
    GOT.clear()
    run_command("try", command, ["csv", "a"])
    return {name: value for name, value in plain.items() if value != GOT[name]}


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["-n", "5"], {"limit": 5}),
        (["-n5", "--limit=5"], {"limit": 5}),
        (["--every-s", "1e1"], {"every_s": 10.0}),
        (["-o", "x y"], {"out": Path("x y")}),
        (["--page"], {"page": "here"}),
        (["--page", "-s"], {"page": "here", "sort": True}),
        (["--page", "p"], {"page": "p"}),
        (["--verify", "b"], {"verify": 1, "paths": [Path("a"), Path("b")]}),
        (["--verify", "2"], {"verify": 2}),
        (["--only", "x", "--only=y"], {"only": ["x", "y"]}),
        (["--between", "x", "y"], {"between": ("x", "y")}),
        (["--window", "gpu"], {"window": "gpu"}),
        (["--run"], {"start": True}),
        (["--no-run", "--no-run"], {"start": False}),
        (["-sf"], {"sort": True, "force": True}),
        (["--", "-s", "--", "-x"], {"paths": [Path("a"), Path("-s"), Path("--"), Path("-x")]}),
        (["-"], {"paths": [Path("a"), Path("-")]}),
    ],
)
def test_words_are_values_of_the_declared_type(words: list[str], values: dict[str, Any]) -> None:
    assert given(*words) == values


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["csv"], "PATH… is missing"),
        (["svc", "a"], "KIND: got 'svc', takes one of csv, png: did you mean csv?"),
        (["csv", "a", "--limt", "5"], "unknown flag --limt: did you mean --limit?"),
        (["csv", "a", "--junit"], "unknown flag --junit (bash slurm.sh"),  # only its hyphens are as those of --run
        (["csv", "a", "-n"], "-n requires an argument"),
        (["csv", "a", "-n", "--sort"], "-n requires an argument"),
        (["csv", "a", "-n", "x"], "-n/--limit: got 'x', takes a whole number"),
        (["csv", "a", "-n", "5.0"], "-n/--limit: got '5.0', takes a whole number"),
        (["csv", "a", "-n", "0"], "-n/--limit: got '0', takes a whole number ≥ 1 and ≤ 9"),
        (["csv", "a", "-n", "10"], "-n/--limit: got '10', takes a whole number ≥ 1 and ≤ 9"),
        (["csv", "a", "-n", "9" * 5000], f"-n/--limit: got '{'9' * 39}…', takes a whole number"),
        (["csv", "a", "-n", "1", "--limit", "2"], "-n/--limit is given twice, as 1 and as 2: drop one"),
        (["csv", "a", "--every-s", "nan"], "--every-s: got 'nan', takes a number"),
        (["csv", "a", "--every-s=1e999"], "--every-s: got '1e999', takes a number"),
        (["csv", "a", "--between", "x"], "--between requires 2 arguments"),
        (["csv", "a", "--between=x", "y", "--between", "x", "z"], "--between is given twice, as x y and as x z"),
        (["csv", "a", "--sort=yes"], "--sort takes no value: leave out =yes"),
        (["csv", "a", "-s=1"], "-s takes no value: leave out =1"),
        (["csv", "a", "--run", "--no-run"], "--run and --no-run exclude each other: drop one"),
        (["csv", "a", "--window", "gpus"], "--window: got 'gpus', takes one of steps, gpu: did you mean gpu?"),
        (["csv", "a", "-sx"], "unknown flag -sx"),
    ],
)
def test_each_wrong_word_is_one_sentence(words: list[str], sentence: str) -> None:
    with pytest.raises(RequestError) as caught:
        run_command("try", command, words)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"try: {sentence}")
    assert "(bash slurm.sh help try" in line


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(RequestError) as caught:
        run_command("try", command, ["csv", "a", "--limt", "5", "--window", "x", "-o"])
    assert [line.split(" (")[0] for line in str(caught.value).splitlines()] == [
        "try: unknown flag --limt: did you mean --limit?",
        "try: --window: got 'x', takes one of steps, gpu",
        "try: -o requires an argument",
    ]
    with pytest.raises(RequestError, match=r"^try: KIND is missing .*\ntry: PATH… is missing "):
        run_command("try", command, [])


def test_the_page_of_a_command_is_its_signature() -> None:
    page = as_text(of_function("try", command))
    assert page.startswith("Usage: slurm.sh try KIND PATH… [FLAGS]\n\nDo it.\n")
    for row in ("-n/--limit N", "--every-s N", "--page [FILE]", "--between A B", "--window steps|gpu"):
        assert f"\n  {row} " in page
    assert "how many [3]" in page and "which time [steps]" in page

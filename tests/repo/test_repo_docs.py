"""The documents are true: links have targets, commands exist, declarations are written as they are, examples work."""

from __future__ import annotations

import doctest
import importlib
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import PARTS, renewed
from pages import documents as written_documents

from tests.waiting import limit_s

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(?:bash|sh|console)\n(.*?)^```", re.M | re.S)
INLINE = re.compile(r"`(?:bash )?((?:slurm\.sh|scripts/)[^`]*)`")


def documents() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=limit_s(),
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]


def prose(path: Path) -> str:
    """A document without its code, where brackets have other meanings."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", "", text)


def targets(path: Path) -> Iterator[str]:
    for found in LINK.finditer(prose(path)):
        target = found[1] or found[2]
        if not re.match(r"[a-z]+:", target):
            yield target


def anchors(path: Path) -> set[str]:
    """The anchors that a page's headings get."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def commands(path: Path) -> Iterator[str]:
    """Our own commands, as a page tells its reader to type them."""
    text = path.read_text(encoding="utf-8")
    for block in FENCE.findall(text):
        for line in block.splitlines():
            yield from re.findall(r"^\s*(?:\$ )?bash ((?:slurm\.sh|scripts/)\S*.*)$", line)
    yield from INLINE.findall(text)


DOCUMENTS = documents()
NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]


@pytest.mark.parametrize("path", written_documents(), ids=lambda path: path.name)
def test_what_is_written_from_declarations_is_what_they_say(path: Path) -> None:
    """After a change: python scripts/documents/pages.py"""
    text = path.read_text(encoding="utf-8")
    assert text == renewed(text)


def test_every_part_that_can_be_written_is_in_one_document() -> None:
    texts = "".join(path.read_text(encoding="utf-8") for path in written_documents())
    assert sorted(re.findall(r"^<!-- written: (.+) -->$", texts, re.M)) == sorted(PARTS)


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_links_lead_somewhere(path: Path) -> None:
    broken = []
    for target in targets(path):
        file, _, anchor = target.partition("#")
        where = (path.parent / file).resolve() if file else path
        if not where.exists() or (anchor and where.suffix == ".md" and anchor not in anchors(where)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize(
    "path", [path for path in DOCUMENTS if path.name != "CHANGELOG.md"], ids=lambda path: path.name
)
def test_commands_name_files_and_subcommands_that_exist(path: Path) -> None:
    from harness.cli.commands import COMMANDS

    wrong = []
    for command in commands(path):
        words = re.split(r"\s+", command.split(" #")[0].strip())
        program, first = words[0], (words[1] if len(words) > 1 else "-")
        # A dash begins a launch; capitals and dots stand for a value of the reader.
        free = first.startswith("-") or not re.fullmatch(r"[a-z]+", first)
        known = first in (*COMMANDS, "help") or program != "slurm.sh"
        if not (ROOT / program).exists() or not (free or known):
            wrong.append(command)
    assert wrong == []


def first_words(text: str) -> list[str]:
    """The word after `slurm.sh` of each command in a page's blocks."""
    return [line.split()[2] for block in FENCE.findall(text) for line in block.splitlines() if "slurm.sh" in line]


def test_every_command_is_on_the_page_of_commands() -> None:
    from harness.cli.commands import COMMANDS

    page = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    assert set(COMMANDS) <= set(first_words(page))


def launches() -> list[str]:
    """Every launch on a page, once; launches that the reader must complete are left out."""
    found = {
        command.split(" #")[0].strip().removeprefix("slurm.sh ")
        for path in DOCUMENTS
        for command in commands(path)
        if re.match(r"slurm\.sh -", command)
    }
    return sorted(words for words in found if not re.search(r"[…<>|]|--install|/path|my-|\b[A-Z]+\b", words))


@pytest.mark.parametrize("words", launches())
def test_documented_launches_are_valid_requests(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    from harness.cli.main import main

    argv = [*(() if "--plan" in words or "--dry-run" in words else ("--dry-run",)), *shlex.split(words)]
    codes = [main(argv if "--site" in words else ["--site", site, *argv]) for site in ("leonardo", "local")]
    assert 0 in codes, capsys.readouterr().err


def cut_tables(text: str) -> list[str]:
    """The rows of tables that have no head, since a blank line parts them from it: Markdown shows them as text."""
    lines = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S).splitlines()
    rows = [line.startswith("|") for line in lines]
    heads = {n for n, line in enumerate(lines) if re.fullmatch(r"\|(?: ?:?-+:? ?\|)+", line)}
    first = [n for n, row in enumerate(rows) if row and not (n and rows[n - 1])]
    return [lines[n] for n in first if n + 1 not in heads]


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_no_table_is_cut_by_a_blank_line(path: Path) -> None:
    assert cut_tables(path.read_text(encoding="utf-8")) == []


def test_no_document_knows_the_machine_it_was_written_on() -> None:
    found = [str(path) for path in DOCUMENTS if re.search(r"/work/|/root/", path.read_text(encoding="utf-8"))]
    assert found == []


# ---- What a docstring shows is what comes out: all examples of the product and of its checks


PLACES = ("harness", "exercises", "scripts")
PROGRAMS = ("exercises/exercise_0_Communication_Tests", "scripts")  # their modules import each other by one name
FILES = [
    file.relative_to(ROOT)
    for place in PLACES
    for file in sorted((ROOT / place).rglob("*.py"))
    if ">>> " in file.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("file", FILES, ids=str)
def test_the_examples_of_a_module_are_true(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = ".".join(file.with_suffix("").parts)
    for folder in PROGRAMS:
        if file.is_relative_to(folder):
            monkeypatch.syspath_prepend(str(ROOT / folder))
            name = ".".join(file.relative_to(folder).with_suffix("").parts)
    failed, tried = doctest.testmod(importlib.import_module(name.removesuffix(".__init__")))
    assert tried and not failed

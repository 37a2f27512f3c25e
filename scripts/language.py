"""Refuses names and phrases that have a plainer one in the glossary, docs/development/words.md: `language.py [FILE…]`.

Names are those of classes, parameters, fields and modules in the product; phrases are read in Markdown, YAML, shell,
templates and the texts of Python. Without files: all that git tracks and a user can read. Prints `file:line: text →
what to write`; exit status 1 if there is any.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from textwrap import shorten
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
GLOSSARY = "docs/development/words.md"
READ = ("*.md", "*.py", "*.sh", "*.j2", "configs/*.yaml", "slurm.sh", "scripts/*")
NOT_READ = re.compile(rf"CHANGELOG\.md|{GLOSSARY}|scripts/language\.py")  # the changelog tells of what was
PRODUCT = ("harness/", "exercises/")
HEADING = re.compile(r"^#+ .*\?\s*$", re.MULTILINE)
CODE = re.compile(r"`([^`]+)`")
_INVERTED = r"(?:(?:Is|Are|Was|Were|Had|Does|Should)\s(?:it|that|they|the|these|this|there)|Do they|Differs)\b"
INVERTED = re.compile(rf"{_INVERTED}[^?]*?(?:[.!]\s|\Z)".replace(" ", r"\s+"))


class Refused(NamedTuple):
    """One place that is refused."""

    place: str
    text: str
    instead: str


class Glossary(NamedTuple):
    """The page of words, read. names: refused name -> noun. nouns: noun -> its names in the code."""

    names: dict[str, str]
    phrases: list[tuple[re.Pattern[str], str]]
    nouns: dict[str, list[str]]


def read_glossary(page: str) -> Glossary:
    """The tables of the page."""
    nouns, phrases = (_rows(page, heading) for heading in ("## Nouns", "## Phrases"))
    names = {name: noun for noun, _, _, refused in nouns for name in CODE.findall(refused)}
    patterns = [(_pattern(phrase), instead) for cell, instead in phrases for phrase in CODE.findall(cell)]
    return Glossary(names, patterns, {noun: CODE.findall(code) for noun, _, code, _ in nouns})


def _rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the table below a heading."""
    section = page.partition(f"\n{heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def _pattern(phrase: str) -> re.Pattern[str]:
    """`…` stands for up to five words of the sentence, a space for any white space."""
    words = (re.escape(word) for word in phrase.split(" "))
    return re.compile(rf"\b{' '.join(words)}\b".replace(r" … ", r"(?: [^.\s]+){0,5}? ").replace(" ", r"\s+"))


@cache
def glossary() -> Glossary:
    """The glossary of this checkout."""
    return read_glossary((ROOT / GLOSSARY).read_text(encoding="utf-8"))


def refused_in(name: str, text: str) -> Iterator[Refused]:
    """What is refused in one file, by its name from the checkout's root."""
    if name.endswith(".py"):
        tree = ast.parse(text)
        if name.startswith(PRODUCT):
            yield from _names(name, tree)
        pieces = [] if name.startswith("tests/") else list(_literals(tree))
    else:
        pieces = [(1, text)]
    if name.endswith(".md"):
        yield from (Refused(_place(name, 1, text, m), m[0].strip(), "a statement") for m in HEADING.finditer(text))
    patterns = [(INVERTED, "begin the condition with `If`, or write a question"), *glossary().phrases]
    for line, piece in pieces:
        for pattern, instead in patterns:
            for match in pattern.finditer(piece):
                yield Refused(_place(name, line, piece, match), shorten(match[0], 80), instead)


def _place(name: str, line: int, text: str, match: re.Match[str]) -> str:
    return f"{name}:{line + text.count(chr(10), 0, match.start())}"


def _literals(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Each text of a module with its line; the parts of an f-string as one, with `{}` for what is filled in."""
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inside |= {id(part) for part in ast.walk(node)} - {id(node)}
            yield (node.lineno, "".join(str(p.value) if isinstance(p, ast.Constant) else "{}" for p in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.lineno, node.value


def _names(name: str, tree: ast.AST) -> Iterator[Refused]:
    """The module, classes, parameters and fields whose name the glossary has for no noun."""
    declared = [(1, Path(name).stem), *((line, each) for node in ast.walk(tree) for line, each in _declared(node))]
    for line, each in declared:
        if noun := glossary().names.get(snake_case(each)):
            yield Refused(f"{name}:{line}", each, f"{noun} ({GLOSSARY})")


def _declared(node: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and the name of each class, parameter and field that this node declares."""
    match node:
        case ast.ClassDef():
            yield node.lineno, node.name
            for statement in node.body:
                match statement:
                    case ast.AnnAssign(target=ast.Name() as field):
                        yield field.lineno, field.id
                    case ast.Assign():
                        yield from ((each.lineno, each.id) for each in statement.targets if isinstance(each, ast.Name))
        case ast.arg():
            yield node.lineno, node.arg


def snake_case(name: str) -> str:
    """A name as the glossary has it: without leading underscores, the words of a class apart.

    >>> snake_case("_GradAcc")
    'grad_acc'
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip("_")).lower()


def tracked(*patterns: str) -> list[str]:
    """The files of these patterns that a user can read, as git knows them."""
    listed = ["git", "ls-files", "-z", *patterns]
    done = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True)
    there = (name for name in done.stdout.split("\0") if name and (ROOT / name).is_file())
    return [name for name in there if not NOT_READ.match(name)]


def main(names: list[str]) -> int:
    """Print what is refused in the files, or in all of them."""
    texts = ((name, (ROOT / name).read_text(encoding="utf-8")) for name in names or tracked(*READ))
    refused = [each for name, text in texts for each in refused_in(name, text)]
    for each in refused:
        print(f"{each.place}: {each.text} → {each.instead}")
    return int(bool(refused))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

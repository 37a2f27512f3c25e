"""Refuses constructions that readers stumbled over, and names that have a plainer one: `language.py [FILE...]`.

Reads Markdown, YAML, shell, templates, and the string literals of Python. Without files: all that git tracks and a user
can read. Prints `file:line: text → what to write`; exit status 1 if there is any.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import shorten
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
READ = ("*.md", "*.py", "*.sh", "*.j2", "configs/*.yaml", "slurm.sh", "scripts/*")
NOT_READ = re.compile(r"CHANGELOG\.md|scripts/language\.py")  # the changelog tells of what was

_INVERTED = r"(?:(?:Is|Are|Was|Were|Had|Does|Should)\s(?:it|that|they|the|these|this|there)|Do they|Differs)\b"
# A pattern, in which a space stands for any white space, and what to write.
PHRASES: list[tuple[str, str]] = [
    (rf"{_INVERTED}[^?]*?(?:[.!]\s|\Z)", "begin the condition with `If`, or write a question"),
    (r"\b(?:stands?|stood|standing) still\b", "waits; does not run"),
    (r"\bwhat (?:it|they) brings?\b", "the commands, or settings, of it"),
    (r"\b(?:hold|holds|held|holding)\b(?: [^.\s]+){0,5}? against\b", "compare … with …"),
    (r"\bspeaks? against\b", "a reason against; no problem found"),
    (r"\bnobody is to\b", "it is hidden for …"),
    (r"\b(?:is|are) yours to \w+", "choose …"),
    (r"\bwhere it shall\b", "default: …"),
    (r"\bhow manieth\b", "index of …"),
    (r"\bstands there twice\b", "is given twice"),
    (r"\bbegin\b(?= (?:of|and the end)\b)|\bthe begin\b", "start"),
    (r"\bof it (?:\d|\{)", "name the part: `all in fp32`"),
    (r"\btell all\b", "show the solution"),
    (r"\bTold from\b", "reported from"),
    (r"\bhalf as often again\b", "1.5 times as often"),
    (r"\busual course\b", "a steady loss, present in every step"),
    (r"\bsays nothing about itself\b", "a run cannot be compared with itself"),
    (r"\bmessages' way\b", "transport"),
    (r"\bbe believed\b", "is reliable"),
    (r"\bits last word\b", "its exit status; its last line"),
    (r"\bthat nobody (?:knows|asked)\b", "name the default; unknown"),
    (r"\ba \w+ odd\b", "about a …"),
    (r"\bmiddle place\b|\baround the usual one\b", "median"),
    (r"\bas where\b", "for example if"),
    (r"\bfor how long\b.{0,20}\byours\b", "choose a duration"),
    (r"\bdid the loss notice\b", "did the loss change"),
    (r"\b(?:un)?heard (?:that|of|from)\b|\bwhether it heard\b", "confirmed; reported; answered"),
    (r"\bit is without either\b", "default"),
    (r"\bwhat else (?:it|they) brings?\b", "its other …"),
]
COMPILED = [(re.compile(pattern.replace(" ", r"\s+")), instead) for pattern, instead in PHRASES]
HEADING = re.compile(r"^#+ .*\?\s*$", re.MULTILINE)
MODULES = {
    "believed": "sanitize", "brought": "untrusted", "foreign": "untrusted", "asked": "request",
    "drawn": "timeline_model", "condensed": "page_data", "reduced": "partial_merge", "packed": "serialize",
    "unheard": "orphaned_submissions", "carrier": "submitter", "drive": "runner", "slurm_look": "poll",
    "slurm_words": "slurm_notation", "once_more": "retry_start", "inherited": "scrub_environment",
    "small_file": "bounded_read", "visible": "printable", "standing": "task_status", "door": "bootstrap",
    "crossings": "stream_dependencies", "meetings": "collectives", "sorts": "graph",
    "taken_out": "counterfactuals", "lane": "graph", "tiles": "graph",
}  # fmt: skip
CLASSES = {
    "Asked": "…Request", "Heard": "SlurmReply", "Side": "…Arm", "Plan": "…Plan", "Outcome": "…Outcome",
    "Verdict": "…Verdict", "Carrier": "Submitter",
}  # fmt: skip


class Found(NamedTuple):
    """One place that is refused."""

    place: str
    text: str
    instead: str


def found_in(name: str, text: str) -> Iterator[Found]:
    """What is refused in one file, by its name from the checkout's root."""
    if name.endswith(".py"):
        tree = ast.parse(text)
        yield from _names(name, tree)
        yield from _titles(name, tree)
        pieces = [] if name.startswith("tests/") else list(_literals(tree))
    else:
        pieces = [(1, text)]
    if name.endswith(".md"):
        yield from (Found(_place(name, 1, text, m), m[0].strip(), "a statement") for m in HEADING.finditer(text))
    for line, piece in pieces:
        for pattern, instead in COMPILED:
            for match in pattern.finditer(piece):
                yield Found(_place(name, line, piece, match), shorten(match[0], 80), instead)


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


def _titles(name: str, tree: ast.AST) -> Iterator[Found]:
    """Titles and captions of pages and tables that are questions."""
    for node in ast.walk(tree):
        match node:
            case ast.keyword(arg="title" | "caption", value=ast.Constant(value=str(title))) if title.endswith("?"):
                yield Found(f"{name}:{node.value.lineno}", title, "a statement")


def _names(name: str, tree: ast.AST) -> Iterator[Found]:
    """Modules and classes with a name that has a plainer one, where they are and where they are used."""
    if Path(name).stem in MODULES:
        yield Found(f"{name}:1", Path(name).stem, MODULES[Path(name).stem])
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module)):
                used = [*module.split("."), *(alias.name for alias in node.names)]
            case ast.ClassDef():
                used = [node.name]
            case _:
                used = []
        for each in used:
            if plainer := (MODULES if each.islower() else CLASSES).get(each):
                yield Found(f"{name}:{getattr(node, 'lineno', 1)}", each, plainer)


def tracked() -> list[str]:
    """The files that a user can read, as git knows them."""
    listed = ["git", "ls-files", "-z", *READ]
    done = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True)
    there = (name for name in done.stdout.split("\0") if name and (ROOT / name).is_file())
    return [name for name in there if not NOT_READ.match(name)]


def main(names: list[str]) -> int:
    """Print what is refused in the files, or in all of them."""
    refused = [
        found for name in names or tracked() for found in found_in(name, (ROOT / name).read_text(encoding="utf-8"))
    ]
    for found in refused:
        print(f"{found.place}: {found.text} → {found.instead}")
    return int(bool(refused))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

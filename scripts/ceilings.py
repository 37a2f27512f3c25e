"""Refuses a room that has grown over its ceiling in ceilings.yaml: `ceilings.py`; with `--write` it renews the file.

A room is a folder of harness/ or exercises/, counted in statements (`ast.stmt` without docstrings, so that the layout
does not matter), as are tests, benchmarks and scripts; docs and templates are counted in lines. `product` is what
harness/ and exercises/ have together. Whoever raises a ceiling says in the commit's body what a user gets for it.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CEILINGS = Path(__file__).with_name("ceilings.yaml")
HEAD = "# The most that a room may have, of statements; of docs and templates, lines (scripts/ceilings.py --write).\n"
PRODUCT = ("harness", "exercises")
STATEMENTS = (*PRODUCT, "tests", "benchmarks", "scripts")
LINES = ("docs", "templates")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def statements(text: str) -> int:
    """The statements of a module, without its docstrings."""
    nodes = list(ast.walk(ast.parse(text)))
    documented = sum(isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None for node in nodes)
    return sum(isinstance(node, ast.stmt) for node in nodes) - documented


def room_of(name: str) -> str:
    """The room of a file: its first folder, of the product the first two."""
    parts = name.split("/")
    return "/".join(parts[:2]) if parts[0] in PRODUCT and len(parts) > 2 else parts[0]


def sizes(root: Path) -> dict[str, int]:
    """The size of each room of a checkout: of what git knows, and of what it would take."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *STATEMENTS, *LINES]
    names = subprocess.run(listed, cwd=root, capture_output=True, text=True, check=True).stdout.split("\0")
    found = Counter[str]()
    for name in sorted(set(names) - {""}):
        folder, path = name.partition("/")[0], root / name
        if not path.is_file():
            continue
        if folder in STATEMENTS and path.suffix == ".py":
            found[room_of(name)] += statements(path.read_text(encoding="utf-8"))
        elif folder in LINES and path.suffix in (".md", ".j2", ".js", ".css"):
            found[folder] += len(path.read_text(encoding="utf-8").splitlines())
    found["product"] = sum(size for room, size in found.items() if room.partition("/")[0] in PRODUCT)
    return dict(sorted(found.items()))


def read() -> dict[str, int]:
    """The ceilings of the file."""
    lines = CEILINGS.read_text(encoding="utf-8").splitlines()
    rows = (line.rpartition(": ") for line in lines if not line.startswith("#"))
    return {room: int(size) for room, _, size in rows}


def faults(now: dict[str, int], ceilings: dict[str, int]) -> list[str]:
    """A sentence for each room that is over its ceiling or has none, and for each ceiling of no room."""
    over = [
        f"{room} has {size:,}, {size - ceilings[room]:,} over its ceiling of {ceilings[room]:,}"
        for room, size in now.items()
        if size > ceilings.get(room, size)
    ]
    new = [f"{room} has {size:,} and no ceiling" for room, size in now.items() if room not in ceilings]
    gone = [f"{room} has a ceiling and is gone" for room in ceilings if room not in now]
    return [*over, *new, *gone]


def main(words: list[str]) -> int:
    """Print what is wrong; 1 if anything is."""
    warnings.simplefilter("ignore", SyntaxWarning)  # of texts that tests have
    now = sizes(ROOT)
    if words == ["--write"]:
        CEILINGS.write_text(HEAD + "".join(f"{room}: {size}\n" for room, size in now.items()), encoding="utf-8")
        return 0
    found = faults(now, read())
    for sentence in found:
        print(f"{sentence}: take something out, or `scripts/ceilings.py --write` and say why in the commit's body")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

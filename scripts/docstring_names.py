"""Finds docstrings that explain a name which is gone: `docstring_names.py [FILE…]`.

`name: …` or `first, second: …` at the start of a sentence of a docstring is about parameters of the function, or about
fields, methods and variables of the class. Without files: the product and the programs. Exit status 1 if there is any.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("harness", "exercises", "benchmarks", "scripts", "containers")
EXPLAINED = re.compile(r"(?:^|(?<=[.;] ))((?:[a-z_]\w*, )*[a-z_]\w*): (?=\S)")
VALUES = {"empty", "none", "null", "true", "false", "default"}  # of what is explained before them
DOCUMENTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def gone(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The line of each function or class, and each name that its docstring explains and that it does not have."""
    for node in ast.walk(tree):
        if not isinstance(node, DOCUMENTED):
            continue
        text = " ".join((ast.get_docstring(node) or "").split())
        explained = {name for names in EXPLAINED.findall(text) for name in names.split(", ")}
        yield from ((node.lineno, name) for name in sorted(explained - VALUES - _names(node)))


def _names(node: ast.AST) -> set[str]:
    """The parameters of a function; of a class those of its methods, its variables and what it sets."""
    found = set[str]()
    for each in ast.walk(node):
        match each:
            case ast.arg(arg=name) | ast.Attribute(attr=name) | ast.FunctionDef(name=name):
                found.add(name)
            case ast.Name(id=name) if isinstance(node, ast.ClassDef):
                found.add(name)
    return found


def main(names: list[str]) -> int:
    """Print each such name with its file and line."""
    files = [Path(name) for name in names] or [path for each in FOLDERS for path in sorted((ROOT / each).rglob("*.py"))]
    wrong = [(path, *each) for path in files for each in gone(ast.parse(path.read_text(encoding="utf-8")))]
    for path, line, name in wrong:
        print(f"{path}:{line}: the docstring explains `{name}`, which is no parameter or field")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

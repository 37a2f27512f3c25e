"""Finds constants below a function or class, and `__main__` above the end: `module_order.py [FILE…]`.

A constant that uses a function, a class or a variable of its module stays below it. Without files: the product, and the
programs of benchmarks and scripts. Exit status 1 if there is any.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("harness", "exercises", "benchmarks", "scripts", "containers")
DECLARATION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
CONSTANT = re.compile(r"_*[A-Z][A-Z0-9_]*")


class Order(NamedTuple):
    """What stands in the wrong place of a module. mains: `if __name__ == "__main__"` below a function and not at
    the end; above the first one it prepares the imports of a program."""

    constants: list[ast.stmt]
    mains: list[ast.stmt]


def misplaced(tree: ast.Module) -> Order:
    """The statements of a module that belong to its top or its end."""
    body = tree.body
    first = next((i for i, each in enumerate(body) if isinstance(each, DECLARATION)), len(body))
    stays = {name for each in body[first:] if _constant(each) is None for name in _bound(each)}
    stays |= {name for name in map(_constant, body) if name and sum(name == _constant(each) for each in body) > 1}
    constants = []
    for each in body[first:]:
        if (name := _constant(each)) and ({name, *_used(each)} & stays):
            stays.add(name)
        elif name:
            constants.append(each)
    return Order(constants, [each for each in body[first:-1] if _is_main(each)])


def _constant(statement: ast.stmt) -> str | None:
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
            return name if CONSTANT.fullmatch(name) else None
    return None


def _bound(statement: ast.stmt) -> set[str]:
    """The names that a statement gives a meaning. What is no declaration, as a loop, may change each that it uses."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return {(alias.asname or alias.name).partition(".")[0] for alias in names}
        case ast.Assign(targets=targets):
            return {name for each in targets for name in _used(each)}
        case _:
            return set() if _is_main(statement) else _used(statement)


def _used(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _is_main(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and "__name__" in _used(statement.test)


def main(names: list[str]) -> int:
    """Print each statement in the wrong place, with its file and line."""
    files = [Path(name) for name in names] or [path for each in FOLDERS for path in sorted((ROOT / each).rglob("*.py"))]
    wrong = 0
    for path in files:
        order = misplaced(ast.parse(path.read_text(encoding="utf-8")))
        for statement in order.constants:
            print(f"{path}:{statement.lineno}: {_constant(statement)} belongs above the first function or class")
        for statement in order.mains:
            print(f"{path}:{statement.lineno}: `__main__` belongs to the end")
        wrong += len(order.constants) + len(order.mains)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The text below each field of a class, or constant of a module, as its source has it. Docs and schemas read it, so
that an import pays nothing for it."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from types import ModuleType


def field_texts(cls: type) -> dict[str, str]:
    """The text of each field that `cls` declares itself, in order, as one line; empty for a field without a text."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    return dict(_fields(tree.body))


def constant_texts(module: ModuleType) -> dict[str, str]:
    """The text below each constant of `module`, in order, as one line."""
    return dict(_fields(ast.parse(inspect.getsource(module)).body))


def _fields(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for statement, below in zip(body, [*body[1:], ast.Pass()], strict=True):
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind) if "ClassVar" not in ast.dump(kind):
                yield name, _text(below)
            case ast.Assign(targets=[ast.Name(id=name)]) if _text(below):
                yield name, _text(below)


def _text(statement: ast.stmt) -> str:
    match statement:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return " ".join(text.split())
    return ""

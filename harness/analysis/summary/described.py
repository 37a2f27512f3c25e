"""The text below each field of a class, as its source has it. Docs and schemas read it; imports pay nothing for it.

class Spread(SummaryPart):
    count: int
    \"""How many values.\"""
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator


def field_texts(cls: type) -> dict[str, str]:
    """The text of each field that `cls` declares itself, in order, as one line; empty for a field without a text."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    return dict(_fields(tree.body))


def _fields(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for statement, below in zip(body, [*body[1:], ast.Pass()], strict=True):
        match statement, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, " ".join(text.split())
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind), _ if "ClassVar" not in ast.dump(
                kind
            ):
                yield name, ""

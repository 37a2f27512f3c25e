"""One small expression language: numbers, the metrics of named runs, arithmetic, comparisons, and/or/not.

`b.data_loading_share >= 3 * a.data_loading_share` reads as it is written. Python parses it but does not run it:
every node that is not listed here is refused, so that a lesson file or a flag is never a program.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from harness.common.errors import RequestError, nearest_or_list

Scalar = float | bool
Variables = Mapping[str, float | None] | Mapping[str, Mapping[str, float]]

ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
COMPARISON: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_MOST_SHOWN = 60  # characters of a refused text
FUNCTIONS: dict[str, Callable[..., float]] = {"abs": abs, "min": min, "max": max}


class Unanswerable(Exception):
    """The expression is valid, but these numbers do not answer it; the message says why, as a clause."""


def evaluate(text: str, variables: Variables) -> Scalar:
    """The value of an expression.

    Args:
        text: e.g. `step_time > 1.05` or `abs(b.bubble - b.expected_bubble) < 0.05`.
        variables: name → number, or run → metric → number.

    Raises:
        RequestError: the text is not an expression of this language.
        Unanswerable: a metric that it names was not measured, or it divides by zero.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval")
        return _value(tree.body, variables, text)
    except ZeroDivisionError:
        raise Unanswerable("it divides by zero") from None
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        raise RequestError(f"{_begin(text)} is not an expression such as 'step_time > 1.05'") from None


def _begin(text: str) -> str:
    return repr(text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…")


def _value(expr: ast.expr, variables: Variables, text: str) -> Scalar:  # noqa: PLR0911 - one return per kind of node
    match expr:
        case ast.Constant(value=bool() | int() | float() as number):
            return number
        case ast.Name() | ast.Attribute():
            return _metric(expr, variables, text)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, variables, text)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, variables, text)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            return ARITHMETIC[type(op)](_value(left, variables, text), _value(right, variables, text))
        case ast.BoolOp(op=op, values=values):
            join = all if isinstance(op, ast.And) else any
            return join([bool(_value(v, variables, text)) for v in values])
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(o) in COMPARISON for o in ops):
            sides = [_value(v, variables, text) for v in (left, *others)]
            return all(COMPARISON[type(o)](sides[i], sides[i + 1]) for i, o in enumerate(ops))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if _is_call(name, len(args)):
            return FUNCTIONS[name](*(_value(a, variables, text) for a in args))
    raise RequestError(
        f"{text!r}: {ast.unparse(expr)} is not allowed here; allowed are numbers, metrics, + - * /, comparisons, "
        f"and, or, not, {', '.join(FUNCTIONS)}"
    )


def _is_call(name: str, count: int) -> bool:
    """abs takes one number, min and max two or more."""
    return name in FUNCTIONS and (count == 1 if name == "abs" else count >= 2)


def _metric(expression: ast.Name | ast.Attribute, variables: Variables, text: str) -> float:
    found: Any = variables
    path = ast.unparse(expression).split(".")
    for depth, part in enumerate(path):
        if not isinstance(found, Mapping):
            raise RequestError(f"{text!r}: {'.'.join(path[:depth])} is a number and has no {part}")
        if part not in found:
            if depth == len(path) - 1 and len(path) > 1:
                raise Unanswerable(f"{'.'.join(path)} was not measured")
            hint = nearest_or_list(part, found, "compare --json lists all")
            raise RequestError(f"{text!r}: there is no {part!r} here{hint}")
        found = found[part]
    if found is None:
        raise Unanswerable(f"{'.'.join(path)} was not measured in every run")
    if isinstance(found, Mapping):
        raise RequestError(f"{text!r}: {'.'.join(path)} is a run: name one of its metrics, {'.'.join(path)}.step_ns")
    return float(found)

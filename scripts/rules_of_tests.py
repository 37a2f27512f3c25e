"""Refuses what makes a test depend on the machine: `rules_of_tests.py [FILE…]`, by default all of tests/.

- A `sleep` needs a comment with its reason, on its line or the one above.
- No assertion compares with a constant what a clock in the test has measured.
- A wait has a limit: `wait`, `communicate`, `join` and `subprocess.run` take one; a loop that polls is `wait_until` of
  tests/waiting.py.

Prints `file:line: what is wrong → what to do`; exit status 1 if there is any. Programs that a test writes are strings,
and are not read.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_OF_TIME = ("monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns", "process_time")
CLOCKS = {f"time.{name}" for name in _OF_TIME}
WAITS = {"wait", "communicate", "join"}  # without an argument
RUNS = {f"subprocess.{name}" for name in ("run", "call", "check_call", "check_output")}
NOT_READ = ("tests/waiting.py", "tests/own/scripts/")  # the one wait; programs of users


def problems(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a file and what is wrong there."""
    tree = ast.parse(text)
    lines = ["", *text.splitlines()]
    has_clock = "time." in text
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            name = called.rpartition(".")[2]
            if name == "sleep" and "#" not in lines[node.lineno - 1] + lines[node.lineno]:
                yield node.lineno, "sleep without a reason → wait_until(state), or a comment that says why"
            elif name in WAITS and isinstance(node.func, ast.Attribute) and not node.args and not node.keywords:
                yield node.lineno, f".{name}() without a limit → .{name}(timeout=limit_s())"
            elif called in RUNS and "timeout" not in {each.arg for each in node.keywords}:
                yield node.lineno, f"{called} without a limit → timeout=limit_s()"
        elif isinstance(node, ast.While) and "sleep(" in ast.unparse(node):
            yield node.lineno, "a loop that polls → wait_until(condition, what) of tests/waiting.py"
        elif isinstance(node, ast.FunctionDef) and has_clock:
            yield from _timed_assertions(node)


def _timed_assertions(function: ast.FunctionDef) -> Iterator[tuple[int, str]]:
    """Assertions with a clock, or with a variable that a clock has set."""
    timed: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and _has_clock(node.value, timed):
            timed |= {name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    for node in ast.walk(function):
        if isinstance(node, ast.Assert) and any(_is_limit_of_time(each, timed) for each in ast.walk(node.test)):
            yield node.lineno, "an assertion about a duration → a state, a count, a stored recording, or a benchmark"


def _is_limit_of_time(node: ast.AST, timed: set[str]) -> bool:
    """Whether a measured time is compared with a constant. With what the product measured within it is no limit."""
    if not isinstance(node, ast.Compare):
        return False
    operands = [node.left, *node.comparators]
    return any(
        _has_clock(measured, timed) and _is_constant(limit)
        for pair in pairwise(operands)
        for measured, limit in (pair, pair[::-1])
    )


def _is_constant(expression: ast.AST) -> bool:
    """A number, one with a name, or a product or sum of these."""
    if isinstance(expression, ast.BinOp):
        return _is_constant(expression.left) and _is_constant(expression.right)
    return isinstance(expression, ast.Constant) or (isinstance(expression, ast.Name) and expression.id.isupper())


def _has_clock(expression: ast.AST, timed: set[str]) -> bool:
    """Whether it is a clock's time, or a difference with one. A function that is given a time measures nothing."""
    if isinstance(expression, ast.Call):
        return ast.unparse(expression.func) in CLOCKS
    if isinstance(expression, ast.Name):
        return expression.id in timed
    if isinstance(expression, ast.BinOp | ast.Compare | ast.BoolOp | ast.UnaryOp):
        return any(_has_clock(each, timed) for each in ast.iter_child_nodes(expression))
    return False


def main(names: Sequence[str]) -> int:
    files = [Path(name).resolve() for name in names] or sorted((ROOT / "tests").rglob("*.py"))
    found = 0
    for file in files:
        name = str(file.relative_to(ROOT))
        if not name.startswith(NOT_READ):
            for line, what in sorted(problems(file.read_text(encoding="utf-8"))):
                print(f"{name}:{line}: {what}")
                found += 1
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What `scripts/hangs.py` does by its kinds: the cause that is to be named, and its line."""

from __future__ import annotations

import ast
from pathlib import Path

HANGS = {
    "sleep": "sleeps",
    "poll": "sleeps",
    "loop": "computes",
    "lock": "lock",
    "thread": "lock",
    "fifo": "file",
    "pipe": "file",
    "socket": "socket",
    "child": "child",
    "stopped": "stopped",
    "worker": "worker",
    "worker-stopped": "worker",
    "holds-gil": "sleeps",
    "extra": "other collective",
    "op": "other collective",
    "order": "order",
    "recv": "no partner",
}
DEATHS = ("raise", "nested", "library", "exit", "os-exit", "segv", "abort", "kill", "memory", "early")
SLOW = (
    *("slow-evaluation", "slow-computing", "slow-checkpoint", "slow-garbage", "slow-child", "slow-sleep"),
    *("slow-loader", "slow-loader-cpu", "slow-compile"),
)

OF_EXERCISES = {
    "sleep": "sleeps",
    "loop": "computes",
    "lock": "lock",
    "file": "file",
    "socket": "socket",
    "child": "child",
    "stopped": "stopped",
    "worker-hangs": "worker",
    "worker-stopped": "worker",
    "missing-collective": "other collective",
    "other-collective": "other collective",
    "other-size": "other collective",
    "order": "order",
    "left-early": "left early",
    "no-receive": "no partner",
}
"""Of `--fault hang` in an exercise."""


def function_lines(file: Path, kind: str) -> range:
    """The lines of the function that does a kind of `OF_EXERCISES`."""
    name = "_worker" if kind.startswith("worker") else f"_{kind.replace('-', '_')}"
    functions = (each for each in ast.parse(file.read_text()).body if isinstance(each, ast.FunctionDef))
    (found,) = (each for each in functions if each.name == name)
    return range(found.lineno, (found.end_lineno or found.lineno) + 1)


def lines_of(script: Path, kind: str) -> tuple[int, ...]:
    """The lines of which one is to be named: of a loop both of its own."""
    line = line_of(script, kind)
    return (line, line - 1) if kind == "loop" else (line,)


def line_of(script: Path, kind: str) -> int:
    """The line of the script that has the kind as its comment."""
    lines = script.read_text(encoding="utf-8").splitlines()
    kind = "worker" if kind == "worker-stopped" else kind
    marked = (
        number for number, line in enumerate(lines, 1) if line.partition("  # ")[2].split(":")[0] == kind
    )
    return next(marked)

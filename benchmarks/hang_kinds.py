"""What `scripts/hangs.py` does by its kinds: the cause that is to be named, and its line."""

from __future__ import annotations

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
    "new-group": "group",
}
WITHOUT_STACK = ("stopped", "holds-gil")  # their Python cannot run, so the line is the one that was seen last
DEATHS = ("raise", "nested", "library", "exit", "os-exit", "segv", "abort", "kill", "memory", "early")
SLOW = (
    *("slow-evaluation", "slow-computing", "slow-checkpoint", "slow-garbage", "slow-child", "slow-sleep"),
    *("slow-loader", "slow-loader-cpu", "slow-compile", "slow-download"),
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


def line_of_fault(script: Path, kind: str) -> int:
    """The line of an exercise's script in which a kind of `OF_EXERCISES` happens: it loads a batch, or its forward
    pass begins."""
    text = "= next(batches)" if kind.startswith("worker") else "(**batch).loss"
    lines = enumerate(script.read_text(encoding="utf-8").splitlines(), 1)
    return next(number for number, line in lines if text in line)


def lines_of(script: Path, kind: str) -> tuple[int, ...]:
    """The lines of which one is to be named: of a loop both of its own."""
    line = line_of(script, kind)
    return (line, line - 1) if kind == "loop" else (line,)


def line_of(script: Path, kind: str) -> int:
    """The line of the script that has the kind as its comment."""
    lines = script.read_text(encoding="utf-8").splitlines()
    kind = "worker" if kind == "worker-stopped" else kind
    marked = (number for number, line in enumerate(lines, 1) if line.partition("  # ")[2].split(":")[0] == kind)
    return next(marked)

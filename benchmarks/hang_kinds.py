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
}
DEATHS = ("raise", "nested", "library", "exit", "os-exit", "segv", "abort", "kill", "memory", "early")
SLOW = (
    *("slow-evaluation", "slow-computing", "slow-checkpoint", "slow-garbage", "slow-child", "slow-sleep"),
    *("slow-loader", "slow-loader-cpu", "slow-compile"),
)


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

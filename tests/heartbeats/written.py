"""Writes heartbeats as a node's monitor does, for tests and for a look at the screen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.common.run_folder.heartbeats import Beat, encode
from harness.common.run_folder.run_files import HEARTBEATS

S = 1_000_000_000
START_NS = 1_790_000_000 * S


def beat(rank: int, step: int, took_ms: list[float] | None = None, **fields: Any) -> Beat:
    """A rank in a step, the steps before which took so long. own_ms: without waiting, if other than that."""
    took = took_ms or []
    own = fields.pop("own_ms", took)
    given: dict[str, Any] = {
        "phase": "f",
        "idle_ms": 0,
        "quiet_ms": 0,
        "slot": 1,
        "memory_mib": 2048,
        "use_percent": 90,
        "loss": "2.5",
        **fields,
    }
    return Beat(
        rank=rank,
        step=step,
        first=step - len(took),
        per=1,
        steps=encode([ms * 1e3 for ms in took]),
        own_phase=encode([ms * 1e3 for ms in own]),
        **given,
    )


class NodeWriter:
    """One node's file. now_ns: the node's clock, which `beats` moves on by a period."""

    def __init__(self, run: Path, name: str, ranks: range, steps: int | None = 1000, host: str = "") -> None:
        self.path = HEARTBEATS.path(run, name)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.ranks, self.now_ns = ranks, START_NS
        self.line(event="node", node=0, host=host or f"host-{name}", name=name, unix_ns=self.now_ns)
        for rank in ranks:
            self.line(
                event="rank", rank=rank, world=8, local=rank - ranks.start, pid=1000 + rank, steps=steps,
                unix_ns=self.now_ns,
            )  # fmt: skip
        self.line(event="place", id=1, file="/home/ada/train.py", line=42, function="forward")
        self.line(event="place", id=2, file="/home/ada/data.py", line=7, function="__getitem__")

    def line(self, **fields: Any) -> None:
        """Append a line of any event."""
        self.text(json.dumps(fields) + "\n")

    def text(self, text: str) -> None:
        """Append a text, which may be no line."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text)

    def beats(self, *beats: Beat, samples: int | None = 64, tokens: int | None = 8192) -> None:
        """Append a beat of these ranks, two seconds after the last."""
        self.now_ns += 2 * S
        self.line(event="beat", unix_ns=self.now_ns, ranks=beats, samples=samples, tokens=tokens)

    def run(self, lines: int, per_line: int = 4, ms: float = 500, first: int = 0, **fields: Any) -> int:
        """So many lines of all ranks at the same pace; returns the step that they are in."""
        for number in range(lines):
            step = first + (number + 1) * per_line
            self.beats(*(beat(rank, step, [ms] * per_line, **fields) for rank in self.ranks))
        return first + lines * per_line

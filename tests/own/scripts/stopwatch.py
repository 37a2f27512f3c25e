"""Times of a training's steps, taken by the training itself and written as JSON when it ends."""

from __future__ import annotations

import atexit
import json
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

PARTS = ("data", "forward", "backward", "optimizer")


class Stopwatch:
    """What each step of one rank took, in `FILE.rank<R>`; without a file nothing is written.

    A part inside of another one counts for itself only. unknown: parts that this training cannot time. When the first
    step has ended there is `FILE.rank<R>.begun`.
    """

    def __init__(self, file: Path | None, rank: int = 0, unknown: Collection[str] = ()) -> None:
        self._unknown = unknown
        self._now = dict.fromkeys(PARTS, 0)
        self._inside: list[int] = []
        self._start_unix_ns = time.time_ns()
        self._step_end_unix_ns: list[int] = []
        self._parts: dict[str, list[int]] = {part: [] for part in PARTS}
        self._losses: list[object] = []
        self._begun: Path | None = None
        if file is not None:
            own = file.with_name(f"{file.name}.rank{rank}")
            self._begun = own.with_name(f"{own.name}.begun")
            atexit.register(self._write, own)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time of the block for this part of the current step."""
        begin = time.perf_counter_ns()
        self._inside.append(0)
        try:
            yield
        finally:
            spent = time.perf_counter_ns() - begin
            self._now[name] += spent - self._inside.pop()
            if self._inside:
                self._inside[-1] += spent

    def loss(self, value: object) -> None:
        """Keep a loss; it is read only when the training ends. mse_loss gives a number in the memory of all errors."""
        self._losses.append(value.clone() if isinstance(value, Tensor) else value)

    def step_done(self) -> None:
        """The current step ends here."""
        self._step_end_unix_ns.append(time.time_ns())
        for name, spent in self._now.items():
            self._parts[name].append(spent)
        self._now = dict.fromkeys(PARTS, 0)
        if self._begun is not None:
            self._begun.touch()
            self._begun = None

    def _write(self, file: Path) -> None:
        times = {f"{n}_ns": None if n in self._unknown else spent for n, spent in self._parts.items()}
        written = {
            "steps": len(self._step_end_unix_ns),
            "start_unix_ns": self._start_unix_ns,
            "step_end_unix_ns": self._step_end_unix_ns,
            **times,
            "losses": [float(loss).hex() for loss in self._losses],  # type: ignore[arg-type]  # numbers and tensors
        }
        file.write_text(json.dumps(written), encoding="utf-8")

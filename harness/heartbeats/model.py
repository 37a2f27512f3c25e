"""A run while it runs: its nodes and ranks as their heartbeats have them, how fast it is, and how long earlier ones
took. Knows no file.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from harness.common.run_folder.heartbeats import DIGITS, LEAST_S, PHASES, RECENT, STEPS_PER_E, TIMES_USUAL, Beat
from harness.heartbeats.lines import LossLine, ProgramLine
from harness.heartbeats.silent_nodes import SILENT_S

MOST = 4096  # entries that a rank keeps; 16 bytes each

Floats = npt.NDArray[np.float32]
_VALUE = np.zeros(256, np.int16)  # of a character
_VALUE[np.frombuffer(DIGITS.encode(), np.uint8)] = np.arange(len(DIGITS))
_US: Floats = np.exp(np.arange(len(DIGITS) ** 2) / STEPS_PER_E).astype(np.float32)
LINES = 128  # of a node, whose samples are kept
RATE_S = 30.0  # samples and tokens are counted over at least so long
FIRST_S = 30.0  # without progress, of a rank whose steps are not known yet
NS = 1_000_000_000
PACE_STEPS = 1024  # the last ones, in which changes of pace are looked for


def decode(text: str) -> Floats:
    """Durations in microseconds, of a text of `heartbeats.encode`.

    >>> from harness.common.run_folder.heartbeats import encode
    >>> decode(encode([1, 1000, 250_000])).round().tolist()
    [1.0, 1001.0, 250005.0]
    """
    values = _VALUE[np.frombuffer(text.encode(), np.uint8)]
    durations: Floats = _US[values[::2] * 64 + values[1::2]]
    return durations


class History:
    """Entries of steps, oldest first, the last MOST. An entry may be the mean of several steps: then the steps between
    two entries have the first one's time.

    steps: the number of each entry's first step. us: microseconds of a step; own_us: those of them in which the rank
    did not wait for other ranks; NaN: not known.
    """

    def __init__(self) -> None:
        self.steps = np.empty(0, np.int64)
        self.us: Floats = np.empty(0, np.float32)
        self.own_us = self.us

    def __len__(self) -> int:
        return len(self.steps)

    def take(self, beats: Sequence[Beat]) -> None:
        """Add the steps that ended before these beats."""
        spans = [range(beat.first, beat.first + beat.per * (len(beat.steps) // 2), beat.per) for beat in beats]
        self.steps = _joined(self.steps, np.array(list(chain.from_iterable(spans)), np.int64))
        self.us = _joined(self.us, decode("".join(beat.steps for beat in beats)))
        own_us = decode("".join(beat.own_phase for beat in beats))
        self.own_us = _joined(self.own_us, np.where(own_us > _US[0], own_us, np.float32(np.nan)))


def _joined(old: npt.NDArray[Any], newer: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.concatenate([old, newer])[-MOST:]


class Gone(NamedTuple):
    """The end of a rank's process. ended: its training was over. oom: "cgroup" or "machine" killed for memory. step: in
    which it was; None: not known."""

    unix_ns: int
    ended: bool
    oom: str | None
    step: int | None


class ProcessedBatch(NamedTuple):
    """What a node's ranks have processed since the line before; None: not known."""

    unix_ns: int
    samples: float | None
    tokens: float | None


@dataclass
class NodeMonitor:
    """A node's monitor. name: as its file has it. seen_ns: when the reader last found something new, by its clock;
    last_ns: the same by the node's."""

    name: str
    host: str = ""
    last_ns: int = 0
    seen_ns: int = 0
    ended: bool = False
    processed: deque[ProcessedBatch] = field(default_factory=lambda: deque(maxlen=LINES))

    def age_s(self, now_ns: int) -> float:
        """Seconds since its last line. Clocks of two machines differ: a line that just came is new."""
        return max(0, now_ns - max(self.last_ns, self.seen_ns)) / NS

    def per_s(self, name: str, least_s: float) -> float | None:
        """Samples or tokens per second, over the last `least_s` seconds or more; None: not known, or none yet."""
        known = [(line.unix_ns, count) for line in self.processed if (count := getattr(line, name)) is not None]
        begins = next((n for n, (_, count) in enumerate(known) if count), len(known))
        known = known[max(0, begins - 1) :]
        if len(known) < 2:
            return None
        first = next((n for n, (at_ns, _) in enumerate(known) if at_ns >= known[-1][0] - least_s * NS), 0)
        first = min(first, len(known) - 2)
        span_ns = known[-1][0] - known[first][0]
        return sum(count for _, count in known[first + 1 :]) * NS / span_ns if span_ns > 0 else None


@dataclass
class RankHistory:
    """A rank. beat: its last one, of beat_ns. steps: how many are planned; None: not known. recent_us,
    recent_own_us: medians of its last RECENT steps, in microseconds: in all, without waiting for other ranks; None: not
    known."""

    rank: int
    node: str
    host: str = ""
    pid: int | None = None
    steps: int | None = None
    beat: Beat | None = None
    beat_ns: int = 0
    code_line: ProgramLine | None = None
    gone: Gone | None = None
    history: History = field(default_factory=History)
    recent_us: float | None = None
    recent_own_us: float | None = None

    @property
    def phase(self) -> str | None:
        """data, forward, backward, optimizer; None: none of them, or not known."""
        return PHASES.get(self.beat.phase) if self.beat else None

    @property
    def step(self) -> int | None:
        """The number of the step that it is in, which is how many it has done; None: no step is known."""
        if self.gone is not None:
            return self.gone.step
        return self.beat.step if self.beat else None

    @property
    def ended(self) -> bool:
        """Whether its training was over."""
        return self.gone is not None and self.gone.ended

    def quiet_s(self) -> float:
        """Seconds without a sign of life, at its last beat; of a rank that is gone 0."""
        return 0.0 if self.beat is None or self.gone is not None else self.beat.quiet_ms / 1e3

    def idle_s(self) -> float:
        """Seconds since its last progress, at its last beat."""
        return self.beat.idle_ms / 1e3 if self.beat else 0.0

    def is_idle(self) -> bool:
        """Whether it makes no progress for longer than its steps explain; of a rank that is gone False."""
        usual_s = FIRST_S if self.recent_us is None else TIMES_USUAL * self.recent_us / 1e6
        return self.gone is None and self.idle_s() > max(LEAST_S, usual_s)

    def takes(self, beat: Beat, unix_ns: int) -> None:
        """Take what a beat says of now."""
        self.beat, self.beat_ns = beat, unix_ns

    def learn(self, beats: Sequence[Beat]) -> None:
        """Take the steps that ended before these beats."""
        self.history.take(beats)
        self.recent_us = float(np.median(self.history.us[-RECENT:]))
        own_us = self.history.own_us
        if (known := own_us[~np.isnan(own_us)]).size:
            self.recent_own_us = float(np.median(known[-RECENT:]))


class RunProgress(NamedTuple):
    """How far a run is, and how fast. step: how many are done, by the rank that is behind. None: not known; remaining_s
    also where no rank makes progress."""

    step: int | None
    steps: int | None
    step_ns: float | None
    samples_per_s: float | None
    tokens_per_s: float | None
    remaining_s: float | None


@dataclass
class Live:
    """A run, by its heartbeats. path: its folder. job_id: by which commands name it. losses: by rank, its first one
    that is not finite. now_ns: unix time of the last reading.

    Whoever asks Slurm sets the rest. began_ns, deadline_ns: unix times when it began and when its time limit ends it;
    None: not known. warning_s: so long before its time limit it is asked to end, but not in the first three quarters.
    suspended: its processes do not run for a while.
    """

    path: Path
    job_id: str = "last"
    nodes: dict[str, NodeMonitor] = field(default_factory=dict)
    ranks: dict[int, RankHistory] = field(default_factory=dict)
    losses: dict[int, LossLine] = field(default_factory=dict)
    now_ns: int = 0
    began_ns: int | None = None
    deadline_ns: int | None = None
    warning_s: int = 0
    suspended: bool = False

    @property
    def there(self) -> bool:
        """Whether there are any heartbeats."""
        return bool(self.nodes)

    @property
    def training(self) -> list[RankHistory]:
        """The ranks whose process is there, as far as is known, by number."""
        return [self.ranks[number] for number in sorted(self.ranks) if self.ranks[number].gone is None]

    def slowest_first(self) -> list[RankHistory]:
        """The ranks, by the time of their last steps without waiting for others, then by the steps' time."""
        return sorted(
            self.ranks.values(), key=lambda rank: (-(rank.recent_own_us or 0), -(rank.recent_us or 0), rank.rank)
        )

    def silent_nodes(self) -> list[NodeMonitor]:
        """The nodes that do not report any more, and have not said that they ended."""
        return [node for node in self.nodes.values() if self.is_silent(node)]

    def is_silent(self, node_monitor: NodeMonitor) -> bool:
        return not node_monitor.ended and node_monitor.age_s(self.now_ns) > SILENT_S

    def progress(self) -> RunProgress:
        """How far it is, and how fast."""
        ranks = self.training or list(self.ranks.values())
        step = min((rank.step for rank in ranks if rank.step is not None), default=None)
        steps = max((rank.steps for rank in self.ranks.values() if rank.steps is not None), default=None)
        recent = [rank.recent_us for rank in ranks if rank.recent_us is not None]
        step_ns = float(np.median(recent)) * 1e3 if recent else None
        least_s = max(RATE_S, 10 * (step_ns or 0) / NS)
        moves = any(not rank.is_idle() for rank in self.training)
        known = step is not None and steps is not None and step_ns is not None and moves
        return RunProgress(
            step=step,
            steps=steps,
            step_ns=step_ns,
            samples_per_s=self._per_s("samples", least_s),
            tokens_per_s=self._per_s("tokens", least_s),
            remaining_s=max(0, steps - step) * step_ns / NS if known else None,  # type: ignore[operator]
        )

    def _per_s(self, name: str, least_s: float) -> float | None:
        rates = [node.per_s(name, least_s) for node in self.nodes.values()]
        known = [rate for rate in rates if rate is not None and 0 <= rate < math.inf]
        return sum(known) if known else None


Matrix = npt.NDArray[np.float64]


class AlignedSteps(NamedTuple):
    """ranks: their numbers, one for each row. first: the number of the first column's step. us, own_us: microseconds of
    a step, in all and without waiting for other ranks; NaN: not known."""

    ranks: tuple[int, ...]
    first: int
    us: Matrix
    own_us: Matrix


def aligned(rank_histories: Sequence[RankHistory], most: int = PACE_STEPS) -> AlignedSteps | None:
    """The last `most` steps of these ranks; None: no step is known. A mean of several steps stands for each of them."""
    known = [rank for rank in rank_histories if len(rank.history)]
    if not known:
        return None
    last = max(int(rank.history.steps[-1]) for rank in known)
    first = max(0, last - most + 1)
    us, own_us = (np.full((len(known), last - first + 1), np.nan) for _ in range(2))
    for row, rank in enumerate(known):
        entries, columns = _columns(rank.history, first, last)
        us[row, columns] = rank.history.us[entries]
        own_us[row, columns] = rank.history.own_us[entries]
    return AlignedSteps(tuple(rank.rank for rank in known), first, us, own_us)


def _columns(history: History, first: int, last: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]]:
    """Entries, each as often as it has steps in these columns, and the columns."""
    steps = history.steps
    back = np.flatnonzero(np.diff(steps) <= 0)  # steps were counted anew
    begins = int(back[-1]) + 1 if len(back) else 0
    begins = max(begins, int(np.searchsorted(steps[begins:], first, "right")) + begins - 1)
    widths = np.diff(steps[begins:])
    usual = int(np.median(widths)) if len(widths) else 1
    counts = np.append(np.minimum(widths, max(1, usual)), max(1, usual))  # a wider gap was not recorded
    entries = np.repeat(np.arange(begins, len(steps)), counts)
    inside = np.arange(len(entries)) - np.repeat(np.cumsum(counts) - counts, counts)
    columns = steps[entries] + inside - first
    there = (columns >= 0) & (columns <= last - first)
    return entries[there], columns[there]

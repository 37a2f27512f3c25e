"""Reads a run's heartbeats: at first each file's beginning and end, then what was appended. Knows nothing of Slurm.

A line that is damaged is left out, and one that is not complete is read again. The files may be anybody's: what is read
of them, and what is kept, is bounded.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from harness.common.run_folder.heartbeats import DIGITS, PHASES, Beat
from harness.common.system.bounded_read import open_regular
from harness.heartbeats.hang import Hang, read_hang
from harness.heartbeats.lines import (
    BeatLine,
    GoneLine,
    Line,
    LossLine,
    MonitorEnd,
    NodeLine,
    PlaceLine,
    ProgramLine,
    RankHeader,
    decoded,
    node_files,
)
from harness.heartbeats.model import Gone, Live, NodeMonitor, ProcessedBatch, RankHistory

HEAD_BYTES, TAIL_BYTES = 16 << 10, 64 << 10  # of a file, at the first reading
MOST_NEW_BYTES = 4 << 20  # of a file between two readings; of more, the tail
MOST_LINE_BYTES = 1 << 20
MOST_RANKS, MOST_PLACES = 1024, 10_000  # of a node
_MOST_NAME = 1024  # characters
_MOST, _MOST_STEPS = 1 << 40, 1 << 31
_ENCODED = re.compile(f"(?:[{re.escape(DIGITS)}]{{2}})*")


class Reader:
    """Follows the heartbeats of a run. run: its folder. live: what they say."""

    def __init__(self, run: Path, job_id: str = "last", now_ns: Callable[[], int] = time.time_ns) -> None:
        self.live = Live(run, job_id)
        self._now_ns = now_ns
        self._files: dict[Path, _NodeFile] = {}

    def read(self) -> Live:
        """Take what is new; returns `live`."""
        for path in node_files(self.live.path):
            if path not in self._files:
                self._files[path] = _NodeFile(path, self.live)
            self._files[path].read(self._now_ns)
        self.live.now_ns = self._now_ns()
        return self.live


def stuck_to_its_end(run: Path) -> Hang | None:
    """Who was stuck where, if no rank made a step after it; None: it never was, or went on."""
    hang = read_hang(run)
    if hang is None or hang.until_ns is None:
        return hang
    steps = [rank.step for rank in Reader(run).read().ranks.values() if rank.step is not None]
    return hang if max(steps, default=hang.step) <= hang.step else None


class _NodeFile:
    """One node's file, and how far it was read."""

    def __init__(self, path: Path, live: Live) -> None:
        self._path, self._name, self._live = path, path.stem, live
        self._position: int | None = None
        self._places: dict[int, ProgramLine] = {}
        self._mine: set[int] = set()
        self._new: dict[int, list[Beat]] = {}

    def read(self, now_ns: Callable[[], int]) -> None:
        """Take what is new. A file that is missing, or no file, has nothing."""
        try:
            with open_regular(self._path) as file:
                begins = self._position
                fresh = self._take(file, begins)
        except (OSError, ValueError):
            return
        if fresh and begins is not None:
            self._node.seen_ns = now_ns()
        for number, beats in self._new.items():
            self._live.ranks[number].learn(beats)
        self._new = {}

    def _take(self, file: BinaryIO, begins: int | None) -> bool:
        """Take the new lines; returns whether there were any."""
        size = os.fstat(file.fileno()).st_size
        if begins is None or size < begins:  # the first reading, or another file under the name
            begins = 0
            if size > HEAD_BYTES + TAIL_BYTES:
                self._lines(_complete(file.read(HEAD_BYTES)), without_beats=True)
        at_start = begins
        if size - begins > (MOST_NEW_BYTES if begins else HEAD_BYTES + TAIL_BYTES):
            begins = size - TAIL_BYTES
        file.seek(begins)
        text = file.read(min(size - begins, MOST_NEW_BYTES))
        whole = _complete(text)
        held_back = len(text) - len(whole)
        self._position = begins + len(text) - (held_back if held_back < MOST_LINE_BYTES else 0)
        if begins > at_start:
            whole = whole[whole.find(b"\n") + 1 :]  # the first line is cut
        return self._lines(whole)

    def _lines(self, text: bytes, without_beats: bool = False) -> bool:
        found = False
        for line in decoded(text):
            found = True
            if not (without_beats and isinstance(line, (BeatLine, GoneLine, MonitorEnd))):
                self._take_line(line)
        return found

    @property
    def _node(self) -> NodeMonitor:
        return self._live.nodes.setdefault(self._name, NodeMonitor(self._name))

    def _rank(self, number: int) -> RankHistory | None:
        """This node's rank of a number; None: there is none, or it is not to be kept."""
        if number not in self._mine:
            if len(self._mine) >= MOST_RANKS or not 0 <= number < 1 << 20:
                return None
            self._mine.add(number)
            self._live.ranks.setdefault(number, RankHistory(number, self._name))
        return self._live.ranks[number]

    def _beat(self, line: BeatLine) -> None:
        self._heard(line.unix_ns).processed.append(ProcessedBatch(line.unix_ns, line.samples, line.tokens))
        for beat in line.ranks:
            rank = self._rank(beat.rank) if _is_possible(beat) else None
            if rank is None or (rank.node != self._name and line.unix_ns < rank.beat_ns):
                continue
            rank.node, rank.host = self._name, self._node.host
            rank.code_line = self._places.get(beat.slot)
            rank.takes(beat, line.unix_ns)
            if beat.steps:
                self._new.setdefault(beat.rank, []).append(beat)

    def _take_line(self, line: Line) -> None:
        match line:
            case BeatLine():
                self._beat(line)
            case NodeLine():
                self._node.host, self._node.ended = line.host[:_MOST_NAME], False
                self._heard(line.unix_ns)
                self._places.clear()  # another monitor has its own numbers
            case RankHeader():
                self._begin(line)
            case PlaceLine() if len(self._places) < MOST_PLACES:
                self._places[line.id] = ProgramLine(line.file[-_MOST_NAME:], line.line, line.function[:_MOST_NAME])
            case GoneLine() if rank := self._rank(line.rank):
                step = rank.step if line.step is None else line.step
                rank.gone = Gone(line.unix_ns, line.ended, line.oom, step)
                self._heard(line.unix_ns)
            case LossLine() if self._rank(line.rank) is not None:
                self._live.losses[line.rank] = line
            case MonitorEnd():
                self._node.ended = True
                self._heard(line.unix_ns)

    def _begin(self, line: RankHeader) -> None:
        """A process trains as this rank from now on, perhaps in place of another, or has learnt how long it will."""
        rank = self._rank(line.rank)
        if rank is None:
            return
        here = rank.node == self._name
        if here and not rank.gone and rank.pid == line.pid:
            rank.steps = line.steps
        elif here or line.unix_ns >= rank.beat_ns:
            self._new.pop(line.rank, None)
            host = self._node.host
            self._live.ranks[line.rank] = RankHistory(line.rank, self._name, host, line.pid, line.steps)
            self._heard(line.unix_ns)

    def _heard(self, unix_ns: int) -> NodeMonitor:
        node = self._node
        node.last_ns = max(node.last_ns, unix_ns)
        return node


def _complete(text: bytes) -> bytes:
    """The lines that have an end."""
    return text[: text.rfind(b"\n") + 1]


def _is_possible(beat: Beat) -> bool:
    """Whether its numbers are those of a training, and its texts those of `heartbeats.encode`."""
    return (
        0 <= beat.step < _MOST_STEPS
        and (0 <= beat.first < _MOST_STEPS or not beat.steps)
        and 1 <= beat.per < 1 << 20
        and all(0 <= each < _MOST for each in (beat.idle_ms, beat.quiet_ms, beat.memory_mib, beat.use_percent or 0))
        and beat.phase in PHASES
        and len(beat.steps) == len(beat.own_phase)
        and _ENCODED.fullmatch(beat.steps + beat.own_phase) is not None
    )

"""What the last steps of a rank took, in columns that do not grow without end. Knows no file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from harness.common.heartbeats import DIGITS, Beat, decode

MOST = 4096  # entries that a rank keeps; 16 bytes each
_FIRST = 64  # entries that there is room for at first
_LAST_STEP = (1 << 31) - 1
_MOST_MS = (1 << 32) - 1

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int32]


def _values() -> npt.NDArray[np.int16]:
    found = np.full(256, -1, np.int16)
    found[np.frombuffer(DIGITS.encode(), np.uint8)] = np.arange(len(DIGITS))
    return found


_VALUE = _values()  # of a character, -1: it is none of ours
_US: Floats = np.array(decode("".join(high + low for high in DIGITS for low in DIGITS)), np.float32)


def decoded(text: str) -> Floats | None:
    """Durations in microseconds, as `heartbeats.decode`; None: the text is damaged.

    >>> decoded("00jd").round().tolist(), decoded("0?")
    ([1.0, 1001.0], None)
    """
    values = _VALUE[np.frombuffer(text.encode("ascii", "replace"), np.uint8)]
    if len(values) % 2 or (values < 0).any():
        return None
    durations: Floats = _US[values[::2].astype(np.int32) * 64 + values[1::2]]
    return durations


class History:
    """Entries of steps, oldest first, the last MOST. An entry may be the mean of several steps: then the steps between
    two entries have the first one's time."""

    def __init__(self) -> None:
        self.count = 0
        self._zero_ns = 0
        self._steps, self._ms = np.empty(_FIRST, np.int32), np.empty(_FIRST, np.uint32)
        self._us, self._own_us = np.empty(_FIRST, np.float32), np.empty(_FIRST, np.float32)

    @property
    def steps(self) -> Integers:
        """The number of each entry's first step."""
        return self._steps[: self.count]

    @property
    def us(self) -> Floats:
        """Microseconds of a step."""
        return self._us[: self.count]

    @property
    def own_us(self) -> Floats:
        """Microseconds of a step in which the rank did not wait for other ranks."""
        return self._own_us[: self.count]

    @property
    def ended_ns(self) -> npt.NDArray[np.int64]:
        """Unix time at which each entry ended, to about PERIOD_S."""
        return self._ms[: self.count].astype(np.int64) * 1_000_000 + self._zero_ns

    def take(self, beats: Sequence[tuple[int, Beat]]) -> bool:
        """Add the steps of beats, each with its unix_ns; returns whether there were any. Damaged ones add nothing."""
        us, own_us = _durations(beats)
        if us is None or own_us is None:
            beats = [each for each in beats if _is_whole(each)]
            us, own_us = _durations(beats)
        if us is None or own_us is None or not len(us):
            return False
        counts = np.array([len(beat.steps) // 2 for _, beat in beats])
        last = np.cumsum(counts)
        inside = np.arange(len(us)) - np.repeat(last - counts, counts)
        per = np.repeat(np.array([beat.per for _, beat in beats]), counts)
        steps = np.repeat(np.array([beat.first for _, beat in beats]), counts) + per * inside
        if steps.max() > _LAST_STEP:
            return False
        ends_ns = np.array([unix_ns - beat.idle_ms * 1_000_000 for unix_ns, beat in beats])
        self._append(
            steps, us, own_us, _ended_ns(np.cumsum(us.astype(np.float64) * per) * 1e3, last, ends_ns, counts)
        )
        return True

    def _append(
        self, steps: npt.NDArray[np.int64], us: Floats, own_us: Floats, ended_ns: npt.NDArray[np.int64]
    ) -> None:
        new = min(len(steps), MOST)
        self._make_room(new)
        if not self.count:
            self._zero_ns = int(ended_ns[-new])
        there = slice(self.count, self.count + new)
        self._steps[there], self._us[there], self._own_us[there] = steps[-new:], us[-new:], own_us[-new:]
        self._ms[there] = np.clip((ended_ns[-new:] - self._zero_ns) // 1_000_000, 0, _MOST_MS)
        self.count += new

    def _make_room(self, new: int) -> None:
        size = len(self._steps)
        if self.count + new <= size:
            return
        kept = min(self.count, MOST - new, 3 * MOST // 4)  # not one entry less for each that comes
        larger = size
        while larger < min(self.count + new, MOST):
            larger *= 2
        for name in ("_steps", "_ms", "_us", "_own_us"):
            old = getattr(self, name)
            column = old if larger == size else np.empty(larger, old.dtype)
            column[:kept] = old[self.count - kept : self.count].copy()
            setattr(self, name, column)
        self.count = kept


def _durations(beats: Sequence[tuple[int, Beat]]) -> tuple[Floats | None, Floats | None]:
    """Those of all beats, and without waiting for other ranks; None: one of them is damaged."""
    texts = [_texts(beat) for _, beat in beats]
    return decoded("".join(text for text, _ in texts)), decoded("".join(text for _, text in texts))


def _is_whole(beat: tuple[int, Beat]) -> bool:
    return all(durations is not None for durations in _durations([beat]))


def _texts(beat: Beat) -> tuple[str, str]:
    """Both texts with one length: without times of its own, a rank has all of its time for itself."""
    return beat.steps, beat.own if len(beat.own) == len(beat.steps) else beat.steps


def _ended_ns(
    passed_ns: npt.NDArray[np.float64],
    last: npt.NDArray[np.int64],
    ends_ns: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """When each entry ended: a beat's last one when the rank last made progress, the others before that."""
    later_ns = np.repeat(passed_ns[np.maximum(last, 1) - 1], counts) - passed_ns
    return np.repeat(ends_ns, counts) - later_ns.astype(np.int64)

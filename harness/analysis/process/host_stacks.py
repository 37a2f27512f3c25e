"""What of the host's recorded functions, operators, samples and ranges covers a stretch of time. Knows no device."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.by_name import used
from harness.analysis.process.intervals import Intervals, Owners, RangeTree, containing, lengths_within, overlaps
from harness.analysis.process.view import ProcessView
from harness.analysis.summary import CodeLocation
from harness.traces.python_functions import Owner, python_function
from harness.traces.trace import I64, HostKind

MOST, HALF = 0.9, 0.5  # shares of a stretch
_FLAT = (HostKind.OPERATOR, HostKind.SAMPLE, HostKind.OS_CALL, HostKind.WAIT)
_WAITS = re.compile(r"run_backward|\b(wait|acquire|join|poll|select)\b|_engine_run_backward")


def code_location(name: str) -> CodeLocation:
    """The place in a program that a recorded Python function names; a function that is not Python has no file."""
    found = python_function(name)
    return CodeLocation(file=found.file or "", line=found.line, function=found.function)


class HostStacks:
    """The spans of the threads that feed a process's devices."""

    def __init__(self, view: ProcessView, nesting: RangeTree, feeding: I64) -> None:
        self._host, self._names, self._nesting = view.host, view.names, nesting
        self._ranges = view.ranges
        self._threads: list[int] = feeding.tolist()
        self._python: dict[int, Owners] = {}
        functions = (view.host.kind == HostKind.PYTHON) & (view.host.end_ns > view.host.start_ns)
        for thread in self._threads:
            rows = np.flatnonzero(functions & (view.host.thread == thread))
            if len(rows):
                end = view.host.end_ns[rows]
                self._python[thread] = Owners(view.host.start_ns[rows], end, containing(end), rows)
        count = len(self._names) + 1
        self._owner, self._waits = np.full(count, -1, np.int8), np.zeros(count, np.bool_)
        for i in used(self._host.name[self._host.kind == HostKind.PYTHON]):
            found = python_function(self._names[i])
            self._owner[i] = found.owner if found.file else -1
            self._waits[i] = bool(_WAITS.search(self._names[i]))
        self._flat = {(kind, thread): self._outermost(kind, [thread]) for kind in _FLAT for thread in self._threads}
        self.operators = self._outermost(HostKind.OPERATOR, self._threads)

    def _outermost(self, kind: HostKind, threads: list[int]) -> Flat:
        """The spans of a kind that lie in no other of their thread; of several threads the earlier one where they
        overlap: a thread that launches and one that waits for it seldom do."""
        chosen = np.flatnonzero((self._host.kind == kind) & np.isin(self._host.thread, threads))
        order = chosen[np.argsort(self._host.start_ns[chosen], kind="stable")]
        start, end = self._host.start_ns[order], self._host.end_ns[order]
        start = np.maximum(start, np.concatenate([start[:1], np.maximum.accumulate(end)[:-1]]))
        keep = end > start
        return Flat(start[keep], end[keep], self._host.name[order[keep]].astype(np.int64))

    def mostly(self, kind: HostKind, thread: I64, at: Intervals) -> I64:
        """For each stretch the name with most time in it, of the spans of a kind on its thread, where they cover half
        of it or more (of operators: where that name does); -1: none."""
        found = np.full(len(at.start), -1)
        for each in np.unique(thread).tolist():
            flat = self._flat.get((kind, each))
            if flat is not None and len(flat.start_ns):
                mine = np.flatnonzero(thread == each)
                some = Intervals(at.start[mine], at.end[mine])
                found[mine] = flat.half(some) if kind == HostKind.OPERATOR else flat.largest(some)
        return found

    def has_python(self, thread: int) -> bool:
        """Whether Python functions of a thread were recorded."""
        return thread in self._python

    def functions(self, thread: int, at: Intervals) -> tuple[I64, I64, NDArray[np.bool_]]:
        """For each stretch the names of the function that covers most of it and of the one that says where that is,
        -1: none; and whether the thread only waits there. Where: the innermost function that covers most of it of the
        user's own code, else of a framework's, else of any with a file."""
        owners = self._python.get(thread)
        if owners is None:
            none = np.full(len(at.start), -1)
            return none, none, np.zeros(len(none), np.bool_)
        name = np.append(self._host.name[owners.row], -1).astype(np.int64)
        deepest = name[owners.covering(*at, MOST)]
        where = np.full(len(deepest), -1)
        for owner in Owner:
            found = name[owners.covering(*at, MOST, self._owner[name[:-1]] == owner)]
            where = np.where(where >= 0, where, found)
        return deepest, where, self._waits[name[owners.covering(*at, HALF)]]

    def range_rows(self, thread: int, at: Intervals, hidden: NDArray[np.bool_]) -> I64:
        """For each stretch the row of the innermost range that covers half of it, without `hidden` ones."""
        owners = self._nesting.threads.get(thread)
        if owners is None:
            return np.full(len(at.start), -1)
        found = owners.covering(*at, HALF, ~hidden[owners.row])
        return np.append(owners.row, -1)[found]

    def innermost(self, at: Intervals) -> tuple[str, int] | None:
        """The innermost function, of any code, in which half of the stretches or more passed, and its time there."""
        total, best = int((at.end - at.start).sum()), None
        for owners in self._python.values():
            inside = lengths_within(at, owners.start_ns, owners.end_ns)
            some = np.flatnonzero(inside)
            names, code = np.unique(self._host.name[owners.row[some]], return_inverse=True)
            first = np.full(len(names), np.iinfo(np.int64).max)
            np.minimum.at(first, code, owners.start_ns[some])
            sums = np.minimum(np.bincount(code, weights=inside[some], minlength=len(names)), total)
            for i in np.flatnonzero(sums > HALF * total).tolist():
                key = (-sums[i], first[i])
                if best is None or key > best[0]:
                    best = (key, self._names[int(names[i])], int(sums[i]))
        return None if best is None else best[1:]


@dataclass(frozen=True)
class Flat:
    """n named stretches in order without overlaps."""

    start_ns: I64
    end_ns: I64
    name: I64

    def largest(self, at: Intervals) -> I64:
        """For each of m stretches the name with most time in it, where these cover half of it or more; else -1."""
        found = self._most(at)
        covered = lengths_within(Intervals(self.start_ns, self.end_ns), at.start, at.end)
        return np.where(covered > HALF * (at.end - at.start), found, -1)

    def _most(self, at: Intervals) -> I64:
        of, by = overlaps(at, Intervals(self.start_ns, self.end_ns))
        found = np.full(len(at.start), -1)
        if not len(of):
            return found
        length = np.minimum(at.end[of], self.end_ns[by]) - np.maximum(at.start[of], self.start_ns[by])
        width = int(self.name.max()) + 1
        pair, code = np.unique(of * width + self.name[by], return_inverse=True)
        total = np.bincount(code, weights=length)
        order = np.argsort(total, kind="stable")
        found[pair[order] // width] = pair[order] % width  # the largest is written last
        return found

    def half(self, at: Intervals) -> I64:
        """As `largest`, of stretches whose half or more has that one name."""
        found = self._most(at)
        for name in np.unique(found[found >= 0]).tolist():
            mine = np.flatnonzero(found == name)
            own = self.name == name
            covered = lengths_within(Intervals(self.start_ns[own], self.end_ns[own]), at.start[mine], at.end[mine])
            found[mine[covered <= HALF * (at.end - at.start)[mine]]] = -1
        return found

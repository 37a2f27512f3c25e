"""Which calls of the device's library, and which operators, take long because something is used for the first time: a
driver, a library, a stream, a kernel, memory that is never asked for again. Judged by what comes later."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.by_name import matching, used
from harness.analysis.process.intervals import Intervals, lengths_within, union
from harness.analysis.process.view import ProcessView
from harness.traces.trace import I32, I64, Activity, Events, RangeKind

LONG_CALL_NS = 100_000  # a launch takes 5 to 10 us
FIRST_USE_NS = 1_000_000  # less in all, of calls of one name, is not looked at; a kernel's first launch that loads it
_SETTLED = 0.95  # of the distinct kernels have been launched: the first pass is over
_RARER = 4.0  # times as much per launch in the first pass as later
_LONGER = 3.0  # times the usual long call of later
COMPILED = re.compile(r"^triton_|^fused_|nvfuser|CudaCodeGen::")  # kernels that a program makes while it runs
COLD_LEAST = 3  # kernels that are made ready in gaps, from which a process that goes on is cold
_LAUNCH = re.compile("Launch")
NEVER = re.compile(r"Memcpy|Memset|Synchronize|EventQuery|StreamQuery|StreamWait|Capture")
_ALLOCATES = re.compile(r"Malloc|Free|HostAlloc|Host(Un)?[Rr]egister|cuMem|hipMem(Create|Map|Unmap|Address)")
_COMPILES = re.compile(
    r"\(dynamo_timed\)|\b_?compile_(?:inner|fx|fx_inner|to_module|to_fn)\b|\b_compile\b|_inductor/(?:compile_fx|graph|"
    r"scheduler|codecache|async_compile|select_algorithm)\.py|_dynamo/(?:convert_frame|output_graph|symbolic_convert)\.py|"
    r"triton/(?:compiler|runtime/(?:autotuner|build))|\bautotune|benchmark_all_configs|coordinate_descent",
    re.IGNORECASE,
)


def compiles(name: str) -> bool:
    """Whether a range, function or operator compiles, and does not run what was compiled.

    >>> compiles("torch/_dynamo/convert_frame.py(1064): __call__"), compiles("Torch-Compiled Region: 0/0")
    (True, False)
    >>> compiles("_compile.compile_inner (dynamo_timed)"), compiles("triton_poi_fused_add_0")
    (True, False)
    """
    return _COMPILES.search(name) is not None


def first_uses(view: ProcessView, feeding: I64) -> NDArray[np.bool_]:
    """Which calls on the threads that feed a device take long for something that is used for the first time."""
    calls, names = view.calls, view.names
    first = loading_launches(view)
    long = calls.end_ns - calls.start_ns >= LONG_CALL_NS
    long &= ~matching(calls.name, names, NEVER.search) & ~matching(calls.name, names, _LAUNCH.search)
    rows = np.flatnonzero(long & (np.isin(calls.thread, feeding) if len(feeding) else True))
    if not len(rows):
        return first
    launches = FirstPass.of(view)
    idle = _without_work(view.events, calls.start_ns[rows], calls.end_ns[rows])
    early = launches.in_first_pass(calls.start_ns[rows], calls.thread[rows])
    allocates = matching(calls.name[rows], names, _ALLOCATES.search)
    chosen = np.zeros(len(rows), np.bool_)
    for alike in (~allocates, allocates):  # what only makes something ready is told first: it shows a cold process
        for name in used(calls.name[rows[alike]]):
            own = calls.name[rows] == name
            cold = bool(first.any() or chosen.any())
            cold = cold or bool((own & ~allocates).any())
            chosen |= own & _not_again(idle, own & early, own & ~early, launches, cold)
    first[rows[chosen]] = True
    return first


def _not_again(
    idle: I64, early: NDArray[np.bool_], later: NDArray[np.bool_], launches: FirstPass, cold: bool
) -> NDArray[np.bool_]:
    """Of the calls of one name those in the first pass, if they take much and later ones do not. Where nothing comes
    later, only of a process that is known to be cold."""
    none = np.zeros(len(idle), np.bool_)
    spent, again = int(idle[early].sum()), int(idle[later].sum())
    if spent < FIRST_USE_NS or (not cold and launches.later < launches.early):
        return none
    if spent * launches.later < _RARER * again * launches.early:
        return none
    usual = float(np.median(idle[later])) if later.any() else 0.0
    return early & (idle >= _LONGER * usual)


def loading_launches(view: ProcessView) -> NDArray[np.bool_]:
    """Launches that take very long and are the first of their kernel in the recording."""
    calls, events = view.calls, view.events
    found = matching(calls.name, view.names, _LAUNCH.search)
    found &= calls.end_ns - calls.start_ns >= FIRST_USE_NS
    if not found.any():
        return found
    kernels = np.flatnonzero((events.activity == Activity.KERNEL) & (events.launch_ns >= 0))
    order = kernels[np.argsort(events.launch_ns[kernels], kind="stable")]
    _, first = np.unique(events.name[order], return_index=True)
    return found & np.isin(calls.start_ns, events.launch_ns[order[first]])


def made_ready(name: NDArray[np.int32], kernels: NDArray[np.intp], gaps: Intervals, ended_by: I64) -> NDArray[np.bool_]:
    """Which gaps between a device's kernels end with the first one of a name, and are far longer than any before a
    later one of the name. It is compiled or loaded meanwhile, whatever was recorded of the host. kernels: the device's
    rows, in order; ended_by: the row with which each gap ends."""
    first = np.full(int(name.max(initial=-1)) + 1, -1)
    first[name[kernels[::-1]]] = kernels[::-1]  # the first one is written last
    of, ns = name[ended_by], gaps.end - gaps.start
    later = np.zeros(len(first), np.int64)
    again = first[of] != ended_by
    np.maximum.at(later, of[again], ns[again])
    found: NDArray[np.bool_] = ~again & ~np.isin(ended_by, kernels[:1]) & (ns >= FIRST_USE_NS)
    return found & (ns >= _RARER * later[of])


def prepares(operator: I64, ns: I64, early: NDArray[np.bool_], later: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which times inside of operators prepare what they use for the first time: long ones of the first pass, far longer
    than any of the same operator later. An operator only launches work; a library chooses kernels inside of it."""
    usual = np.zeros(int(operator.max(initial=-1)) + 1, np.int64)
    np.maximum.at(usual, operator[later], ns[later])
    return early & (ns >= FIRST_USE_NS) & (ns >= _RARER * usual[operator])


def _without_work(events: Events, start_ns: I64, end_ns: I64) -> I64:
    """How long of each stretch no device works: a call that waits for the device is no first use."""
    work = events.activity <= Activity.MEMSET
    busy = union(events.start_ns[work], events.end_ns[work])
    return end_ns - start_ns - lengths_within(busy, start_ns, end_ns)


class FirstPass:
    """The launches of a process's kernels, cut in those of its first pass and later ones. settled_ns: when it is over
    on their clock; without a launch, never. goes_on: most come later, so that they show what it alone has."""

    def __init__(self, launch_ns: I64, settled_ns: int, by_thread: dict[int, tuple[I64, NDArray[np.bool_]]]) -> None:
        self.early = int((launch_ns < settled_ns).sum())
        self.later = len(launch_ns) - self.early
        self.goes_on = self.later >= self.early
        self.settled_ns, self._by_thread = settled_ns, by_thread

    @staticmethod
    def of(view: ProcessView) -> FirstPass:
        events = view.events
        rows = np.flatnonzero((events.activity == Activity.KERNEL) & (events.launch_ns >= 0))
        rows = rows[np.argsort(events.launch_ns[rows], kind="stable")]
        launch = events.launch_ns[rows]
        if not len(rows):
            return FirstPass(launch, np.iinfo(np.int64).max, {})
        by_thread = {}
        for thread in np.unique(events.launch_thread[rows]).tolist():
            mine = rows[events.launch_thread[rows] == thread]
            new = np.zeros(len(mine), np.bool_)
            new[np.unique(events.name[mine], return_index=True)[1]] = True
            by_thread[thread] = events.launch_ns[mine], new
        return FirstPass(launch, _settled_ns(view, launch, events.name[rows]), by_thread)

    def in_first_pass(self, start_ns: I64, thread: I64) -> NDArray[np.bool_]:
        """Whether calls come in the first pass, or before a kernel that their thread launches for the first time."""
        found = start_ns < self.settled_ns
        for each, (launch, new) in self._by_thread.items():
            mine = np.flatnonzero(thread == each)
            at = np.searchsorted(launch, start_ns[mine])
            found[mine] |= np.append(new, False)[at]
        return found


def _settled_ns(view: ProcessView, launch_ns: I64, name: NDArray[np.int32]) -> int:
    """When the first pass is over: with the first of several marked steps; else when nearly all kernels have been
    launched."""
    ranges = view.ranges
    marks = np.flatnonzero(ranges.kind == RangeKind.STEP)
    if len(marks) > 1:
        return int(ranges.end_ns[marks].min())
    firsts = np.sort(launch_ns[np.unique(name, return_index=True)[1]])
    return int(firsts[min(int(_SETTLED * len(firsts)), len(firsts) - 1)]) + 1


def compiling_spans(view: ProcessView, names_of: I32, start_ns: I64, end_ns: I64, thread: I64) -> NDArray[np.bool_]:
    """Which of some named spans compile what runs later: those of a program that compiles again and again do not."""
    found = matching(names_of, view.names, compiles)
    if not found.any():
        return found
    launches = FirstPass.of(view)
    early = found & launches.in_first_pass(start_ns, thread)
    spent, again = (int((end_ns - start_ns)[of].sum()) for of in (early, found & ~early))
    return early if spent * launches.later >= _RARER * again * launches.early else early & False

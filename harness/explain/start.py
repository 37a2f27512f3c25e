"""What is said of a recording's start: the time before the first step and its cure, first use in a window, which window
a number is of, a recording of nothing but set-up; and whether a program shows to be PyTorch."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from harness.analysis.labels import are_cpus
from harness.analysis.process.steps import by_periodicity
from harness.analysis.summary import BeforeSteps, Problem, Summary
from harness.analysis.summary.problem_texts import FIRST_USE, NO_KERNEL
from harness.common.display.format import amount, duration, middle, percent
from harness.compare.summaries import kinds_without_causes
from harness.replay.attribute.host_causes import short_name
from harness.replay.attribute.suspect import Cause

LARGE = 0.1  # of what was recorded, from which the time before the first step is told
MOST = 0.5  # of what was recorded, from which the time before the first step is the answer
PART = 0.05  # of that time, from which a part is told
MORE = 1.1  # times the window, from which it is told how much was recorded
_MOST_PARTS = 4
_MOST_CALLS = 3
_OF_CALL = 0.05  # of the first use in a window, from which a call is named
_TORCH = re.compile(r"\bat::|\bc10::|\baten::|torch|triton_|autograd|Optimizer\.step", re.IGNORECASE)
_PARTS = {
    "copies": "copies to the device",
    "first_use": "first use of libraries and memory",
    "compile": "compiling",
    "capture": "capturing CUDA graphs",
    "meeting": "setting up communication between ranks",
    "data": "loading data",
    "model": "making the model or loading its weights",
    "imports": "imports",
    "device": "other work of the device",
    "unknown": "not known",
}
_UNTIL = {
    "step": "the first step",
    "period": "the first period (no step is marked)",
    "work": "the model's first work (no step is marked)",
}
_RECORDS = {
    True: "Python functions (torch.profiler with_stack=True, nsys --python-sampling=true)",
    False: "ranges of the program, or sampled functions (nsys --sample=process-tree)",
}
_CACHES = " (TORCHINDUCTOR_CACHE_DIR, TRITON_CACHE_DIR)"
_CURES = {
    "compile": "keep compiled kernels from one run to the next",
    "capture": "capture fewer graphs, or shapes, or record later steps",
    "meeting": "start all ranks at the same time, and look which rank comes last",
    "data": "let workers load the first batch while the model is made",
    "model": "make the model on the device, and load its weights by memory mapping",
    "imports": "import less, or from a local disk or an image",
}
_ANY_PROGRAM = ("nsys", "rocpd")  # tools that record any program


def is_only_start(s: Summary) -> bool:
    """Whether nothing but start-up was recorded: copies or sets, and no kernel of a step."""
    return any(problem.what == NO_KERNEL for problem in s.quality.problems)


def start_sentence(s: Summary) -> str:
    """What a recording of nothing but set-up holds; empty if it is not known."""
    row = _longest(s)
    copied = f"; {amount(row.copied_bytes)} were copied to the device" if row and row.copied_bytes else ""
    return f"Its parts are {_parts(row)}{copied}." if row else ""


def how_to_record_steps(s: Summary) -> str:
    """What to change in a recording of nothing but set-up."""
    tool = next((source.tool for source in s.sources), "")
    how = "begin to record when the program computes"
    if tool == "nsys":
        how = "begin when the program computes (nsys profile --delay, or --capture-range=cudaProfilerApi in its loop)"
    elif tool == "kineto":
        how = "torch.profiler.schedule(wait=..., warmup=..., active=...) with a step() in each step of the loop"
    return f"record later steps: {how}"


def before_sentences(s: Summary) -> list[str]:
    """The time before the first step and what shortens it, where it is a large part of what was recorded."""
    row = _longest(s)
    if row is None or not row.recorded_ns or row.ended_by == "end" or kinds_without_causes(s):
        return []
    if row.duration_ns < LARGE * row.recorded_ns:
        return []
    until = _UNTIL.get(row.ended_by, row.ended_by)
    of = f" (rank {row.rank}, the longest)" if len(s.before_steps) > 1 and row.rank is not None else ""
    share = percent(row.duration_ns / row.recorded_ns)
    time = f"{duration(row.duration_ns)} of the {duration(row.recorded_ns)} recorded, {share}, lie before {until}{of}"
    return [" ".join(filter(None, (f"{time}: {_parts(row)}.", _cure(s, row))))]


def start_leads(s: Summary) -> bool:
    """Whether what comes before the first step is most of what was recorded, and something is known of it."""
    row = _longest(s)
    is_most = row is not None and row.duration_ns > MOST * row.recorded_ns
    return row is not None and is_most and any(part != "unknown" for part, _ in _by_size(row))


def host_ranges(s: Summary) -> list[str]:
    """The program's longest ranges on the host, where nothing else is known of a recording."""
    ranges = [row for row in s.ranges if not row.name.startswith("ProfilerStep") and row.instances]
    longest = sorted(ranges, key=lambda row: -row.host_ns)[:_MOST_PARTS]
    said = (
        f"{short_name(row.name)} {duration(row.host_ns)}"
        + (f" in {row.instances:,} ({duration(row.host_ns / row.instances)} each)" if row.instances > 1 else "")
        for row in longest
    )
    return [f"Ranges of the program on the host: {', '.join(said)}."] if longest else []


def _longest(s: Summary) -> BeforeSteps | None:
    return max(s.before_steps, key=lambda row: row.duration_ns, default=None)


def _by_size(row: BeforeSteps) -> list[tuple[str, int]]:
    parts = [(part, int(getattr(row, f"{part}_ns"))) for part in _PARTS]
    told = [(part, ns) for part, ns in parts if ns >= PART * row.duration_ns]
    return sorted(told, key=lambda pair: (pair[0] == "unknown", -pair[1]))[:_MOST_PARTS]


def _parts(row: BeforeSteps) -> str:
    return ", ".join(f"{duration(ns)} {_PARTS[part]}{_more(row, part)}" for part, ns in _by_size(row))


def _more(row: BeforeSteps, part: str) -> str:
    """Of copies how much, how fast and from where; of other parts the largest name."""
    if part == "copies" and row.copied_bytes:
        memory = " from pageable memory" if _is_pageable(row) else ""
        return f" ({amount(row.copied_bytes)} at {row.copied_bytes / max(row.copying_ns, 1):.1f} GB/s{memory})"
    name = row.largest.get(part)
    return f" (mostly {middle(short_name(name))})" if name and part not in ("device", "copies") else ""


def _is_pageable(row: BeforeSteps) -> bool:
    return row.pageable_bytes > row.copied_bytes / 2


def _cure(s: Summary, row: BeforeSteps) -> str:
    """What shortens the largest part that has a cure."""
    pytorch = shows_pytorch(s)
    for part, _ in _by_size(row):
        if part == "copies":
            return f"To shorten it: {_of_copies(row, pytorch)}."
        if part == "first_use":
            return "A recording of later steps does not have it."
        if part == "unknown":
            if any(row.kind in ("python", "sample") for row in s.host_activities):
                continue  # Python functions were recorded, and none was there
            return f"To see what it is, record {_RECORDS[pytorch]}."
        if part in _CURES:
            return f"To shorten it: {_CURES[part]}{_CACHES if part == 'compile' and pytorch else ''}."
    return ""


def _of_copies(row: BeforeSteps, pytorch: bool) -> str:
    if not pytorch:
        return "copy from pinned memory, in large pieces" if _is_pageable(row) else "copy in large pieces"
    pinned = "pin the model's memory and copy with non_blocking=True, or " if _is_pageable(row) else ""
    return f"{pinned}load the weights straight to the device (safetensors' load_file with device)"


def window_words(s: Summary, window_ns: int) -> str:
    """Which stretch a number of a recording without marked steps is of."""
    whose = "the device's" if len(s.devices) == 1 else "the devices'"
    between = "from the first to the last operator" if are_cpus(s.devices) else f"from {whose} first to last work"
    whole = sum(d.window_ns for d in s.devices) / max(len(s.devices), 1)
    if by_periodicity(s.steps.source):
        between = "from the first to the last run of a kernel that recurs"
    elif window_ns < whole / MORE and any(row.ended_by == "work" for row in s.before_steps):
        between = "from the model's first work on"
    return f"{duration(window_ns)} {between}"


def recorded_words(s: Summary, window_ns: int) -> str:
    """How much was recorded, where that is more than a window; else nothing."""
    recorded = max((row.recorded_ns for row in s.before_steps), default=0)
    return f"{duration(recorded)} were recorded; " if recorded > MORE * window_ns else ""


def says_first_use(s: Summary, problem: Problem, most: int) -> bool:
    """Whether another sentence tells the first use that a problem tells. most: findings that are told."""
    if problem.what != FIRST_USE:
        return False
    return is_only_start(s) or any(f.cause == Cause.FIRST_USE for f in s.findings[:most])


def largest_first_uses(s: Summary) -> str:
    """The largest parts of the first use in the window, by call and operator: of all processes, each one's mean."""
    times: dict[str, int] = defaultdict(int)
    for row in s.host_activities:
        if row.cause in ("first use", "graph capture") and row.what:
            inside = f" in {short_name(row.operator)}" if row.operator and row.operator != row.what else ""
            times[f"{short_name(row.what)}{inside}"] += row.idle_ns
    total, processes = sum(times.values()), max(len({row.rank for row in s.host_activities}), 1)
    largest = sorted(((ns, name) for name, ns in times.items() if ns >= _OF_CALL * total), reverse=True)[:_MOST_CALLS]
    said = ", ".join(f"{name} ({duration(ns // processes)})" for ns, name in largest)
    where = " in all recorded steps" if s.steps.duration else ""
    parts, are = ("parts", "are") if len(largest) > 1 else ("part", "is")
    return f"The largest {parts}{where} {are} {said}." if said else ""


def shows_pytorch(s: Summary) -> bool:
    """Whether anything recorded shows that the program is PyTorch: its profiler, kernels, ranges or functions."""
    if s.training or not s.sources or any(source.tool not in _ANY_PROGRAM for source in s.sources):
        return True
    return any(_TORCH.search(name) for name in _names(s))


def _names(s: Summary) -> Iterator[str]:
    yield from (kernel.name for kernel in s.kernels)
    yield from (row.name for row in s.ranges)
    for row in s.host_activities:
        yield from filter(None, (row.what, row.where and row.where.file))

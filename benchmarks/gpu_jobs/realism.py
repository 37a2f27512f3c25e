"""How near the machine comes to real devices: recorded processes told again as programs, and simulated.

`python -m gpu_jobs.realism PATH…` prints a table. Each path is a trace, or a folder with a file for each rank of a job.
A recording's kernel times, launch costs and order are the program; where its device's work then starts is the test.
Where a host is slower than its device this tests little but launches and waits, as the host's own time is given; the
controls tell which of the two a recording depends on. Where the median differs by a per cent or more, this is why: a
kernel that is ready on one stream finds no room on a device that a kernel of another stream fills, and starts late.
The machine has room for all, so it is early there; the note says how often and by how much that was so.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from .machine import Machine
from .program import US, Message, Program, Recording
from .recorded import Process, Task, read
from .retold import Change, Story, held_back, program, story

WITHIN = 0.03  # of the recorded span: the median error of a machine that is like the recorded one
LONGER = 1.3  # of the controls
_TOGETHER = 50 * US  # between the first and the last rank that sees a message's end
UNMARKED = 10  # steps that a recording without marks is taken for


@dataclass(frozen=True)
class Realism:
    """How far simulated starts are from recorded ones, as parts of the recorded span from the first start to the last
    end (step_error: of the mean step). The controls are median errors with all of the device's work, or all of the
    host's, 1.3 times as long: a comparison that tells anything has at least one that is clearly larger."""

    name: str
    kernels: int
    span_ns: int
    median_error: float
    p90_error: float
    makespan_ratio: float  # simulated / recorded
    step_error: float
    device_control: float
    host_control: float
    note: str


def realism(path: Path) -> Realism:
    """Simulate a recorded job. Raises ValueError: it has no launches of device work."""
    stories = [story(process) for process in _with_launches(read(path))]
    here = _errors(stories, Change())
    errors = [abs(error) for error in here.errors]
    tasks = [task for told in stories for task in told.tasks]
    span = max(task.end for task in tasks) - min(task.start for task in tasks)
    steps = max(told.process.steps for told in stories) or UNMARKED
    return Realism(
        name=path.name if path.is_dir() or "rank" not in path.stem else f"{path.parent.name}/{path.name}",
        kernels=len(errors),
        span_ns=span,
        median_error=median(errors) / span,
        p90_error=sorted(errors)[len(errors) * 9 // 10] / span,
        makespan_ratio=here.makespan_ns / span,
        step_error=median(errors) / (span / steps),
        device_control=_control(stories, Change(device=LONGER)) / span,
        host_control=_control(stories, Change(host=LONGER)) / span,
        note=_note(stories),
    )


def _with_launches(processes: Sequence[Process]) -> list[Process]:
    found = [process for process in processes if process.calls and process.tasks]
    if not found:
        raise ValueError("no launches of device work were recorded")
    return found


def _control(stories: Sequence[Story], change: Change) -> float:
    """The median error in ns under a change, without what came before the first task, which would only add to it."""
    errors = _errors(stories, change).errors
    return median(abs(error - errors[0]) for error in errors)


@dataclass(frozen=True)
class _Outcome:
    errors: list[int]  # of each task's start, simulated less recorded, ns
    makespan_ns: int


def _errors(stories: Sequence[Story], change: Change) -> _Outcome:
    """Simulate, and compare all starts with the recorded ones, both counted from the hosts' first call."""
    start = min(told.begin for told in stories)
    meetings = _meetings(stories, change)
    programs: list[Program] = [
        program(told, start, messages, change) for told, messages in zip(stories, meetings, strict=True)
    ]
    recordings = _run(programs, stories)
    errors, starts, ends = [], [], []
    for told, recording in zip(stories, recordings, strict=True):
        work = [work for work, _ in recording.work][len(told.before) :]
        errors += [abs(one.start + start - task.start) for one, task in zip(work, told.tasks, strict=True)]
        starts += [one.start for one in work]
        ends += [one.end for one in work]
    return _Outcome(errors, max(ends) - min(starts))


def _run(programs: Sequence[Program], stories: Sequence[Story]) -> list[Recording]:
    machine = Machine(programs)
    for host, told in zip(machine.hosts, stories, strict=True):
        host.costs = told.costs
    return machine.run()


def _meetings(stories: Sequence[Story], change: Change) -> list[dict[int, Message]]:
    """By rank and place: the messages of several ranks. What all ranks do in the same time and end together belongs
    together; what has no partners lasts as long as it did."""
    found: list[dict[int, Message]] = [{} for _ in stories]
    if len(stories) < 2:
        return found
    members = tuple(range(len(stories)))
    queues = [[p for p, task in enumerate(told.tasks) if _collective(task)] for told in stories]
    heads = [0 for _ in stories]
    while all(head < len(queue) for head, queue in zip(heads, queues, strict=True)):
        places = [queue[head] for head, queue in zip(heads, queues, strict=True)]
        tasks = [told.tasks[place] for told, place in zip(stories, places, strict=True)]
        ends = [task.end for task in tasks]
        if max(task.start for task in tasks) < min(ends) and max(ends) - min(ends) < _TOGETHER:
            last = max(tasks, key=lambda task: task.start)
            ns = round((last.end - last.start) * change.device)
            message = Message(tuple(places), "send", members, 0, "", "", ns)
            for rank, place in enumerate(places):
                found[rank][place] = message
            heads = [head + 1 for head in heads]
        else:
            heads[ends.index(min(ends))] += 1
    return found


def _collective(task: Task) -> bool:
    return "nccl" in task.name.lower()


def _note(stories: Sequence[Story]) -> str:
    """What is not as it was in the recording."""
    parts = []
    if len(stories) > 1:
        parts.append(f"{len(stories)} ranks")
    left_out = sum(told.left_out for told in stories)
    if left_out:
        parts.append(f"{left_out} without a launch or of other threads left out")
    if full := sum(len(told.full) for told in stories):
        parts.append(f"{full} launches into a full queue of {stories[0].costs.depth}")
    follows = sum(len(told.follows) for told in stories)
    if follows:
        named = any(told.process.records for told in stories)
        parts.append(f"{follows} waits between streams {'recorded' if named else 'inferred'}")
    held = [held_back(told) for told in stories]
    if number := sum(count for count, _ in held):
        lost = sum(ns for _, ns in held)
        parts.append(f"{number} starts held back {lost / 1e6:.1f} ms in all by kernels of other streams")
    return "; ".join(parts)


def table(paths: Sequence[Path]) -> str:
    """A Markdown table of all recordings among the paths; of others, why they have no row of numbers."""
    lines = [
        "| recording | tasks | span ms | median error | 90 % | makespan | median/step | device ×1.3 | host ×1.3 | |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    near = shown_at_all = 0
    for path in paths:
        try:
            r = realism(path)
        except ValueError as error:
            lines.append(f"| {path.name} | – | – | – | – | – | – | – | – | {error} |")
            continue
        shown_at_all, near = shown_at_all + 1, near + (r.median_error <= WITHIN)
        numbers = [r.median_error, r.p90_error, r.makespan_ratio, r.step_error, r.device_control, r.host_control]
        shown = " | ".join(f"{100 * number:.2f} %" for number in numbers)
        lines.append(f"| {r.name} | {r.kernels} | {r.span_ns / 1e6:.1f} | {shown} | {r.note} |")
    lines += ["", f"{near} of {shown_at_all} recordings are within {100 * WITHIN:.0f} %."]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table([Path(argument) for argument in sys.argv[1:]]))

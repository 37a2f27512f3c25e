"""The lessons' tables of docs/instructors.md and of the exercises' pages, from configs/lessons/*.yaml."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from harness.study.lessons import (
    ExperimentPair,
    Lesson,
    lesson_names,
    load_lesson,
    shell_command,
    with_fields,
)


def needs() -> str:
    """A row per lesson: what it asks, whether a CPU can show it, and the GPUs and nodes that it needs."""
    rows = [
        f"| {one.name} | {one.title} | {shown_on_cpu(one)} | {one.gpus} | {max(one.a.nodes, one.b.nodes)} |"
        for one in map(load_lesson, lesson_names())
    ]
    head = ["| lesson | subject | a CPU can show it | GPUs | nodes |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows])


def shown_on_cpu(lesson: Lesson) -> str:
    """Which of the lesson's answers a machine without GPUs can give."""
    asked = {relation.needs for relation in lesson.here(cpu=True).relations}
    if lesson.needs_gpus:
        return "no"
    if "gpu" in asked:
        return "in part"
    return "with two nodes" if "network" in asked else "yes"


def _runs(number: int, cpu: bool) -> str:
    """The commands of an exercise's lessons, each command once, and the run to compare it with."""
    listed: dict[str, str] = {}
    rows = []
    for lesson in (load_lesson(name) for name in lesson_names() if name.startswith(str(number))):
        pair = _typed(lesson, cpu)
        for task, command, other in _new(lesson.name, pair, listed) if pair else ():
            rows.append(f"| {task} | `{command}` | {other} |")
    return "\n".join(["| task | command | compare with |", "|---|---|---|", *rows])


def _typed(lesson: Lesson, cpu: bool) -> ExperimentPair | None:
    """The runs as the exercise's page asks for them; on a CPU None if they are those of GPUs."""
    if cpu:
        return lesson.pair(cpu=True) if lesson.on_cpu.a else None
    return lesson.pair(cpu=False).model_copy(
        update={"a": with_fields(lesson.a, lesson.typed), "b": with_fields(lesson.b, lesson.typed)}
    )


def _new(name: str, pair: ExperimentPair, listed: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    """Task, command and run to compare with, of the runs that no earlier lesson has; adds them to `listed`."""
    plain, *commands = [shell_command(arm) or "" for arm in (type(pair.a)(), pair.a, pair.b)]
    if plain in commands and plain not in listed:
        listed[plain] = name[0]
        yield name[0], plain, ""
    new = [command for command in commands if command not in listed]
    labels = [f"{name}, run {i}" for i in (1, 2)] if len(new) > 1 else [name]
    before = [listed[command] for command in commands if command in listed]
    for label, command in zip(labels, new, strict=True):
        listed[command] = label
        yield label, command, before[0] if before else ""
        before.append(label)


RUNS: dict[str, Callable[[], str]] = {
    "1": partial(_runs, 1, cpu=False),
    **{f"{number}{end}": partial(_runs, number, cpu=bool(end)) for number in (2, 3) for end in ("", "-cpu")},
}

"""The tables of the lessons in the documents: what each needs, and the runs of each exercise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from markdown_table import markdown_table

from harness.study.lessons import Lesson, lesson_names, load_lesson, shell_command, slide_of


def needs() -> str:
    """A row per lesson: what it asks, whether a CPU can show it, and the GPUs and nodes that it needs."""
    return markdown_table(
        "lesson | subject | a CPU can show it | GPUs | nodes",
        (
            (one.name, one.title, shown_on_cpu(one), one.gpus, max(one.a.nodes, one.b.nodes))
            for one in map(load_lesson, lesson_names())
        ),
    )


def shown_on_cpu(lesson: Lesson) -> str:
    asked = {relation.needs for relation in lesson.here(cpu=True).relations}
    if lesson.needs_gpus:
        return "no"
    if "gpu" in asked:
        return "in part"
    return "with two nodes" if "network" in asked else "yes"


def _runs(number: int, cpu: bool, further: bool | None) -> str:
    """The commands of an exercise's lessons, each command once, and the run to compare it with. further: of those
    beyond the workshop's own, or of its own; None: of all."""
    listed: dict[str, str] = {}
    rows = []
    for lesson in (load_lesson(name) for name in lesson_names() if name.startswith(str(number))):
        if cpu and lesson.on_cpu.a is None:
            continue  # the runs are those of GPUs
        found = list(_new(lesson, cpu, listed))
        rows += [(task, f"`{command}`", other) for task, command, other in found if further in (None, lesson.further)]
    return markdown_table("task | command | compare with", rows)


def _new(lesson: Lesson, cpu: bool, listed: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    """Task, command and run to compare with, of the runs that no earlier lesson has; adds them to `listed`."""
    name, pair = lesson.name, lesson.commands(cpu)
    plain = shell_command(type(pair.a)()) or ""
    commands = [(None if cpu else slide_of(arm)) or shell_command(arm) or "" for arm in (pair.a, pair.b)]
    if plain in commands and plain not in listed:
        listed[plain] = name[0]
        yield name[0], plain, ""
    new = [command for command in commands if command not in listed]
    labels = [f"{name}, run {i}" for i in (1, 2)] if len(new) > 1 else [name] * len(new)
    before = [listed[command] for command in commands if command in listed]
    for label, command in zip(labels, new, strict=True):
        listed[command] = label
        yield label, command, before[0] if before else ""
        before.append(label)


PARTS: dict[str, Callable[[], str]] = {
    "lesson-needs": needs,
    **{
        f"lessons-{number}{'-further' * bool(further)}{'-cpu' * cpu}": partial(_runs, number, cpu=cpu, further=further)
        for number, further in ((1, False), (1, True), (2, None), (3, None))
        for cpu in (False, True)
    },
}

"""The tables of the lessons in the documents: what each needs, and the runs of each exercise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

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


def runs_of(names: Sequence[str]) -> str:
    """The commands of lessons, a row for each run: on GPUs, and on a CPU where that differs."""
    rows = (row for name in names for row in _rows(load_lesson(name)))
    return markdown_table("run | with GPUs | without GPUs", rows)


def _rows(lesson: Lesson) -> Iterator[tuple[str, str, str]]:
    gpu, cpu = lesson.commands(cpu=False), lesson.commands(cpu=True)
    for arm, with_gpus, without in (("a", gpu.a, cpu.a), ("b", gpu.b, cpu.b)):
        typed = slide_of(with_gpus) or shell_command(with_gpus) or ""
        here = "–" if lesson.needs_gpus else "the same" if with_gpus == without else f"`{shell_command(without)}`"
        yield f"{lesson.name}, {arm}", f"`{typed}`", here


PARTS: dict[str, Callable[[], str]] = {"lesson-needs": needs}

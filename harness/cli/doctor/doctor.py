"""`slurm.sh doctor`: the day before, look at all that a course needs; one line per check, with what mends it."""

from __future__ import annotations

import json
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.options import JsonOption, named_sites
from harness.cli.rooms import COURSE_EXPERIMENTS, of_room
from harness.cli.terminal import columns
from harness.site.site import override

if TYPE_CHECKING:
    from harness.doctor.surroundings import CheckLine

WIDTH = 120  # without a terminal
LEFT, NAME = 13, 15  # characters of the level and of the check's name
SHOWN = {"unseen": "not checked"}  # levels whose key in --json is another word


def _printed(line: CheckLine, width: int) -> Iterator[str]:
    result = line.result
    level = SHOWN.get(result.level.value, result.level.value)
    head = f"{level:<{LEFT}}{line.check:<{NAME}}"
    indent = " " * len(head)
    text = result.found if result.what == line.check else f"{result.what}: {result.found}"
    yield from textwrap.wrap(
        text, width, initial_indent=head, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    if result.remedy:
        yield f"{indent}→ {result.remedy}"  # never wrapped: it is there to be copied


def doctor(
    *,
    site: Annotated[
        str | None, typer.Option("--site", autocompletion=named_sites, help="site: a name, or a site file")
    ] = None,
    students: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="students who share this disk, for the space that they need")
    ] = 1,
    account: Annotated[str | None, typer.Option("-a", "--account", help="as for a launch")] = None,
    partition: Annotated[str | None, typer.Option("-p", "--partition", help="as for a launch")] = None,
    qos: Annotated[str | None, typer.Option("-q", "--queue", help="as for a launch")] = None,
    time: Annotated[str | None, typer.Option("--time", metavar="HH:MM:SS", help="as for a launch")] = None,
    as_json: JsonOption = False,
) -> int:
    """Check before a course that everything is here: Slurm, container, packages, profilers, data, disk space.

    One line per check: ok; warning (a run works, but something is lost); problem (a run would fail); not checked (it
    cannot be seen from here). The command that fixes a warning or a problem is below it.
    """
    from harness.doctor.checks import examine
    from harness.doctor.surroundings import CourseSize, Level, look_around, worst
    from harness.site.detection import choose_site

    choice = choose_site(site)
    given = {"account": account, "partition": partition, "qos": qos, "time": time}
    place = override(choice.site, {name: value for name, value in given.items() if value is not None})
    print(f"site: {place.name} ({choice.reason})", file=sys.stderr)
    course_experiments = of_room(COURSE_EXPERIMENTS)
    course = CourseSize(students) if course_experiments is None else CourseSize(students, len(course_experiments()))
    around = look_around(place, course=course)
    lines: list[CheckLine] = []
    for line in examine(around):
        lines.append(line)
        if not as_json:  # when it is known: a container takes a minute to start
            print("\n".join(_printed(line, columns(WIDTH))), flush=True)
    if as_json:
        rows = [{"check": line.check, **line.result._asdict()} for line in lines]
        print(json.dumps({"site": place.name, "worst": worst(lines).value, "lines": rows}, indent=1))
    else:
        print(_sum(lines))
    return 1 if worst(lines) is Level.PROBLEM else 0


def _sum(lines: list[CheckLine]) -> str:
    counts = Counter(line.result.level.value for line in lines)
    names = {"ok": "ok", **SHOWN}
    levels = [level for level in ("problem", "warning", "unseen", "ok") if counts[level]]
    return "\n" + ", ".join(
        f"{counts[level]} {names.get(level, level + 's' * (counts[level] > 1))}" for level in levels
    )

"""`slurm.sh doctor`: the day before, look at all that a course needs; one line per check, with what mends it."""

from __future__ import annotations

import json
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.options import JsonOption, named_sites
from harness.cli.rooms import COURSE_EXPERIMENTS, of_room
from harness.cli.terminal import columns
from harness.common.errors import RequestError
from harness.site.site import override

if TYPE_CHECKING:
    from harness.doctor.surroundings import CheckLine

WIDTH = 120  # without a terminal
LEFT, NAME = 13, 15  # characters of the level and of the check's name
SHOWN = {"unseen": "not checked"}  # levels whose key in --json is another word


def _printed(line: CheckLine, width: int) -> Iterator[str]:
    result = line.result
    hosts = f"{_named(line.hosts)}: " if line.hosts else ""
    level = SHOWN.get(result.level.value, result.level.value)
    head = f"{level:<{LEFT}}{line.check:<{NAME}}"
    indent = " " * len(head)
    text = hosts + (result.found if result.what == line.check else f"{result.what}: {result.found}")
    yield from textwrap.wrap(
        text, width, initial_indent=head, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    if result.remedy:
        yield f"{indent}→ {result.remedy}"  # never wrapped: it is there to be copied


def _named(hosts: tuple[str, ...]) -> str:
    return ", ".join(hosts) if len(hosts) <= 4 else f"{hosts[0]} … {hosts[-1]} ({len(hosts)} nodes)"


def doctor(
    *,
    site: Annotated[
        str | None, typer.Option("--site", autocompletion=named_sites, help="site: a name, or a site file")
    ] = None,
    in_job: Annotated[
        bool, typer.Option("--in-job", help="check on the compute nodes too, in a job of one minute")
    ] = False,
    students: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="students who share this disk, for the space that they need")
    ] = 1,
    nodes: Annotated[
        int | None, typer.Option("-n", "--nodes", min=1, max=10_000, help="nodes to check with --in-job [2]")
    ] = None,
    patience: Annotated[
        int, typer.Option(min=1, max=10_080, metavar="MINUTES", help="how long --in-job may wait in the queue")
    ] = 10,
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
    from harness.doctor.in_job import NodeRequest, look_after, nodes_for
    from harness.doctor.surroundings import NOT_FROM_LOGIN, CourseSize, Level, look_around, worst
    from harness.site.detection import choose_site

    if nodes is not None and not in_job:
        raise RequestError("-n/--nodes: allowed only with --in-job, which checks that many nodes")
    choice = choose_site(site)
    given = {"account": account, "partition": partition, "qos": qos, "time": time}
    place = override(choice.site, {name: value for name, value in given.items() if value is not None})
    print(f"site: {place.name} ({choice.reason})", file=sys.stderr)
    course_experiments = of_room(COURSE_EXPERIMENTS)
    course = CourseSize(students) if course_experiments is None else CourseSize(students, len(course_experiments()))
    around = look_around(place, course=course, nodes=nodes or 1)
    lines: list[CheckLine] = []
    for line in examine(around, node_follows=in_job):
        _show(line, lines, as_json)
    if in_job:
        asked = NodeRequest(site=place, nodes=nodes or nodes_for(place), course=course)
        say = partial(print, file=sys.stderr, flush=True)
        for line in look_after(lines, around, asked, 60.0 * patience, say):
            _show(line, lines, as_json)
    if as_json:
        rows = [{"check": line.check, "hosts": list(line.hosts), **line.result._asdict()} for line in lines]
        print(json.dumps({"site": place.name, "worst": worst(lines).value, "lines": rows}, indent=1))
    else:
        if unseen := [line for line in lines if line.result.found == NOT_FROM_LOGIN]:
            names = ", ".join(line.check for line in unseen)
            one = unseen[0]._replace(check="on nodes", result=unseen[0].result._replace(what=names))
            print("\n".join(_printed(one, columns(WIDTH))))
        print(_sum(lines))
    return 1 if worst(lines) is Level.PROBLEM else 0


def _show(line: CheckLine, lines: list[CheckLine], quiet: bool) -> None:
    """Print each line when it is known: a container takes a minute to start. What only nodes see is one line later."""
    from harness.doctor.surroundings import NOT_FROM_LOGIN

    lines.append(line)
    if not quiet and line.result.found != NOT_FROM_LOGIN:
        print("\n".join(_printed(line, columns(WIDTH))), flush=True)


def _sum(lines: list[CheckLine]) -> str:
    counts = Counter(line.result.level.value for line in lines)
    names = {"ok": "ok", **SHOWN}
    levels = [level for level in ("problem", "warning", "unseen", "ok") if counts[level]]
    return "\n" + ", ".join(
        f"{counts[level]} {names.get(level, level + 's' * (counts[level] > 1))}" for level in levels
    )

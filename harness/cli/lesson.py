"""`slurm.sh lesson`: the questions, the two commands, hints, and the answer from the student's own runs."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from harness.errors import RequestError

if TYPE_CHECKING:
    from harness.run import Run
    from harness.site import Site
    from harness.study.lessons import Answer, Found, Lesson, Pair

MARK = {"yes": "✓", "no": "✗", "this machine cannot show it": "–"}


def lesson(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="the lesson, e.g. 1a; without: list them")
    ] = None,
    *,
    hint: Annotated[int, typer.Option("--hint", count=True, help="one hint; repeat for the next")] = 0,
    answer: Annotated[bool, typer.Option("--answer", help="the answer, computed from your two runs")] = False,
    run: Annotated[bool, typer.Option("--run", help="start the runs that are missing")] = False,
    site: Annotated[str | None, typer.Option("--site", help="where to run, as for a launch")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print machine-readable JSON")] = False,
) -> int:
    """List the lessons, or do one: its question, its two runs, hints, the answer."""
    from harness.site import choose_site  # noqa: PLC0415 - --help does without
    from harness.study.lessons import find_pair, lesson_names, load_lesson  # noqa: PLC0415 - as above

    here = choose_site(site).site
    if name is None:
        return _list([load_lesson(n) for n in lesson_names()], here, as_json)
    chosen = load_lesson(name)
    pair = chosen.pair(cpu=_on_cpu(here))
    found = find_pair(pair, completed_runs())
    if run:
        found = _run_missing(pair, found, here)
    if answer:
        return _answer(chosen, pair, found, as_json)
    _question(chosen, pair, found)
    for number, text in enumerate(chosen.hints[:hint], 1):
        print(f"hint {number} of {len(chosen.hints)}: {text}")
    return 0


def completed_runs() -> list[Run]:
    """Completed runs, oldest first."""
    from harness.run import all_runs  # noqa: PLC0415 - --help does without

    runs = all_runs()
    return [r for r in runs if (own := r.status()) is not None and own.state == "completed"]


def _on_cpu(site: Site) -> bool:
    from harness.site import nvidia_gpus  # noqa: PLC0415

    return site.device == "cpu" or (site.device == "auto" and not nvidia_gpus())


def _list(lessons: list[Lesson], site: Site, as_json: bool) -> int:
    from harness.study.lessons import find_pair  # noqa: PLC0415

    runs = completed_runs()
    rows = []
    for each in lessons:
        found = find_pair(each.pair(cpu=_on_cpu(site)), runs)
        rows.append({"name": each.name, "title": each.title, "a": _id(found.a), "b": _id(found.b)})
    if as_json:
        print(json.dumps(rows, indent=1))
        return 0
    for row in rows:
        done = sum(row[side] is not None for side in ("a", "b"))
        state = {0: "not begun", 1: "one run of two", 2: f"ready: {row['a']} and {row['b']}"}[done]
        print(f"{row['name']:<4} {row['title']:<45} {state}")
    print("next: slurm.sh lesson 1a · --hint · --answer")
    return 0


def _id(run: Run | None) -> str | None:
    return run.job_id if run is not None else None


def _question(chosen: Lesson, pair: Pair, found: Found) -> None:
    from harness.study.lessons import command  # noqa: PLC0415

    print(f"{chosen.name}: {chosen.title}\n\n{chosen.question}")
    for side, experiment, run in (("a", pair.a, found.a), ("b", pair.b, found.b)):
        print(f"  {side}: {command(experiment):<60} {'run ' + run.job_id if run else 'not run yet'}")
    print("\nlook at")
    for tool, what in chosen.look_at.items():
        print(f"  {tool}: {what}")
    missing = found.a is None or found.b is None
    print(f"\nnext: slurm.sh lesson {chosen.name} " + ("--run" if missing else "--hint · --answer"))


def _run_missing(pair: Pair, found: Found, site: Site) -> Found:
    from harness.cli.follow import follow  # noqa: PLC0415 - only now something is launched
    from harness.launch.submit import submit  # noqa: PLC0415
    from harness.study.lessons import Found as Pairing  # noqa: PLC0415
    from harness.study.lessons import command  # noqa: PLC0415

    runs = []
    for experiment, run in ((pair.a, found.a), (pair.b, found.b)):
        if run is None:
            print(f"running: {command(experiment)}", file=sys.stderr)
            run = submit(experiment, site, ["slurm.sh", *sys.argv[1:]])  # noqa: PLW2901 - the one that was missing
            if follow(run, quiet=True, as_json=True):
                raise RequestError(f"{run.job_id} did not complete: slurm.sh logs {run.job_id}")
        runs.append(run)
    return Pairing(*runs)


def _answer(chosen: Lesson, pair: Pair, found: Found, as_json: bool) -> int:
    from harness.analysis.facts import facts  # noqa: PLC0415 - numpy
    from harness.cli.compare import load_summary  # noqa: PLC0415
    from harness.study.lessons import answers  # noqa: PLC0415

    if found.a is None or found.b is None:
        raise RequestError(_what_is_missing(chosen, pair, found))
    a, b = (load_summary(str(r.path))[1] for r in (found.a, found.b))
    on_gpu = all(d.device_kind != "cpu" for s in (a, b) for d in s.devices)
    over_network = all(len(s.hosts) > 1 for s in (a, b))
    decided = answers(chosen, facts(a), facts(b), on_gpu, over_network)
    if as_json:
        rows = [_as_row(one) for one in decided]
        print(
            json.dumps(
                {"lesson": chosen.name, "a": found.a.job_id, "b": found.b.job_id, "answers": rows}, indent=1
            )
        )
        return 0
    print(f"{chosen.name}: {chosen.title} (a: {found.a.job_id}, b: {found.b.job_id})\n")
    for one in decided:
        _print_answer(one)
    print(f"\n{chosen.because}")
    return 0


def _what_is_missing(chosen: Lesson, pair: Pair, found: Found) -> str:
    from harness.study.lessons import command  # noqa: PLC0415

    missing = [command(e) for e, r in ((pair.a, found.a), (pair.b, found.b)) if r is None]
    needed = " and of: ".join(missing)
    return f"lesson {chosen.name} needs a run of: {needed} (or: slurm.sh lesson {chosen.name} --run)"


def _as_row(one: Answer) -> dict[str, object]:
    return {"says": one.relation.says, "outcome": one.outcome.value, "numbers": one.numbers, "why": one.why}


def _print_answer(one: Answer) -> None:
    numbers = ", ".join(f"{name} = {value:.4g}" for name, value in one.numbers.items())
    print(f"{MARK[one.outcome.value]} {one.relation.says}\n    {numbers}")
    if one.outcome.value != "yes":
        print(f"    {one.outcome.value}: {one.why}")

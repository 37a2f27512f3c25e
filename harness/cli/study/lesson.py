"""`slurm.sh lesson`: the questions, the two commands, hints, and the answer from the student's own runs."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from harness.cli.launch.start import start_announced
from harness.cli.launch.untrusted import YesOption, agreed, may_launch, source_of, typed_text
from harness.cli.options import JsonOption, named_sites
from harness.common.errors import RequestError, TrainingMissing
from harness.experiment.exercises import Experiment
from harness.launch.backends.registry import backend_of, backend_of_run
from harness.launch.before.check import site_lacks_training
from harness.run import Run, all_runs
from harness.site.detection import choose_site, runs_on_cpu
from harness.site.site import Site
from harness.study import lessons

if TYPE_CHECKING:
    from harness.study.guesses import Guess


class LessonAtSite(NamedTuple):
    """A lesson, with its experiments as they run at one site."""

    lesson: lessons.Lesson
    pair: lessons.ExperimentPair  # open settings are those of the run that was found, else the defaults of the site
    site: Site
    site_given: str | None  # --site

    def command(self, experiment: Experiment) -> str:
        """The command of one arm; if no flag can undo a default of the site, the lesson's own `--run`."""
        slide = None if runs_on_cpu(self.site) or self.site.defaults else lessons.slide_of(experiment)
        if slide is not None:
            return lessons.slide_command(slide, self.site_given)
        typed = lessons.shell_command(experiment, self.site_given, self.site.defaults)
        return typed or f"{lessons.lesson_command(self.lesson.name, self.site_given)} --run"

    def arms(
        self, lesson_runs: lessons.LessonRuns
    ) -> tuple[tuple[Experiment, Run | None], tuple[Experiment, Run | None]]:
        return (self.pair.a, lesson_runs.a), (self.pair.b, lesson_runs.b)


def _names(incomplete: str) -> list[str]:
    return [name for name in (*lessons.lesson_names(), *lessons.PARTS) if name.startswith(incomplete)]


def lesson(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", autocompletion=_names, help="the lesson, e.g. 1a; default: list all")
    ] = None,
    *,
    hint: Annotated[bool, typer.Option("--hint", help="print the hints")] = False,
    answer: Annotated[bool, typer.Option("--answer", help="print the answer, computed from your two runs")] = False,
    run: Annotated[
        bool | None,
        typer.Option("--run/--no-run", help="start the missing runs, or not [here: yes; on a cluster it asks]"),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="start both runs once more; the answer takes all pairs of runs")
    ] = False,
    site: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", autocompletion=named_sites, help="where to run, as for a launch")
    ] = None,
    reference: Annotated[
        str | None, typer.Option("--reference", metavar="NAME", help="the answer from stored runs; starts nothing")
    ] = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> int:
    """List the lessons, or do one: print its question, make its two runs if they are missing, give hints and the
    answer."""
    if again and run is False:
        raise RequestError("--again starts both runs, and --no-run starts none: drop one")
    if reference is not None:
        from harness.cli.study.lesson_answer import answer_from

        return answer_from(reference, name, bool(hint or again or run), as_json)
    here = choose_site(site).site
    if name is None:
        return _list([lessons.load_lesson(n) for n in lessons.lesson_names()], here, site, as_json)
    chosen = lessons.load_lesson(name)
    pair, found = _paired(chosen, ended_runs()[chosen.ends], here)
    asked = LessonAtSite(chosen, pair, here, site)
    lesson_here = chosen.here(runs_on_cpu(here))
    hints = lesson_here.hints
    missing = again or found.a is None or found.b is None
    reading = bool(hint or answer or as_json)
    lacks_gpus = missing and _lacks_gpus(chosen, here)
    if lacks_gpus and (answer or again or run or (run is None and not reading)):
        raise RequestError(_needs_gpus(chosen, here))
    run = False if lacks_gpus else run
    if missing and site_lacks_training(here) and wants_runs(again or run, reading, here):
        raise TrainingMissing  # before the question: slurm.sh installs the packages and starts the lesson again
    if not (answer or as_json):
        _question(asked, found)
        for number, text in enumerate(hints, 1):
            print(f"hint {number}: {text}\n" * hint, end="")
    made = [each for each in found if each is not None]
    if again:
        found = lessons.LessonRuns(None, None)
    if missing and wants_runs(again or run, reading, here) and _may_start(asked, found, made, yes):
        guess = None if as_json else _guess(chosen, made)
        found = _run_missing(asked, found, guess, quiet=as_json)
        missing = False
    if answer:
        return _answer(asked, found, as_json)
    if as_json:
        commands = {"command_a": asked.command(pair.a), "command_b": asked.command(pair.b)}
        texts = {"question": lesson_here.question, **commands, "hints": hints if hint else []}
        print(json.dumps(_row(chosen, found) | texts, indent=1))
    else:
        words = ["--run"] if missing and not lacks_gpus else ["--hint"] * (not hint) + ["--answer"] * (not lacks_gpus)
        then = " · ".join(words)
        print(f"\nnext: {lessons.lesson_command(chosen.name, site)} {then}" * bool(then))
    return 0


def _lacks_gpus(lesson: lessons.Lesson, here: Site) -> bool:
    return lesson.needs_gpus and runs_on_cpu(here)


def _needs_gpus(lesson: lessons.Lesson, here: Site) -> str:
    read = lessons.lesson_command(lesson.name, None)
    return (
        f"lesson {lesson.name} needs GPUs, and site {here.name} runs on CPUs: use a --site with GPUs "
        f"({read} --no-run shows the question, {read} --reference NAME answers from stored runs on GPUs)"
    )


def _paired(lesson: lessons.Lesson, runs: list[Run], here: Site) -> tuple[lessons.ExperimentPair, lessons.LessonRuns]:
    """The experiments of both arms, and the runs found of them; a missing arm gets the settings of the other."""
    cpu = runs_on_cpu(here)
    pair, usual = lesson.pair(cpu), dict(here.defaults)
    if not cpu and lesson.gpus_per_node not in (None, here.gpus.per_node):
        usual["gpus_per_node"] = lesson.gpus_per_node
    plain = lessons.at_site(lesson.commands(cpu), usual)
    found = lessons.find_pair(pair, [run for run in runs if run.record.site.name == here.name], plain)
    return lessons.pair_with(pair, found, plain), found


def wants_runs(answer: bool | None, only_reading: bool, site: Site) -> bool:
    """Runs here cost nothing and are started; runs on a cluster cost the account, so a person is asked."""
    if answer is not None or only_reading:
        return bool(answer)
    return backend_of(site).RUNS_HERE or (sys.stdin.isatty() and agreed(f"\nsubmit what is missing at {site.name}?"))


def ended_runs() -> dict[str, list[Run]]:
    """The runs in each state in which runs of lessons end, oldest first."""
    found: dict[str, list[Run]] = {"completed": [], "stuck": [], "failed": []}
    for run in all_runs():
        if (own := run.status()) is not None and own.state in found:
            found[own.state].append(run)
    return found


def _list(every: list[lessons.Lesson], here: Site, site: str | None, as_json: bool) -> int:
    runs = ended_runs()
    rows: list[dict[str, object]] = []
    refused: dict[str, str] = {}
    for each in every:
        found = lessons.LessonRuns(None, None)
        try:
            found = _paired(each, runs[each.ends], here)[1]
        except RequestError as error:  # the site's defaults do not go with this lesson
            refused[each.name] = str(error)
        rows.append(_row(each, found) | {"refused": refused.get(each.name)})
    if as_json:
        print(json.dumps(rows, indent=1))
        return 0
    width = max(len(each.title) for each in every)
    for row, each in sorted(zip(rows, every, strict=True), key=lambda pair: pair[1].further):
        done = sum(row[arm] is not None for arm in ("a", "b"))
        state = {0: "not started", 1: "one run of two", 2: f"ready: {row['a']} and {row['b']}"}[done]
        if done < len(lessons.LessonRuns._fields) and _lacks_gpus(each, here):
            state = "needs GPUs"
        state = f"not at this site: {refused[each.name]}" if each.name in refused else state
        print(f"{row['name']:<4} {row['title']:<{width}} {state}{', beyond the workshop' * each.further}")
    print(f"next: {lessons.lesson_command('1a', site)} · --hint · --answer")
    return 0


def _row(lesson: lessons.Lesson, lesson_runs: lessons.LessonRuns) -> dict[str, object]:
    runs = {arm: run.job_id if run else None for arm, run in lesson_runs._asdict().items()}
    return {"name": lesson.name, "title": lesson.title, "needs": "gpu" if lesson.needs_gpus else None, **runs}


def _question(lesson_at_site: LessonAtSite, lesson_runs: lessons.LessonRuns) -> None:
    lesson = lesson_at_site.lesson.here(runs_on_cpu(lesson_at_site.site))
    print(f"{lesson.name}: {lesson.title}\n\n{lesson.question}")
    if _lacks_gpus(lesson_at_site.lesson, lesson_at_site.site):
        print(f"This lesson needs GPUs, and site {lesson_at_site.site.name} runs on CPUs: choose another --site.\n")
    for arm, (experiment, run) in zip("ab", lesson_at_site.arms(lesson_runs), strict=True):
        state = f"run {run.job_id}" if run else "not run yet"
        command = f": {lesson_at_site.command(experiment)}" * (not lesson_at_site.lesson.command_tells)
        print(f"  {arm} ({state}){command}")
    print("\nlook at")
    for tool, what in lesson.look_at.items():
        print(f"  {'report --full' if tool == 'report' else tool}: {what}")
    if runs_on_cpu(lesson_at_site.site):
        print("  the page, whose path report prints: its timeline has the same ranges and operators")


def _may_start(lesson_at_site: LessonAtSite, lesson_runs: lessons.LessonRuns, made: list[Run], yes: bool) -> bool:
    """Whether to start what is missing; it takes the open settings of a run that was made, which may be another's."""
    missing = [experiment for experiment, run in lesson_at_site.arms(lesson_runs) if run is None]
    return all(may_launch(source_of(run, run.record), missing, None, yes=yes) for run in made)


def _guess(lesson: lessons.Lesson, made: list[Run]) -> Guess | None:
    """What the student expects. Asked at a terminal only, and not again if a run of the lesson keeps a guess."""
    from harness.study import guesses

    if lesson.guess is None or not sys.stdin.isatty() or guesses.guess_of(lesson.name, made):
        return None
    guess = None
    while guess is None:
        guess = guesses.parse(lesson.name, typed_text(f"\nGuess first: {lesson.guess.asks}\n{guesses.HOW}"))
    return guess


def _run_missing(
    lesson_at_site: LessonAtSite, lesson_runs: lessons.LessonRuns, guess: Guess | None, quiet: bool
) -> lessons.LessonRuns:
    """Both runs; the missing ones are started now, all at once if a scheduler queues them, and keep the guess."""
    from harness.cli.watch.follow import complete
    from harness.launch.submit import prepare
    from harness.study.guesses import keep

    runs, unfinished = [], []
    lesson = lesson_at_site.lesson
    arms = lesson_at_site.arms(lesson_runs)
    # Both before the first starts: an arm that cannot run makes the other's run useless.
    ready = [prepare(experiment, lesson_at_site.site) if run is None else None for experiment, run in arms]
    for (experiment, run), prepared in zip(arms, ready, strict=True):
        if run is None and prepared is not None:
            typed = lesson_at_site.command(experiment)
            run = start_announced(prepared, typed, hidden=lesson.command_tells)  # noqa: PLW2901 - it was missing
            if guess is not None:
                keep(run, guess)
            if backend_of_run(run).HELD:
                complete(run, quiet or lesson.command_tells, lesson.ends)
            else:
                unfinished.append(run)
        runs.append(run)
    for run in unfinished:
        complete(run, quiet or lesson.command_tells, lesson.ends)
    return lessons.LessonRuns(*runs)


def _answer(question: LessonAtSite, lesson_runs: lessons.LessonRuns, as_json: bool) -> int:
    from harness.cli.study.lesson_answer import give_answer

    if lesson_runs.a is None or lesson_runs.b is None:
        own = f"{lessons.lesson_command(question.lesson.name, question.site_given)} --run"
        needed = " and of: ".join(
            question.command(experiment) for experiment, run in question.arms(lesson_runs) if run is None
        )
        raise RequestError(f"lesson {question.lesson.name} needs a run of: {needed} (or {own})")
    here, lesson = question.site, question.lesson
    runs = [run for run in ended_runs()[lesson.ends] if run.record.site.name == here.name]
    pairs = lessons.pairs_like(lesson.pair(runs_on_cpu(here)), lesson_runs.b, runs)
    give_answer(lesson, pairs or [(lesson_runs.a, lesson_runs.b)], question.site_given, as_json=as_json)
    return 0

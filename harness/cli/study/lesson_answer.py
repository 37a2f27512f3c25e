"""A lesson's answer from two runs, or from the stored runs of a reference. Starts no run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.analysis.metric_values import step_durations_ns
from harness.analysis.metrics import metrics_by_name
from harness.analysis.summary import RecordingVerdict, Summary
from harness.common.display.text import how_many
from harness.common.errors import RequestError
from harness.common.paths import COMMAND
from harness.compare.comparison import FEWEST_STEPS, TOO_FEW_STEPS
from harness.measure.request import load_summary
from harness.run import when
from harness.study import relations
from harness.study.guesses import beside_measured, guess_of
from harness.study.lessons import MOST_PAIRS, Lesson, lesson_command, load_lesson
from harness.study.reference.collect import StoredArm, stored_pair
from harness.study.reference.stored import Reference, read_reference, reference_folder
from harness.study.relations import MARKS, LessonArm, RelationOutcome, RelationResult

if TYPE_CHECKING:
    from harness.run import Run


def give_answer(lesson: Lesson, pairs: Sequence[tuple[Run, Run]], site: str | None, *, as_json: bool) -> None:
    """Print for every relation whether it holds, and why. pairs: the newest last."""
    measured = [
        (arm_of(a, lesson), arm_of(b, lesson)) for a, b in (pairs if lesson.ends == "completed" else pairs[-1:])
    ]
    quiet = [pair for pair in measured if not any(arm.doubts for arm in pair)]
    arms = together([pair[0] for pair in quiet or measured]), together([pair[1] for pair in quiet or measured])
    a, b = pairs[-1]
    decided = relations.decide(lesson, *arms)
    guess = guess_of(lesson.name, [run for pair in pairs for run in pair])
    guessed = beside_measured(guess, lesson, *arms) if guess else ""
    if as_json:
        of = {"site": a.record.site.name, "guess": guess and guess.model_dump(exclude={"lesson"})}
        print(json.dumps(as_document(lesson, arms, decided) | of, indent=1))
        return
    print(f"{lesson.name}: {lesson.title} (a: {arms[0].name}, b: {arms[1].name})\n")
    print(f"{guessed}\n" * bool(guessed), end="")
    for letter, arm in zip("ab", arms, strict=True):
        if arm.ending:
            print(f"{letter}: {arm.ending}")
    for one in decided:
        print("\n".join(answer_lines(one)))
    print("".join(f"{line}\n" for line in step_lines(arms, decided)), end="")
    doubts = [doubt for arm in arms for doubt in arm.doubts]
    repeat = again(lesson, site)
    if lesson.ends == "completed":
        commands = repeat, f"{COMMAND} compare {a.job_id} {b.job_id}"
        advice = what_to_do(decided, doubts, commands, relations.needed_pairs(decided, arms))
    else:
        advice = try_again(decided, repeat)
    print("".join(f"{line}\n" for line in advice), end="")
    print(f"\n{relations.because(lesson, *arms)}")


def arm_of(run: Run, lesson: Lesson) -> LessonArm:
    if lesson.ends != "completed":
        ending, numbers = relations.ending_of(run)
        return LessonArm(run.job_id, numbers, on_gpu=False, over_network=False, doubts=[], ending=ending)
    s = load_summary(str(run.path))[1]
    steps_ns = step_durations_ns(s)
    return LessonArm(
        run.job_id,
        metrics_by_name(s),
        on_gpu=all(d.device_kind != "cpu" for d in s.devices),
        over_network=len(s.hosts) > 1,
        doubts=doubts_of(run.job_id, s),
        steps_ns=[steps_ns] if steps_ns else [],
    )


def together(lesson_arms: Sequence[LessonArm]) -> LessonArm:
    """Several runs of one arm as one, with the means of their metrics."""
    return lesson_arms[-1]._replace(
        name=" and ".join(run.name for run in lesson_arms),
        metrics=relations.mean_metrics([run.metrics for run in lesson_arms]),
        doubts=[doubt for run in lesson_arms for doubt in run.doubts],
        runs=[run.metrics for run in lesson_arms],
        steps_ns=[steps for run in lesson_arms for steps in run.steps_ns],
    )


def as_document(lesson: Lesson, arms: tuple[LessonArm, LessonArm], decided: list[RelationResult]) -> dict[str, object]:
    row: dict[str, object] = {"lesson": lesson.name, "a": arms[0].name, "b": arms[1].name}
    if lesson.ends != "completed":
        row["endings"] = [arm.ending for arm in arms]
    step = relations.step_time(*arms)
    row["step_time"] = None if step is None else step.model_dump(mode="json")
    answers = [
        {"says": one.relation.says, "outcome": one.outcome.value, "numbers": one.numbers, "why": one.why}
        for one in decided
    ]
    return row | {"answers": answers, "doubts": [doubt for arm in arms for doubt in arm.doubts]}


def doubts_of(run_name: str, summary: Summary) -> list[dict[str, str]]:
    findings = [found for found in summary.quality.problems if found.severity is not RecordingVerdict.GOOD]
    return [{"run": run_name, "what": found.what, "evidence": found.evidence} for found in findings]


def again(lesson: Lesson, site: str | None) -> str:
    return f"{lesson_command(lesson.name, site)} --again --answer"


def answer_lines(one: RelationResult) -> list[str]:
    lines = [f"{MARKS[one.outcome]} {one.relation.says}", f"    {relations.numbers_text(one)}"]
    return lines if one.outcome is RelationOutcome.HOLDS else [*lines, f"    {one.outcome.value}: {one.why}"]


def step_lines(arms: tuple[LessonArm, LessonArm], decided: Sequence[RelationResult]) -> list[str]:
    """The step time of both arms with its verdict, as `compare` and `check` show it, if the lesson compares times that
    this machine can show."""
    from harness.report.compare.verdicts import verdict_table
    from harness.report.tables.table import table

    step = relations.step_time(*arms)
    timed = [one for one in decided if one.relation.depends_on_load]
    if step is None or all(one.outcome is RelationOutcome.NOT_COMPARABLE for one in timed):
        return []
    shown = verdict_table([("step time", step)], ("a", "b"))
    doubtful = ", doubtful" * any(arm.doubts for arm in arms)
    rows = [(*cells, f"{verdict}{doubtful}") for *cells, verdict in shown.rows]
    return ["", *table(shown.head, rows), *step.groups_of("a", "b")]


def what_to_do(
    decided: list[RelationResult], doubts: list[dict[str, str]], commands: tuple[str, str], needed: int | None
) -> list[str]:
    """The doubts about the recordings; after a relation that failed or is not known the command to try next, as long as
    it can tell more. commands: that measures again, that compares the runs. needed: pairs that would tell."""
    failed = [one.relation for one in decided if one.outcome is RelationOutcome.FAILS]
    unknown = [one.why for one in decided if one.outcome is RelationOutcome.UNKNOWN]
    found = [f"    {doubt['run']}: {doubt['what']} ({doubt['evidence']})" for doubt in doubts]
    lines = ["", "Problems of these recordings:", *found] if found else []
    again, compare = (f"    {command}" for command in commands)
    if TOO_FEW_STEPS in unknown:
        lines += ["", f"A run needs more steps to tell: launch both with --active-steps {FEWEST_STEPS} or more."]
    elif unknown and needed is not None:
        lines += ["", f"About {needed} pairs of runs would tell. This makes one more; the answer takes all:", again]
    elif doubts and (unknown or any(relation.depends_on_load for relation in failed)):
        quiet = "Times depend on other programs on the machine. Repeat both runs when it is quiet"
        lines += ["", f"{quiet}; the answer then takes quiet pairs only:", again]
    elif unknown:
        lines += ["", f"Even {MOST_PAIRS} pairs like these would not tell: the two differ by less than such runs do."]
    if failed and not (doubts and all(relation.depends_on_load for relation in failed)):
        lines += ["", "Compare what else differs between the two runs:", compare]
    return lines


def try_again(decided: list[RelationResult], repeat: str) -> list[str]:
    """After a relation about the ends of two runs that failed: the command to try next."""
    failed = any(one.outcome is not RelationOutcome.HOLDS for one in decided)
    return ["", "The runs ended otherwise than expected. Repeat both:", f"    {repeat}"] if failed else []


def answer_from(reference: str, name: str | None, others: bool, as_json: bool) -> int:
    """Print the answer from a reference. others: whether --run, --again or --hint was given."""
    if name is None:
        asked = f"{COMMAND} lesson 2a --reference {reference}"
        raise RequestError(f"--reference {reference}: say which lesson, as in {asked}")
    if others:
        raise RequestError("--reference answers from stored runs: drop --run, --again and --hint")
    lesson = load_lesson(name)
    folder = reference_folder(reference)
    found = read_reference(folder)
    _answer_stored(lesson, found, stored_pair(folder, found, lesson), as_json)
    return 0


def _answer_stored(lesson: Lesson, reference: Reference, pair: tuple[StoredArm, StoredArm], as_json: bool) -> None:
    arms = pair[0].arm, pair[1].arm
    decided = relations.decide(lesson, *arms)
    if as_json:
        document = as_document(lesson, arms, decided)
        print(json.dumps({"reference": reference.name, "site": reference.site} | document, indent=1))
        return
    print(f"{lesson.name}: {lesson.title}\n")
    print(_whose(reference))
    for letter, stored in zip("ab", pair, strict=True):
        print(f"  {letter}: {stored.variant.name} ({how_many(stored.variant.runs, 'run')}): {stored.variant.command}")
    print()
    for one in decided:
        print("\n".join(answer_lines(one)))
    print("".join(f"{line}\n" for line in step_lines(arms, decided)), end="")
    for doubt in (doubt for arm in arms for doubt in arm.doubts):
        print(f"  recording of {doubt['run']}: {doubt['what']}")
    print(f"\n{relations.because(lesson, *arms)}")
    print(f"next, when the queue is free: {COMMAND} lesson {lesson.name} --run")


def _whose(reference: Reference) -> str:
    hardware = reference.hardware
    cores = f" with {hardware.cores} cores" if hardware.cores else ""
    return (
        f"These are the numbers of the reference {reference.name}, not of your runs:\nrecorded on {reference.site} "
        f"({hardware.device}{cores}), {when(reference.created_ns)}."
    )

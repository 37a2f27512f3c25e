"""`slurm.sh lesson NAME --reference R`: a lesson answered from a reference's stored runs. Starts no run."""

from __future__ import annotations

import json

from harness.cli.study.lesson_answer import answer_lines, as_document
from harness.common.errors import RequestError
from harness.common.paths import PROGRAM
from harness.measure.references import Reference, read_reference, reference_folder
from harness.run import when
from harness.study.lessons import Lesson, RelationOutcome, because, decide, load_lesson
from harness.study.reference.collect import StoredArm, arm_of, on_gpu, stored_pair


def answer_from(reference: str, name: str | None, hints: int, runs: bool, as_json: bool) -> int:
    """Print the answer; with hints asked for, the question and the hints instead. Returns the exit code.

    runs: whether --run or --again was given.

    Raises:
        RequestError: there is no such reference or lesson, or the reference has no runs for it.
        WorkError: a file of the reference is damaged.
    """
    if name is None:
        asked = f"{PROGRAM} lesson 2a --reference {reference}"
        raise RequestError(f"--reference {reference}: say which lesson, as in {asked}")
    if runs:
        raise RequestError("--reference answers from stored runs, and --run and --again start runs: drop one")
    lesson = load_lesson(name)
    folder = reference_folder(reference)
    found = read_reference(folder)
    pair = stored_pair(folder, found, lesson)
    if hints and not as_json:
        _question(lesson.here(cpu=not on_gpu(found)), pair, hints)
    else:
        _answer(lesson, found, pair, as_json)
    return 0


def _question(lesson: Lesson, pair: tuple[StoredArm, StoredArm], hints: int) -> None:
    print(f"{lesson.name}: {lesson.title}\n\n{lesson.question}")
    for arm, stored in zip("ab", pair, strict=True):
        print(f"  {arm}: {stored.variant.command}")
    print()
    for number, text in enumerate(lesson.hints[:hints], 1):
        print(f"hint {number} of {len(lesson.hints)}: {text}")


def _answer(lesson: Lesson, reference: Reference, pair: tuple[StoredArm, StoredArm], as_json: bool) -> None:
    arms = arm_of(pair[0], reference), arm_of(pair[1], reference)
    decided = decide(lesson, *arms)
    if as_json:
        document = as_document(lesson, arms, decided)
        print(json.dumps({"reference": reference.name, "site": reference.site} | document, indent=1))
        return
    print(f"{lesson.name}: {lesson.title}\n")
    print(_whose(reference))
    for letter, stored in zip("ab", pair, strict=True):
        counted = f"{stored.variant.runs} run{'s' * (stored.variant.runs != 1)}"
        print(f"  {letter}: {stored.variant.name} ({counted}): {stored.variant.command}")
    print()
    for one in decided:
        print("\n".join(answer_lines(one)))
    if any(one.outcome is RelationOutcome.FAILS for one in decided):
        for doubt in (doubt for arm in arms for doubt in arm.doubts):
            print(f"  recording of {doubt['run']}: {doubt['what']}")
    print(f"\n{because(lesson, *arms)}")
    print(f"next, when the queue is free: {PROGRAM} lesson {lesson.name} --run")


def _whose(reference: Reference) -> str:
    """Whose numbers these are."""
    hardware = reference.hardware
    cores = f" with {hardware.cores} cores" if hardware.cores else ""
    return (
        f"These are the numbers of the reference {reference.name}, not of your runs:\nrecorded on {reference.site} "
        f"({hardware.device}{cores}), {when(reference.created_ns)}."
    )

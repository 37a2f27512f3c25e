"""Mysteries: faults drawn from a seed, put into an experiment, graded. Neither launches nor prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple

from harness.common.declared_faults import CRASHES, HANGS_ALONE, HANGS_IN_COLLECTIVE, ONE_RANK, SILENT_CRASHES
from harness.common.errors import RequestError, near_path
from harness.common.faults import FAULTS, Fault, FaultKind, InMystery, Setup, misfits, parse_fault
from harness.common.mystery import checksum
from harness.common.walk import Walk
from harness.experiment.model import Model
from harness.experiment.training import Mystery, Training
from harness.run.mystery import AnswerLine, answers_file, before_reveal, read_answers
from harness.study.mystery_grades import cause_of, result

Level = Literal[1, 2]
LEVELS = {
    1: "one cause, on all ranks, in each step",
    2: "one cause, on one rank or in every k-th step",
    3: "two causes at once",  # in older records
}
Subject = Literal["slow", "hang", "crash"]
ENDINGS: dict[Subject, dict[int, tuple[str, tuple[str, ...]]]] = {
    "hang": {
        1: ("one rank hangs in its own code or in its data loader", tuple(HANGS_ALONE)),
        2: ("the ranks hang in collectives or messages, or one of them has left", tuple(HANGS_IN_COLLECTIVE)),
    },
    "crash": {
        1: ("one rank dies, and the log has its error", tuple(set(CRASHES) - set(SILENT_CRASHES))),
        2: ("one rank dies, and writes no error", SILENT_CRASHES),
    },
}
"""Subject → level → what is hidden, and the kinds of the fault that are drawn."""
FIRST_STEP, LAST_STEP = 3, 12  # in which a rank hangs or dies
RECURRING = (2, 3)  # k of every k-th step
LEAST_STEPS, USUAL_STEPS = 9, 18  # recorded at level 2: every third step is seen three times, or six

# Milliseconds of a step of the miniature models on two cores, measured; a mystery need not fit better than that.
_CPU_STEP_MS = {1: 100.0, 2: 240.0, 3: 1000.0}
_GPU_FLOPS_PER_S = {True: 250e12, False: 40e12}  # assumed of one device in bf16 and in fp32
_LEAST_GPU_STEP_MS = 20.0  # a shorter step is bound by the host
MOST_LOOKED_AT = 500_000  # of a whole class some 20,000


class MysteryPlace(NamedTuple):
    """Where a mystery will run. step_ms: a usual step without faults. rank: that of causes on one rank."""

    setup: Setup
    device: str
    step_ms: float
    rank: int = 0


def place_of(experiment: Training, device_type: str, model: Model | None) -> MysteryPlace:
    """The place of a resolved experiment; device: cpu or cuda."""
    step_ms = _CPU_STEP_MS.get(experiment.exercise, max(_CPU_STEP_MS.values()))
    if device_type != "cpu" and model is not None:
        ranks, seq_length = experiment.world_size or 1, experiment.seq_length or model.defaults.seq_length
        samples = (experiment.batch_per_iteration or (experiment.micro_batch_size or 1) * ranks) / ranks
        flops = model.flops_per_token(seq_length) * seq_length * samples
        step_ms = max(1e3 * flops / _GPU_FLOPS_PER_S[experiment.in_bf16], _LEAST_GPU_STEP_MS)
    return MysteryPlace(experiment.fault_setup, device_type, step_ms)


def draw(seed: int, level: Level, place: MysteryPlace) -> tuple[str, ...]:
    """The faults of a mystery; the same for the same arguments. Raises RequestError: too few faults work there."""
    setup, device = place.setup, place.device
    drawn_for = f"{seed}/{level}/{setup.exercise}/{setup.world_size}/{device}"
    chance = Random(drawn_for)
    kinds = [(kind, how) for kind in FAULTS.values() if (how := _fits(kind, level, place)) is not None]
    if not kinds:
        raise RequestError(f"--level {level}: no fault works in this training: use --level 1")
    ((kind, how),) = chance.sample(kinds, 1)
    rank = chance.randrange(setup.world_size or 1)
    return (str(_drawn(kind, how, level, place._replace(rank=rank), chance)),)


def draw_ending(seed: int, level: Level, subject: Subject, place: MysteryPlace) -> tuple[str, ...]:
    """The fault of a mystery that hangs or dies; the same for the same arguments.
    Raises RequestError: the training has one rank or too few steps."""
    setup, device = place.setup, place.device
    if setup.world_size == 1:
        raise RequestError(f"--kind {subject}: {ONE_RANK}")
    drawn_for = f"{subject}/{seed}/{level}/{setup.exercise}/{setup.world_size}/{device}"
    chance = Random(drawn_for)
    words = sorted(ENDINGS[subject][level][1])
    chance.shuffle(words)
    rank = chance.randrange(setup.world_size or 1)
    step = chance.randrange(FIRST_STEP, LAST_STEP + 1)
    for word in words:
        fault = parse_fault(f"{subject},kind={word},step={step},rank={rank}")
        if not [*misfits([fault], setup)]:
            return (str(fault),)
    raise RequestError(f"--kind {subject}: it comes in step {LAST_STEP} or before: use --steps {LAST_STEP + 1}")


def subject_of(faults: Sequence[Fault]) -> Subject:
    """What a mystery with these faults is about."""
    return next((subject for subject in ENDINGS for fault in faults if fault.name == subject), "slow")


def level_text(subject: Subject, level: int) -> str:
    return LEVELS[level] if subject == "slow" else ENDINGS[subject][level][0]


def _fits(kind: FaultKind, level: Level, place: MysteryPlace) -> InMystery | None:
    """How a fault is hidden there; None: it does not work there, or would not show."""
    how, setup = kind.mystery, place.setup
    if how is None or setup.exercise not in kind.exercises or place.device not in kind.devices:
        return None
    if how.one_rank and (level == 1 or (setup.world_size or 1) < 2):
        return None
    return how if all(need.holds(setup) for need in kind.needs) else None


def _drawn(kind: FaultKind, how: InMystery, level: Level, place: MysteryPlace, chance: Random) -> Fault:
    ranks = place.setup.world_size or 1
    one_rank, every = _narrowed(how, level, ranks, chance)
    ms = place.step_ms * chance.uniform(how.least, how.most) * every
    words = [f"ms={ms:.1f}"]
    words += [f"{key.name}={chance.choice(key.words)}" for key in kind.keys if key.words and not key.most]
    words += [f"rank={place.rank}"] if one_rank and ranks > 1 else []
    words += [f"every={every}"] if every > 1 else []
    return parse_fault(",".join([kind.name, *words]))


def _narrowed(how: InMystery, level: Level, ranks: int, chance: Random) -> tuple[bool, int]:
    """Whether it comes on one rank only, and in every which step."""
    if level == 1:
        return False, 1
    one_rank, recurring = chance.choice([(True, False), (False, True), (True, True)])
    if ranks == 1:
        return False, chance.choice(RECURRING)
    return one_rank or how.one_rank, chance.choice(RECURRING) if recurring else 1


def with_mystery(experiment: Training, level: Level, faults: tuple[str, ...], resolved: Training) -> Training:
    """The experiment with these faults, of the size that `resolved` has; without a flag, enough steps to see a period.

    Raises RequestError: the flags ask for too few steps.
    """
    subject = subject_of(list(map(parse_fault, faults)))
    fixed: dict[str, Any] = {
        "mystery": Mystery(level=level, subject=subject, commitment=checksum(faults), faults=faults),
        "gpus_per_node": resolved.gpus_per_node,
    }
    if subject != "slow":
        usual = {"on_hang": "stop", "profiler": "none"}  # its cause is not in a trace
        fixed |= {name: value for name, value in usual.items() if name not in experiment.model_fields_set}
    elif level == 2 and not {"active_steps", "steps"} & experiment.model_fields_set:
        fixed["active_steps"] = max(experiment.active_steps, USUAL_STEPS)
    elif level == 2 and experiment.active_steps < LEAST_STEPS:
        raise RequestError(
            f"--level 2: {experiment.active_steps} recorded steps do not show a fault in every third one: the nearest "
            f"is --active-steps {LEAST_STEPS}"
        )
    return experiment.model_copy(update=fixed)


def faults_of(mystery: Mystery) -> tuple[Fault, ...]:
    """The faults that a mystery hides. Raises RequestError: they are not known here, or were changed after the run."""
    cannot = "the mystery cannot be opened"
    if not mystery.faults:
        raise RequestError(f"{cannot}: an earlier version sealed its faults: use that one (commit in run.json)")
    if checksum(mystery.faults) != mystery.commitment:
        raise RequestError(f"{cannot}: its faults were changed after the run")
    faults = tuple(map(parse_fault, mystery.faults))
    for fault in faults:
        if fault.kind.mystery is None and fault.name not in ENDINGS:
            raise RequestError(f"{cannot}: {fault.name} is drawn for none")
    return faults


@dataclass(frozen=True)
class MysteryRow:
    """One mystery of one student. mystery: the beginning of its commitment, the same for the same seed and place.
    points: None if it could not be graded; `note` says why. revealed: its end was seen."""

    student: str
    run: str
    exercise: int
    level: int
    mystery: str
    tries: int
    points: int | None
    causes_right: int
    causes: int
    revealed: bool
    note: str = ""


@dataclass(frozen=True)
class Mistake:
    """A wrong cause. students: how many said it, in `times` answers."""

    said: str
    instead_of: str
    students: int
    times: int


@dataclass(frozen=True)
class Board:
    """rows: by student and run. mistakes: the commonest first."""

    rows: list[MysteryRow]
    mistakes: list[Mistake]


def answer_files(paths: Iterable[Path]) -> list[Path]:
    """The answers files that are named, or below the folders that are named; each once.

    Raises:
        RequestError: a path is not there, there is no answers file, or a folder is too large to be that of a class.
        WorkError: a file cannot be read.
    """
    found: list[Path] = []
    asked, name = list(paths), answers_file(Path()).name
    for path in asked:
        if not path.exists():
            raise RequestError(f"{path}: there is no such file or folder{near_path(path)}")
        found += _below(path, name) if path.is_dir() else [path]
    if not any(map(read_answers, found)):
        places = ", ".join(map(str, asked))
        raise RequestError(f"{places}: has no answer to a mystery: students hand in the file {name} of their run")
    return list({path.resolve(): path for path in found}.values())


def _below(folder: Path, name: str) -> list[Path]:
    def bounded(walk: Walk) -> None:
        if walk.looked_at > MOST_LOOKED_AT:
            raise RequestError(
                f"{folder}: holds more than {MOST_LOOKED_AT:,} files and folders: name a folder of answers files"
            )

    return sorted(path for path in Walk(folder, bounded).files() if path.name.endswith(name))


def read_board(files: Iterable[Path]) -> Board:
    every = (line for path in files for line in read_answers(path))
    lines = list({line.model_dump_json(): line for line in every}.values())  # a file may have been handed in twice
    lines.sort(key=_mystery_of)
    graded = [_graded(list(of_one)) for _, of_one in groupby(lines, key=_mystery_of)]
    wrong = [answer for _, some in graded for answer in some]
    times = Counter((said, true) for _, said, true in wrong)
    students = Counter((said, true) for _, said, true in set(wrong))
    mistakes = [Mistake(said, true, students[said, true], count) for (said, true), count in times.most_common()]
    return Board([row for row, _ in graded], mistakes)


def _mystery_of(line: AnswerLine) -> tuple[str, str, str]:
    return line.student, line.run, line.mystery.commitment


Wrong = tuple[str, str, str]  # student, what was said, what it was


def _graded(lines: Sequence[AnswerLine]) -> tuple[MysteryRow, list[Wrong]]:
    ordered = sorted(lines, key=lambda line: line.unix_ns)
    first, counted = ordered[0], before_reveal(ordered)
    answers = [line.answer for line in counted if line.answer is not None]
    faults: tuple[Fault, ...] = ()
    found, note = None, ""
    try:
        faults = faults_of(first.mystery.model_copy(update={"faults": first.please_do_not_look}))
        found = result(faults, answers, first.world_size)
    except RequestError as error:
        note = str(error)
    row = MysteryRow(
        student=first.student,
        run=first.run,
        exercise=first.exercise,
        level=first.mystery.level,
        mystery=first.mystery.commitment[:8],
        tries=len(answers),
        points=found.points if found else None,
        causes_right=sum(one is not None and one[1].parts[0].hint == "" for one in found.last) if found else 0,
        causes=len(faults),
        revealed=len(counted) < len(ordered),
        note=note,
    )
    true = [cause_of(fault) for fault in faults]
    said = [answer.cause for answer in answers if found and answer.cause not in true]
    return row, [(first.student, cause, " + ".join(true)) for cause in said]

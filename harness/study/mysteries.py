"""Mysteries: faults drawn from a seed, put into an experiment and compared with an answer. It neither launches
nor prints."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Literal, NamedTuple

from harness.common.errors import RequestError, nearest_or_list
from harness.common.faults.fault import FAULTS, Fault, FaultKind, InMystery, Setup, parse_fault
from harness.common.faults.mystery import checksum
from harness.common.paths import COMMAND
from harness.experiment.model import Model
from harness.experiment.training import Mystery, Training
from harness.run.mystery import MysteryAnswer

Level = Literal[1, 2]
RECURRING = (2, 3)  # k of every k-th step
LEAST_STEPS, USUAL_STEPS = 9, 18  # recorded at level 2: every third step is seen three times, or six

# Milliseconds of a step of the miniature models on two cores, measured; a mystery need not fit better than that.
_CPU_STEP_MS = {1: 100.0, 2: 240.0, 3: 1000.0}
_GPU_FLOPS_PER_S = {True: 250e12, False: 40e12}  # assumed of one device in bf16 and in fp32
_LEAST_GPU_STEP_MS = 20.0  # a shorter step is bound by the host


class MysteryPlace(NamedTuple):
    """Where a mystery will run. step_ms: a usual step without faults. rank: that of causes on one rank."""

    setup: Setup
    device: str
    step_ms: float
    rank: int = 0


def place_of(experiment: Training, device_type: str, model: Model | None) -> MysteryPlace:
    """The place of a resolved experiment; device_type: cpu or cuda."""
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
    fixed: dict[str, Any] = {
        "mystery": Mystery(level=level, commitment=checksum(faults), faults=faults),
        "gpus_per_node": resolved.gpus_per_node,
    }
    if level == 2 and not {"active_steps", "steps"} & experiment.model_fields_set:
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
        raise RequestError(f"{cannot}: its hidden file with the faults is not in the run")
    if checksum(mystery.faults) != mystery.commitment:
        raise RequestError(f"{cannot}: its faults were changed after the run")
    faults = tuple(map(parse_fault, mystery.faults))
    for fault in faults:
        if fault.kind.mystery is None:
            raise RequestError(f"{cannot}: {fault.name} is drawn for none")
    return faults


def checked(answer: MysteryAnswer, world_size: int) -> MysteryAnswer:
    """The answer, if it could be right. Raises RequestError: one line for each thing that cannot be."""
    wrong = []
    if answer.cause not in FAULTS:
        hint = nearest_or_list(answer.cause, FAULTS, f"{COMMAND} help faults lists all")
        wrong.append(f"--cause: there is no cause {answer.cause!r}{hint}")
    if absent := [rank for rank in answer.ranks or () if not 0 <= rank < world_size]:
        last = world_size - 1
        wrong.append(f"--rank: there is no rank {absent[0]}, the ranks are 0 to {last}: the nearest is {last}")
    if wrong:
        raise RequestError("\n".join(wrong))
    return answer


def is_right(answer: MysteryAnswer, faults: Sequence[Fault], world_size: int) -> bool:
    """Whether it names one of the faults, and the ranks that have it."""
    every = frozenset(range(world_size))
    said = every if answer.ranks is None else frozenset(answer.ranks)
    return any(
        answer.cause == fault.name and said == (every if fault.rank is None else {fault.rank}) for fault in faults
    )

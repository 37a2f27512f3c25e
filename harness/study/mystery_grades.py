"""An answer to a mystery graded: cause, place and milliseconds, with partial credit and a hint for each wrong part."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from harness.common.declared_faults import HANGS_TOGETHER
from harness.common.errors import RequestError, nearest, nearest_or_list
from harness.common.faults import FAULTS, PHASES, Fault, FaultKind
from harness.common.paths import PROGRAM
from harness.run.mystery import MysteryAnswer

# Of 100 points.
CAUSE, PLACE, MS = 40, 30, 30
ENDING_PART = 30  # for each, rank and step
ENDING_HINTS = {
    "hang": "look at the place of the rank that does not wait for another one, and at the stacks in live/",
    "crash": "look which rank tells no broken connection, and at the signal or exit status of its process",
}
UNDECIDED = (*HANGS_TOGETHER, "missing-collective", "no-receive")
CLOSE, NEAR = 0.2, 0.5  # of the true time: up to here all points, half of them
PHASE_KEY = "in"


@dataclass(frozen=True)
class GradePart:
    """What one thing earned. hint: empty if nothing is missing."""

    name: str
    points: int
    of: int
    hint: str = ""


@dataclass(frozen=True)
class Grade:
    """One answer compared with one fault."""

    parts: tuple[GradePart, ...]

    @property
    def points(self) -> int:
        """Of 100."""
        return sum(part.points for part in self.parts)


@dataclass(frozen=True)
class MysteryResult:
    """All answers to a mystery. last: of each fault, the number and grade of the last answer meant for it."""

    faults: tuple[Fault, ...]
    last: tuple[tuple[int, Grade] | None, ...]

    @property
    def points(self) -> int:
        """Of 100, mean over the faults."""
        return round(sum(found[1].points for found in self.last if found) / len(self.faults))

    @property
    def missing(self) -> int:
        """How many causes no answer was meant for."""
        return sum(found is None for found in self.last)


def cause_of(fault: Fault) -> str:
    """What an answer calls it: of a hang or a crash, its kind."""
    return fault.values["kind"] if fault.name in ENDING_HINTS else fault.name


def checked(answer: MysteryAnswer, faults: Sequence[Fault], world_size: int) -> MysteryAnswer:
    """The answer, if it could be right. Raises RequestError: one line for each thing that cannot be."""
    ends = next((fault.kind for fault in faults if fault.name in ENDING_HINTS), None)
    kinds = ends.key("kind") if ends else None
    causes: Collection[str] = kinds.words if kinds else FAULTS
    wrong = []
    if answer.cause not in causes:
        listed = f"{PROGRAM} help faults {ends.name}" if ends else f"{PROGRAM} help faults"
        hint = nearest_or_list(answer.cause, causes, f"{listed} lists all")
        wrong.append(f"--cause: there is no cause {answer.cause!r}{hint}")
    if answer.phase is not None and answer.phase not in PHASES:
        near = nearest(answer.phase, PHASES)
        hint = f": did you mean {near}?" if near else ""
        wrong.append(f"--phase takes {', '.join(PHASES)}, not {answer.phase!r}{hint}")
    absent = [rank for rank in answer.ranks or () if not 0 <= rank < world_size]
    if absent:
        last = world_size - 1
        wrong.append(f"--rank: there is no rank {absent[0]}, the ranks are 0 to {last}: the nearest is {last}")
    wrong += _flags_of_another(answer, ends)
    if answer.ms is not None and not answer.ms > 0:
        wrong.append(f"--ms takes a number above 0, not {answer.ms:g}")
    if answer.step is not None and answer.step < 0:
        wrong.append(f"--step takes a whole number ≥ 0, not {answer.step}; the nearest is 0")
    if answer.every < 1:
        wrong.append(f"--every takes a whole number ≥ 1, not {answer.every}; the nearest is 1")
    if wrong:
        raise RequestError("\n".join(wrong))
    return answer


def _flags_of_another(answer: MysteryAnswer, fault_kind: FaultKind | None) -> Iterator[str]:
    """Flags that are missing, or belong to the other sort of mystery."""
    if fault_kind is None:
        if answer.ms is None:
            yield "--ms is missing: the milliseconds that it takes in a step that it hits, for example --ms 20"
        if answer.step is not None:
            yield "--step is for a mystery that hangs or dies: drop it; --every says in which steps a cause comes"
        return
    given = {"--ms": answer.ms is not None, "--phase": answer.phase is not None, "--every": answer.every != 1}
    yield from (
        f"{flag} is for a slow training, and this is a {fault_kind.name}: drop it" for flag in given if given[flag]
    )


def grade(fault: Fault, answer: MysteryAnswer, world_size: int) -> Grade:
    if fault.name in ENDING_HINTS:
        hints = {"rank": _ending_rank(fault, answer, world_size), "step": _ending_step(fault, answer)}
        share, ms = ENDING_PART, list[GradePart]()
    else:
        hints = {"ranks": _ranks(fault, answer, world_size), "steps": _every(fault, answer)}
        if fault.kind.key(PHASE_KEY) is not None:
            hints["phase"] = _phase(fault, answer)
        share, ms = PLACE // len(hints), [_ms(fault, answer)]
    placed = [GradePart(name, 0 if hint else share, share, hint) for name, hint in hints.items()]
    return Grade((_cause(fault, answer), *placed, *ms))


def result(faults: Sequence[Fault], answers: Sequence[MysteryAnswer], world_size: int) -> MysteryResult:
    """All answers graded. Each is meant for the fault with which it earns most; of equals, one without an answer."""
    last: list[tuple[int, Grade] | None] = [None] * len(faults)
    for number, answer in enumerate(answers, 1):
        grades = [grade(fault, answer, world_size) for fault in faults]
        best = max(range(len(faults)), key=lambda i: (grades[i].points, last[i] is None))
        last[best] = number, grades[best]
    return MysteryResult(tuple(faults), tuple(last))


def _cause(fault: Fault, answer: MysteryAnswer) -> GradePart:
    if answer.cause == cause_of(fault):
        return GradePart("cause", CAUSE, CAUSE)
    how = fault.kind.mystery
    look = how.hint if how else ENDING_HINTS[fault.name]
    return GradePart("cause", 0, CAUSE, f"it is not {answer.cause}; {look}")


def _ending_rank(fault: Fault, answer: MysteryAnswer, world_size: int) -> str:
    if fault.values["kind"] in UNDECIDED and world_size == 2:
        return ""  # of two ranks that do not fit together, only the program says which one is wrong
    if answer.ranks == (fault.rank,):
        return ""
    if answer.ranks is None or len(answer.ranks) > 1:
        return "--rank: it is one rank, and the others wait for it or fail after it"
    return "--rank: another one; a rank that waits in a collective of the training, or loses a connection, is not it"


def _ending_step(fault: Fault, answer: MysteryAnswer) -> str:
    if answer.step == fault.step:
        return ""
    if answer.step is None:
        return "--step is missing"
    return "--step: look at the step in status, or count in the log"


def _ranks(fault: Fault, answer: MysteryAnswer, world_size: int) -> str:
    every_rank = frozenset(range(world_size))
    true = every_rank if fault.rank is None else frozenset({fault.rank})
    said = every_rank if answer.ranks is None else frozenset(answer.ranks)
    if said == true:
        return ""
    if said > true:
        return "fewer ranks: a rank that waits for another one in a collective is not the cause"
    if said < true:
        return "more ranks: compare the same phase on the others"
    return "other ranks: the cause is on the rank that arrives last in the collectives"


def _every(fault: Fault, answer: MysteryAnswer) -> str:
    true = int(fault.values.get("every", "1"))
    if answer.every == true:
        return ""
    if true == 1:
        return "--every: it affects each step"
    return "--every: count the steps from one long step to the next in the timeline"


def _phase(fault: Fault, answer: MysteryAnswer) -> str:
    if answer.phase == fault.values[PHASE_KEY]:
        return ""
    said = "--phase is missing" if answer.phase is None else f"--phase: not {answer.phase}"
    return f"{said}: the range that encloses the gap in the timeline has the phase's name"


def _ms(fault: Fault, answer: MysteryAnswer) -> GradePart:
    true_ms, every = fault.ns() / 1e6, int(fault.values.get("every", "1"))
    said_ms = answer.ms or 0.0
    off = said_ms / true_ms - 1
    if abs(off) <= CLOSE:
        return GradePart("ms", MS, MS)
    points = MS // 2 if abs(off) <= NEAR else 0
    if every > 1 and abs(said_ms * every / true_ms - 1) <= CLOSE:
        hint = "that is the mean over all steps: --ms is the time in an affected step"
    else:
        hint = f"too {'long' if off > 0 else 'short'}: measure it in one affected step, on one affected rank"
    return GradePart("ms", points, MS, hint)

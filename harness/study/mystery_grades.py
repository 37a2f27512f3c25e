"""An answer to a mystery graded: cause, place and milliseconds, with partial credit and a hint for each wrong part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.common.errors import RequestError, nearest, nearest_or_list
from harness.common.faults import FAULTS, PHASES, Fault
from harness.run.mystery import Answer

# Of 100 points.
CAUSE, PLACE, MS = 40, 30, 30
CLOSE, NEAR = 0.2, 0.5  # of the true time: up to here all points, half of them
PHASE_KEY = "in"


@dataclass(frozen=True)
class Part:
    """What one thing earned. hint: empty if nothing is missing."""

    name: str
    points: int
    of: int
    hint: str = ""


@dataclass(frozen=True)
class Grade:
    """One answer compared with one fault."""

    parts: tuple[Part, ...]

    @property
    def points(self) -> int:
        """Of 100."""
        return sum(part.points for part in self.parts)


@dataclass(frozen=True)
class Result:
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


def checked(answer: Answer, world_size: int) -> Answer:
    """The answer, if it could be right.

    Raises:
        RequestError: one line for each thing that cannot be.
    """
    wrong = []
    if answer.cause not in FAULTS:
        hint = nearest_or_list(answer.cause, FAULTS, "slurm.sh faults lists all")
        wrong.append(f"--cause: there is no cause {answer.cause!r}{hint}")
    if answer.phase is not None and answer.phase not in PHASES:
        near = nearest(answer.phase, PHASES)
        hint = f": did you mean {near}?" if near else ""
        wrong.append(f"--phase takes {', '.join(PHASES)}, not {answer.phase!r}{hint}")
    absent = [rank for rank in answer.ranks or () if not 0 <= rank < world_size]
    if absent:
        last = world_size - 1
        wrong.append(
            f"--rank: there is no rank {absent[0]}, the ranks are 0 to {last}: the nearest is {last}"
        )
    if not answer.ms > 0:
        wrong.append(f"--ms takes a number above 0, not {answer.ms:g}")
    if answer.every < 1:
        wrong.append(f"--every takes a whole number ≥ 1, not {answer.every}; the nearest is 1")
    if wrong:
        raise RequestError("\n".join(wrong))
    return answer


def grade(fault: Fault, answer: Answer, world_size: int) -> Grade:
    """The answer compared with the fault."""
    place = [_ranks(fault, answer, world_size), _every(fault, answer)]
    if fault.kind.key(PHASE_KEY) is not None:
        place.append(_phase(fault, answer))
    share = PLACE // len(place)
    placed = (
        Part(name, 0 if hint else share, share, hint)
        for name, hint in zip(("ranks", "steps", "phase"), place, strict=False)
    )
    return Grade((_cause(fault, answer), *placed, _ms(fault, answer)))


def result(faults: Sequence[Fault], answers: Sequence[Answer], world_size: int) -> Result:
    """All answers graded. Each is meant for the fault with which it earns most; of equals, one without an answer."""
    last: list[tuple[int, Grade] | None] = [None] * len(faults)
    for number, answer in enumerate(answers, 1):
        grades = [grade(fault, answer, world_size) for fault in faults]
        best = max(range(len(faults)), key=lambda i: (grades[i].points, last[i] is None))
        last[best] = number, grades[best]
    return Result(tuple(faults), tuple(last))


def _cause(fault: Fault, answer: Answer) -> Part:
    if answer.cause == fault.name:
        return Part("cause", CAUSE, CAUSE)
    how = fault.kind.mystery
    look = how.hint if how else "compare the phases, ranks and operators with a run without faults"
    return Part("cause", 0, CAUSE, f"it is not {answer.cause}; {look}")


def _ranks(fault: Fault, answer: Answer, world_size: int) -> str:
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


def _every(fault: Fault, answer: Answer) -> str:
    true = int(fault.values.get("every", "1"))
    if answer.every == true:
        return ""
    if true == 1:
        return "--every: it affects each step"
    return "--every: count the steps from one long step to the next in the timeline"


def _phase(fault: Fault, answer: Answer) -> str:
    if answer.phase == fault.values[PHASE_KEY]:
        return ""
    said = "--phase is missing" if answer.phase is None else f"--phase: not {answer.phase}"
    return f"{said}: the range that encloses the gap in the timeline has the phase's name"


def _ms(fault: Fault, answer: Answer) -> Part:
    true_ms, every = fault.ns() / 1e6, int(fault.values.get("every", "1"))
    off = answer.ms / true_ms - 1
    if abs(off) <= CLOSE:
        return Part("ms", MS, MS)
    points = MS // 2 if abs(off) <= NEAR else 0
    if every > 1 and abs(answer.ms * every / true_ms - 1) <= CLOSE:
        hint = "that is the mean over all steps: --ms is the time in an affected step"
    else:
        hint = f"too {'long' if off > 0 else 'short'}: measure it in one affected step, on one affected rank"
    return Part("ms", points, MS, hint)

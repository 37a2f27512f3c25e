"""The tables of diagnosis.md: causes, lost time, false alarms, predictions beside what was measured."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from statistics import mean, median
from typing import NamedTuple

from diagnosis_runs import Case, Found

LARGE = 0.1  # of the step: smaller faults are not counted
STANDING = {"small-buckets", "tiny-kernels", "uneven-stages"}  # no departure from the program's course
CROWDED = {"noisy-neighbour", "pinned-together"}  # a true finding wherever more ranks run than there are cores
CORES = 2

Runs = Sequence[tuple[Case, Found]]
WHAT_IF_OF = {
    "data-stall": "no-data-stall",
    "long-sequences": "rank-like-others",
    "small-buckets": "one-bucket",
    "pause": "no-pause",
    "gc": "no-host-stall-forward",
    "noisy-neighbour": "no-noisy-neighbour",
    "pinned-together": "no-noisy-neighbour",
}


def departures(found: Found) -> list[Found]:
    """The findings that are no steady losses."""
    return [each for each in found["findings"] if not each["standing"]]


def injected_ns(case: Case, found: Found) -> tuple[float, float]:
    """What a step lost, at least and at most. What ranks lose at once counts once; what they lose one after the other
    adds up, as the stages of a pipeline do in part, and processes that are stopped at different moments."""
    lost = found["injected_ns"].values()
    most = max(lost, default=0)
    return most, sum(lost) if case.exercise == 3 or _cause(case) == "pause" else most


def tables(runs: Runs) -> Iterator[str]:
    """All of them."""
    faulty = [(case, found) for case, found in runs if case.fault]
    healthy = [(case, found) for case, found in runs if not case.fault and not case.words]
    large = [(case, found) for case, found in faulty if _share(case, found) >= LARGE]
    yield f"{len(faulty)} faulty runs, {len(large)} with a fault of at least 10 % of the step; {len(healthy)} healthy"
    yield from _confusion(large)
    yield from _lost(large)
    alarms = [(case, told) for case, found in healthy if (told := _told(case, found))]
    yield f"findings in healthy runs: {len(alarms)} of {len(healthy)}"
    yield from (f"  {case.folder}: {each['cause']}" for case, told in alarms for each in told)
    yield from _healthy(healthy)
    yield from _beside(runs)
    worst = max((found["error"] for _, found in runs), default=0.0)
    yield f"largest self-replay error: {worst:.3%} of {len(runs)} runs"


def _told(case: Case, found: Found) -> list[Found]:
    """The departures, without what is true of every run with more ranks than cores."""
    crowd = CROWDED if case.ranks > CORES and _cause(case) not in CROWDED else set()
    return [each for each in departures(found) if each["cause"] not in crowd]


def _cause(case: Case) -> str:
    return (case.fault or "").split(",")[0]


def _first(case: Case, found: Found) -> Found | None:
    """What the report says first; of a fault that is a steady loss: whether it says it at all."""
    told = _told(case, found)
    if _cause(case) in STANDING:
        told += [each for each in found["findings"] if each["cause"] == _cause(case)]
    return next(iter(told), None)


def _share(case: Case, found: Found) -> float:
    """The injected time over the step; where a fault records none, that it is large."""
    lost = injected_ns(case, found)[0]
    return lost / found["step_ns"] if lost else 1.0


def _confusion(large: Runs) -> Iterator[str]:
    said: defaultdict[str, Counter[str]] = defaultdict(Counter)
    wrong, by_exercise = [], Counter[tuple[int, bool]]()
    for case, found in large:
        first = _first(case, found)
        said[_cause(case)][first["cause"] if first else "nothing"] += 1
        right = first is not None and first["cause"] == _cause(case) and _place_is_right(case, first)
        by_exercise[case.exercise, right] += 1
        if not right:
            wrong.append(
                f"  not so: {case.folder}: {first['cause'] if first else 'nothing'}, "
                f"{first['ranks'] if first else ''} {first['phase'] if first else ''}"
            )
    yield f"cause and ranks right: {len(large) - len(wrong)} of {len(large)}; " + ", ".join(
        f"exercise {e}: {by_exercise[e, True]} of {by_exercise[e, True] + by_exercise[e, False]}" for e in (1, 2, 3)
    )
    for cause, counts in sorted(said.items()):
        yield f"| {cause} | " + ", ".join(f"{name} {count}" for name, count in counts.most_common()) + " |"
    yield from wrong


def _place_is_right(case: Case, found: Found) -> bool:
    if _cause(case) in STANDING | CROWDED:  # all ranks share the cores that a fault takes
        return True
    asked = case.injected
    everyone = list(range(case.ranks))
    default = "0" if _cause(case) == "checkpoint" else "all"
    ranks = [int(asked["rank"])] if asked.get("rank", default) != "all" else everyone
    return bool(found["ranks"] == ranks and asked.get("in", found["phase"]) == found["phase"])


def _charged_ns(case: Case, found: Found) -> float:
    """What the report charges to the injected cause, in its largest finding of it."""
    return next((float(each["lost_ns"]) for each in departures(found) if each["cause"] == _cause(case)), 0.0)


def _lost(large: Runs) -> Iterator[str]:
    errors: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
    for case, found in large:
        (least, most), charged = injected_ns(case, found), _charged_ns(case, found)
        if charged and least and _cause(case) not in CROWDED:
            nearest = min(max(charged, least), most)
            errors[_cause(case)].append((charged / nearest - 1, case.folder))
    every = [error for of in errors.values() for error in of]
    if every:
        yield f"lost time within 20 % of what was injected: {_summed(every, 0.2)}"
        yield from (f"  {cause}: {_summed(of, 0.2)}" for cause, of in sorted(errors.items()))
        yield from _worst(every)


class Verified(NamedTuple):
    """A prediction beside runs with the change. same: by what the model's operators took in both; None: they are
    not the same. limit: only one end is predicted."""

    folder: str
    error: float
    same: float | None
    held: bool
    limit: bool


def _beside(runs: Runs) -> Iterator[str]:
    """What-ifs against runs with the change, the means of all turns of a pair."""
    pairs: defaultdict[tuple[object, ...], list[tuple[Case, Found]]] = defaultdict(list)
    for case, found in runs:
        pairs[case.exercise, case.ranks, case.seed, case.pair].append((case, found))
    checked: defaultdict[str, list[Verified]] = defaultdict(list)
    for pair in pairs.values():
        case = pair[0][0]
        arms = [[f for c, f in pair if (c.fault, c.words) == arm] for arm in _arms(pair)]
        if len(arms) == 2 and len(arms[0]) == len(arms[1]) and (told := _verified(case, *arms)):
            checked[what_if_of(case)].append(told)
    every = [told for of in checked.values() for told in of]
    for name, of in [*sorted(checked.items()), ("all", every)]:
        predicted = [told for told in of if not told.limit]
        best = [(told.error if told.same is None else told.same, told.folder) for told in predicted]
        whole = [(told.error, told.folder) for told in predicted]
        yield f"what-if {name}: interval held in {sum(told.held for told in of)} of {len(of)}" + (
            f"; within 10 %: {_summed(best, 0.1)}, mean {mean(e for e, _ in best):+.1%}; "
            f"not scaled by operators: {_summed(whole, 0.1)}"
            if predicted
            else f"; a bound, or at most so long: {', '.join(f'{told.error:+.0%}' for told in of)}"
        )
        yield from _worst(best)


def _arms(pair: Runs) -> Sequence[tuple[str | None, tuple[str, ...]]]:
    """The two experiments of a pair, in the order in which they were made first."""
    return list(dict.fromkeys((case.fault, case.words) for case, _ in pair))


def _verified(case: Case, before: Sequence[Found], after: Sequence[Found]) -> Verified | None:
    """As harness/explain/predictions.py does it, means of all turns. None: no such what-if, or too small a fault."""
    every = [found["what_ifs"].get(what_if_of(case)) for found in before]
    predicted = [told for told in every if told is not None]
    if len(predicted) < len(every) or (case.fault and mean(_share(case, found) for found in before) < LARGE):
        return None
    told = predicted[0]
    measured = mean(found["step_ns"] for found in after) / told["per"]
    work = [mean(found["model_work_ns"] for found in arm) for arm in (before, after)]
    slower = work[1] / told["per"] / work[0] if told["same_work"] else 1
    low = mean(each["low_ns"] or 0 for each in predicted) * slower
    high = mean(each["high_ns"] or math.inf for each in predicted) * slower
    error = mean(each["step_ns"] for each in predicted) / measured
    return Verified(
        case.folder,
        error - 1,
        error * slower - 1 if told["same_work"] else None,
        low <= measured <= high,
        told["bound"] or told["at_most"],
    )


def _healthy(healthy: Runs) -> Iterator[str]:
    """How far two healthy runs of one exercise differ, made one after the other."""
    last: dict[tuple[int, int], float] = {}
    differences = []
    for case, found in healthy:
        key = case.exercise, case.ranks
        if key in last:
            differences.append((found["step_ns"] / last[key] - 1, case.folder))
        last[key] = found["step_ns"]
    if differences:
        yield f"a healthy run beside the one of its exercise before it: within 10 %: {_summed(differences, 0.1)}"


def what_if_of(case: Case) -> str:
    """The what-if that the second run of its pair makes true; empty: none does."""
    if not case.fault:
        return case.pair.split(".")[0]
    if _cause(case) == "host-stall":
        return f"no-host-stall-{case.injected['in']}"
    if _cause(case) == "extra-compute":
        return "no-extra-compute" if "every" in case.injected else "rank-like-others"
    return WHAT_IF_OF.get(_cause(case), "")


def _summed(errors: Sequence[tuple[float, str]], limit: float) -> str:
    within = sum(abs(error) <= limit for error, _ in errors)
    return f"{within} of {len(errors)}, median error {median(abs(error) for error, _ in errors):.1%}"


def _worst(errors: Sequence[tuple[float, str]]) -> Iterator[str]:
    ordered = sorted(errors, key=lambda of: -abs(of[0]))
    yield from (f"  {error:+.0%}: {folder}" for error, folder in ordered[:4])

"""Faults as they are asked for: read from words, refused if they cannot work, and what they record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.common.errors import RequestError, nearest, nearest_or_list
from harness.common.faults.declared import FAULTS, PHASES
from harness.common.faults.kinds import CPU_AND_GPU, Exercise, Fault, FaultKey, FaultKind, InMystery, Setup
from harness.common.faults.mystery import hidden_folder, is_mystery
from harness.common.paths import COMMAND
from harness.common.run_folder.run_files import INJECTED

__all__ = [
    "CPU_AND_GPU",
    "FAULTS",
    "PHASES",
    "Exercise",
    "Fault",
    "FaultKey",
    "FaultKind",
    "FaultLine",
    "InMystery",
    "Setup",
    "faults_file",
    "layers_at_the_end",
    "misfits",
    "parse_fault",
    "wrong_device",
]  # fmt: skip


def parse_fault(text: str) -> Fault:
    """`NAME[,key=value…]` as a fault.

    Raises RequestError: there is no such fault or key, a value is not allowed, or a key without default is missing.
    """
    name, *words = text.split(",")
    kind = FAULTS.get(name)
    if kind is None:
        hint = nearest_or_list(name, FAULTS, f"{COMMAND} help faults lists all")
        raise RequestError(f"there is no fault {name!r}{hint}")
    try:
        given = _given(kind, words)
    except RequestError as error:
        raise RequestError(f"{text}: {error}") from None
    return Fault(kind, {key.name: given.get(key.name, key.default or "") for key in kind.keys})


def _given(kind: FaultKind, words: Iterable[str]) -> dict[str, str]:
    """Key → the value that was given for it."""
    given: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        key = kind.key(name)
        if key is None:
            raise RequestError(f"{kind.name} has no key {name!r}{_nearest_key(kind, name)}")
        if not equals or name in given:
            raise RequestError(f"{name} is given twice" if equals else f"give {name} a value: {name}=…")
        given[name] = key.read(value)
    missing = [key for key in kind.keys if key.default is None and key.name not in given]
    if missing:
        raise RequestError(f"{missing[0].name} is missing ({missing[0].meaning}): {kind.usage}")
    return given


def _nearest_key(kind: FaultKind, name: str) -> str:
    names = [key.name for key in kind.keys]
    near = nearest(name, names)
    if near:
        return f": did you mean {near}?"
    return f": its keys are {', '.join(names)}" if names else ": it takes none"


def misfits(faults: Iterable[Fault], setup: Setup) -> Iterator[str]:
    """Why faults cannot work together in that training, one sentence each. The device is asked by `wrong_device`."""
    asked = list(faults)
    for fault in asked:
        if setup.exercise is not None and setup.exercise not in fault.kind.exercises:
            yield _wrong_exercise(fault, setup.exercise)
            continue
        if setup.steps is not None and fault.every > setup.steps:
            yield (
                f"--fault {fault}: it would never happen in a training of {setup.steps} steps: the nearest is "
                f"every={setup.steps}"
            )
        for what, number, count in (("rank", fault.rank, setup.world_size), ("step", fault.step, setup.steps)):
            if number is not None and count is not None and number >= count:
                there = f"the {what}s are 0 to {count - 1}: the nearest is {what}={count - 1}"
                yield f"--fault {fault}: there is no {what} {number}, {there}"
        yield from (f"--fault {fault}: {need.sentence}" for need in fault.needs if not need.holds(setup))
    yield from _repeated(asked)


def _wrong_exercise(fault: Fault, exercise: Exercise) -> str:
    homes = [each for each in fault.kind.exercises if each != "own"]
    *most, last = map(str, homes)
    works = f"--fault {fault.name} works in exercise {' and '.join([*([', '.join(most)] if most else []), last])}"
    if exercise == "own":
        others = ", ".join(name for name, kind in FAULTS.items() if exercise in kind.exercises)
        return f"{works}, whose script takes part in it: in your own training use one of {others}"
    return f"{works}, not in exercise {exercise}: drop it or use -e {homes[0]}"


def _repeated(faults: Iterable[Fault]) -> Iterator[str]:
    """A fault may come twice with other ranks, steps or phases; one without a rank changes the whole training."""
    keys = Counter(str(fault) if fault.kind.key("rank") else fault.name for fault in faults)
    yield from (f"--fault {text} is given {times} times: drop one" for text, times in keys.items() if times > 1)


def wrong_device(faults: Iterable[Fault], device_type: str) -> Iterator[str]:
    """A sentence for each fault that cannot work on `device_type` (cpu or cuda)."""
    for fault in faults:
        if device_type not in fault.kind.devices:
            others = [name for name, kind in FAULTS.items() if device_type in kind.devices]
            here = {"cpu": "the CPU", "cuda": "GPUs"}[device_type]
            yield (
                f"--fault {fault.name} has no effect on {here}, where this training runs: drop it; those that work "
                f"there are {', '.join(others)}"
            )


def layers_at_the_end(fault: Fault, layers: int, stages: int) -> int:
    """With uneven-stages, the layers of the stage that has more; `layers` of the whole model divide into `stages`.

    Raises RequestError: the other stages would have no layer left.
    """
    each, given = layers // stages, fault.count("layers")
    if given >= each:
        raise RequestError(
            f"--fault {fault}: each of the {stages} stages has {each} of the {layers} layers and must keep one: "
            + (f"the nearest is layers={each - 1}" if each > 1 else "use a deeper model, or fewer stages")
        )
    return each + given * (stages - 1)


@dataclass(frozen=True)
class FaultLine:
    """One line of faults/rank<R>.jsonl: what a fault took from one rank; `FaultKind.recorded` says what.

    step: the step that it took it from, or after which it did; -1: before the first step. unix_ns: when it began.
    """

    step: int
    fault: str
    rank: int
    ns: int
    unix_ns: int


def faults_file(run: Path, rank_or_star: int | str) -> Path:
    """Where a rank writes what was injected; with "*" as the rank, the pattern of all ranks' files."""
    file = INJECTED.path(run, rank_or_star)
    return hidden_folder(run) / file.name if is_mystery(run) else file

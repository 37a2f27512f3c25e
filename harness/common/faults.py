"""The faults that `--fault NAME[,key=value…]` injects into a training: each declared once, with what it needs.

The command line, its refusals, the help, `slurm.sh faults`, docs/faults.md and the training scripts derive from
`FAULTS`. The injector of a fault is the module of its name in exercises/utils/faults. Knows no framework.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from harness.common.errors import RequestError, nearest

CPU_AND_GPU = ("cpu", "cuda")
TRAININGS = (1, 2, 3)
LARGEST_RANK = 640_000


@dataclass(frozen=True)
class Key:
    """What a fault takes: a number between `least` and `most`, or one of `words`.

    default: as it would be typed; None: it must be given. whole: the number has no fraction.
    """

    name: str
    meaning: str
    default: str | None = None
    least: float = 0
    most: float = 0
    whole: bool = True
    words: tuple[str, ...] = ()

    @property
    def takes(self) -> str:
        """What may stand behind `=`, in words."""
        noun = "a whole number" if self.whole else "a number"
        number = [f"{noun} ≥ {self.least:g} and ≤ {self.most:.0f}"] if self.most else []
        return " or ".join([*number, *self.words])

    @property
    def shown(self) -> str:
        """The key with its default, as a usage line has it."""
        return f",{self.name}=…" if self.default is None else f"[,{self.name}={self.default}]"

    def read(self, word: str) -> str:
        """`word` as it is kept: numbers without zeros that say nothing.

        Raises RequestError: the key does not take it; the sentence has the nearest value that it takes.
        """
        if word in self.words:
            return word
        number = float(word) if re.fullmatch(r"-?[0-9]*\.?[0-9]+", word) else None
        allowed = number is not None and not (self.whole and "." in word)
        if self.most and number is not None and allowed and self.least <= number <= self.most:
            return f"{number:.12g}"
        raise RequestError(f"{self.name} takes {self.takes}, not {word!r}{self._hint(word, number)}")

    def _hint(self, word: str, number: float | None) -> str:
        near = nearest(word, self.words)
        if near:
            return f": did you mean {near}?"
        if number is None or not self.most:
            return ""
        closest = min(max(number, self.least), self.most)
        return f"; the nearest is {round(closest) if self.whole else closest:.12g}"


class Setup(NamedTuple):
    """The training that a fault is asked for; None: not known yet. stages: of the pipeline."""

    exercise: int | None
    world_size: int | None = None
    mixed_precision: bool | None = None
    micro_batch_size: int | None = None
    stages: int = 1


class Need(NamedTuple):
    """What a fault needs to have an effect, and the sentence where it is not so."""

    holds: Callable[[Setup], bool]
    sentence: str


@dataclass(frozen=True)
class FaultKind:
    """A fault as it is declared.

    meaning: what happens, for students. recorded: what its lines in faults/rank<R>.jsonl count; empty: there are none.
    """

    name: str
    meaning: str
    keys: tuple[Key, ...] = ()
    recorded: str = ""
    exercises: tuple[int, ...] = TRAININGS
    devices: tuple[str, ...] = CPU_AND_GPU
    needs: tuple[Need, ...] = ()

    @property
    def usage(self) -> str:
        """As it is typed: keys in brackets may be left out."""
        return "".join([self.name, *(key.shown for key in self.keys)])

    def key(self, name: str) -> Key | None:
        """The key of that name."""
        return next((key for key in self.keys if key.name == name), None)


@dataclass(frozen=True)
class Fault:
    """A fault as it was asked for. values: of every key, as typed or by default."""

    kind: FaultKind
    values: Mapping[str, str]

    @property
    def name(self) -> str:
        return self.kind.name

    def __str__(self) -> str:
        """The shortest text that asks for it."""
        given = (key.name for key in self.kind.keys if self.values[key.name] != key.default)
        return ",".join([self.name, *(f"{name}={self.values[name]}" for name in given)])

    def count(self, key: str) -> int:
        """The value of a key that takes a whole number."""
        return int(self.values[key])

    def ns(self, key: str = "ms") -> int:
        """The value of a key in milliseconds, in nanoseconds."""
        return round(float(self.values[key]) * 1e6)

    @property
    def rank(self) -> int | None:
        """The rank that it happens to; None: to all."""
        word = self.values.get("rank", "all")
        return None if word == "all" else int(word)

    def concerns(self, rank: int) -> bool:
        """Whether it happens to `rank`."""
        return self.rank in (None, rank)

    def due(self, step: int) -> bool:
        """Whether it happens in `step` (the first is 0): with every=K in the K-th, the 2·K-th, …"""
        return (step + 1) % int(self.values.get("every", "1")) == 0


def _ms(meaning: str) -> Key:
    return Key("ms", meaning, least=0.001, most=60_000, whole=False)


def _rank(default: str | None = "all") -> Key:
    return Key("rank", "the rank that it happens to", default, most=LARGEST_RANK, words=("all",))


EVERY = Key("every", "K: in the K-th step, the 2·K-th, …", "1", least=1, most=1_000_000)
PHASES = ("forward", "backward", "optimizer")

_ALL = (
    FaultKind(
        "data-stall",
        "the step's first batch comes late: the data loading sleeps",
        (_ms("how much later it comes"), _rank(), EVERY),
        "the sleep",
    ),
    FaultKind(
        "host-stall",
        "the host thread stands still inside a phase: it launches nothing",
        (
            _ms("how long it stands still"),
            Key("in", "the phase; in steps without it nothing happens", "forward", words=PHASES),
            _rank(),
            EVERY,
        ),
        "the sleep",
    ),
    FaultKind(
        "extra-compute",
        "the step's first forward does additional matrix products",
        (_ms("how long they compute; on a GPU about"), _rank(), EVERY),
        "the products, on the device",
    ),
    FaultKind(
        "pause",
        "the whole process is stopped, at another moment of each step (SIGSTOP … SIGCONT)",
        (_ms("how long it is stopped"), _rank(), EVERY),
        "the time between the two signals",
    ),
)
FAULTS: dict[str, FaultKind] = {kind.name: kind for kind in _ALL}


def parse_fault(text: str) -> Fault:
    """`NAME[,key=value…]` as a fault.

    Raises:
        RequestError: there is no such fault or key, a value is not allowed, or a key without default is missing.
    """
    name, *words = text.split(",")
    kind = FAULTS.get(name)
    if kind is None:
        near = nearest(name, FAULTS)
        hint = f": did you mean {near}?" if near else f": there are {', '.join(FAULTS)}"
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
        if setup.world_size is not None and fault.rank is not None and fault.rank >= setup.world_size:
            last = setup.world_size - 1
            yield (
                f"--fault {fault}: there is no rank {fault.rank}, the ranks are 0 to {last}: the nearest is rank={last}"
            )
        yield from (f"--fault {fault}: {need.sentence}" for need in fault.kind.needs if not need.holds(setup))
    yield from _repeated(asked)


def _wrong_exercise(fault: Fault, exercise: int) -> str:
    homes = fault.kind.exercises
    return (
        f"--fault {fault.name} works in exercise {' and '.join(map(str, homes))}, not in exercise {exercise}: "
        f"drop it or use -e {homes[0]}"
    )


def _repeated(faults: Iterable[Fault]) -> Iterator[str]:
    """A fault may come twice with other ranks, steps or phases; one without a rank changes the whole training."""
    keys = Counter(str(fault) if fault.kind.key("rank") else fault.name for fault in faults)
    yield from (
        f"--fault {text} is given {times} times: drop one" for text, times in keys.items() if times > 1
    )


def wrong_device(faults: Iterable[Fault], device: str) -> Iterator[str]:
    """A sentence for each fault that cannot work on `device` (cpu or cuda)."""
    for fault in faults:
        if device not in fault.kind.devices:
            others = [name for name, kind in FAULTS.items() if device in kind.devices]
            here = {"cpu": "the CPU", "cuda": "GPUs"}[device]
            yield (
                f"--fault {fault.name} has no effect on {here}, where this training runs: drop it; those that work "
                f"there are {', '.join(others)}"
            )


@dataclass(frozen=True)
class FaultLine:
    """One line of faults/rank<R>.jsonl: what a fault took from one step of one rank; `FaultKind.recorded` says what.

    unix_ns: when it began.
    """

    step: int
    fault: str
    rank: int
    ns: int
    unix_ns: int


def faults_file(run: Path, rank: int | str) -> Path:
    """Where a rank writes what was injected; with "*" as the rank, the pattern of all ranks' files."""
    return run / "faults" / f"rank{rank}.jsonl"

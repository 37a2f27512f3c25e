"""What a fault is: its keys, what it needs, and one that was asked for. Knows no fault by name, and no framework."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from harness.common.errors import RequestError, nearest

CPU_AND_GPU = ("cpu", "cuda")
Exercise = int | Literal["own"]
"""The number of an exercise, or a training of the user's own."""
TRAININGS: tuple[Exercise, ...] = (1, 2, 3)
ALSO_OWN: tuple[Exercise, ...] = (*TRAININGS, "own")
"""Of a fault that needs nothing from the training's script."""
LARGEST_RANK = 640_000
ONCE: Literal["job"] = "job"
"""In `FaultKind.per`: it acts once in a job."""


@dataclass(frozen=True)
class FaultKey:
    """What a fault takes: a number between `least` and `most`, or one of `words`.

    default: as it would be typed; None: it must be given. whole: the number has no fraction. explained: words with what
    happens.
    """

    name: str
    meaning: str
    default: str | None = None
    least: float = 0
    most: float = 0
    whole: bool = True
    words: tuple[str, ...] = ()
    explained: tuple[tuple[str, str], ...] = ()

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
        """`word` as it is stored: numbers without redundant zeros.

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
    """The training that a fault is asked for; None: not known yet.

    replicas: of the model, between which gradients travel; buckets: they travel in buckets. stages: of the
    pipeline; virtual_stages: per rank. checkpoints: whether the training writes any; one of the user's own may.
    """

    exercise: Exercise | None
    world_size: int | None = None
    micro_batch_size: int | None = None
    steps: int | None = None
    replicas: int | None = None
    buckets: bool = True
    stages: int = 1
    virtual_stages: int = 1
    checkpoints: bool = True


class FaultCondition(NamedTuple):
    """A condition for a fault to have an effect, and the sentence if it does not hold.

    kinds: the values of the fault's key `kind` that need it; empty: it is always needed.
    """

    holds: Callable[[Setup], bool]
    sentence: str
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True)
class InMystery:
    """How a mystery hides a fault whose key `ms` is its size.

    least, most: its time in a mean step, as a share of a usual step. one_rank: it is visible only if one of several
    ranks has it.
    """

    least: float = 0.25
    most: float = 0.5
    one_rank: bool = False


@dataclass(frozen=True)
class FaultKind:
    """A fault as it is declared.

    meaning: what happens, for students. recorded: what its lines in faults/rank<R>.jsonl count; empty: there are none.
    per: of what there is one such line: a step, a file, or the job.
    mystery: None if it is never drawn for one. together: the values of its key `kind` with which every rank acts, and
    the fault's rank in another way. ends: it ends a training, stops its progress or changes its result: a report of
    lost time does not name it.
    """

    name: str
    meaning: str
    keys: tuple[FaultKey, ...] = ()
    recorded: str = ""
    exercises: tuple[Exercise, ...] = TRAININGS
    devices: tuple[str, ...] = CPU_AND_GPU
    needs: tuple[FaultCondition, ...] = ()
    mystery: InMystery | None = None
    together: tuple[str, ...] = ()
    ends: bool = False
    per: Literal["step", "file", "job"] = "step"

    @property
    def usage(self) -> str:
        """As it is typed: keys in brackets may be left out."""
        return "".join([self.name, *(key.shown for key in self.keys)])

    def key(self, name: str) -> FaultKey | None:
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

    def ns(self) -> int:
        """The value of its key `s` or `ms`, in nanoseconds."""
        return round(float(self.values["s"]) * 1e9) if "s" in self.values else round(float(self.values["ms"]) * 1e6)

    @property
    def every(self) -> int:
        """K: it happens in the K-th step, the 2·K-th, …"""
        return int(self.values.get("every", "1"))

    @property
    def rank(self) -> int | None:
        """The rank that it happens to; None: to all."""
        word = self.values.get("rank", "all")
        return None if word == "all" else int(word)

    @property
    def step(self) -> int | None:
        """The step in which it happens, or from which on; None: it recurs."""
        return int(self.values["step"]) if "step" in self.values else None

    @property
    def needs(self) -> Iterator[FaultCondition]:
        """What it needs, as it was asked for."""
        return (need for need in self.kind.needs if not need.kinds or self.values.get("kind") in need.kinds)

    def concerns(self, rank: int) -> bool:
        return self.rank in (None, rank)

    def starts_on(self, rank: int) -> bool:
        """Whether `rank` takes part in it: it has the fault, or all ranks act together."""
        return self.concerns(rank) or self.values.get("kind") in self.kind.together

    def due(self, step: int) -> bool:
        """Whether it happens in `step` (the first is 0): with every=K in the K-th, the 2·K-th, …"""
        if self.step is not None:
            return step == self.step
        return (step + 1) % self.every == 0

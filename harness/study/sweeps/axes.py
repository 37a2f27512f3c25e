"""A sweep: its file, its axes of options and of a script's own flags, and its settings. Knows no run."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from harness.common.errors import RequestError, nearest
from harness.common.paths import COMMAND, CONFIGS, expanded
from harness.experiment.exercises import EXERCISES, Experiment, OwnTraining, listing
from harness.experiment.options import options_of
from harness.experiment.own import HOW_TO_TYPE
from harness.experiment.parse import values_of
from harness.experiment.yaml_file import read_yaml
from harness.run import why_invalid
from harness.site.site import Site

EXAMPLE = 'command: "train.py --lr 1e-4"'
SWEEPS = CONFIGS / "sweeps"
OWN = "own"  # of base.exercise: a training of the user's own
DEVICES = ("nodes", "gpus_per_node")  # axes of a training on more and more devices
PLACED = ("command", "start_in")  # of a training of the user's own: no flag sets them
SITE_FIELDS = [option.field for option in options_of(Site)]


def is_script_flag(cls: type[Experiment], name: str) -> bool:
    """Whether an axis is a flag of the user's script: `--lr`, or `optim.lr=` where the value is joined."""
    return cls is OwnTraining and (name.startswith("-") or name.endswith("="))


def command_words(text: object) -> tuple[str, ...]:
    """The command of a sweep's base: a text, or a list of words. Raises RequestError: it is none."""
    try:
        words = shlex.split(text) if isinstance(text, str) else text
    except ValueError as error:
        raise RequestError(f"base.command {text!r} cannot be split into words ({error})") from None
    if not isinstance(words, list | tuple) or not words or not all(isinstance(word, str) for word in words):
        raise RequestError(f"base.command is {text!r}: give the words after -- of {HOW_TO_TYPE}, as in {EXAMPLE}")
    return tuple(words)


def with_flags(command: Sequence[str], settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The command with these flags, in the place of those that it has, else at its end. true: the flag alone; false and
    null: without the flag.

    >>> with_flags(["train.py", "--lr", "1", "--fused"], {"--lr": 2, "--fused": False, "--batch": 8})
    ('train.py', '--lr', '2', '--batch', '8')
    """
    words = list(command)
    for name, value in settings.items():
        first = last = next((n for n, word in enumerate(words) if n and _is_flag(word, name)), len(words))
        if first < len(words):
            has_value = words[first] == name and not isinstance(value, bool) and _is_value(words[first + 1 : first + 2])
            last = first + 1 + has_value
        words[first:last] = _written(name, value)
    return tuple(words)


def _is_flag(word: str, name: str) -> bool:
    return word.startswith(name) if name.endswith("=") else word == name or word.startswith(f"{name}=")


def _is_value(following: list[str]) -> bool:
    return bool(following) and re.match(r"[^-]|-[0-9.]|$", following[0]) is not None


def _written(name: str, value: Any) -> list[str]:
    if value is None or value is False:
        return []
    if name.endswith("="):
        return [f"{name}{str(value).lower() if value is True else value}"]
    return [name] if value is True else [name, str(value)]


Metric = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
Values = Annotated[list[Any], Field(min_length=1)]


class Sweep(BaseModel):
    """One file. `base`: the exercise, options by their field names, and the site's own options (time, partition …).
    With `exercise: own` it also has `command`, the words after `--`, and axes may be flags of the script, as `--lr`.

    `matrix`: every combination of these values. `zip`: lists of one length, taken together. `on_cpu`: other values of
    some of these axes for a site without GPUs. `exclude`: combinations to leave out; `skip_invalid`: also combinations
    that the rules refuse. `show`: the measured values of the table; in the first, each point is compared with the first
    point. If the devices are in `zip` and nothing is in `matrix`, the table has speed-up and efficiency instead.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    name: str
    title: str = ""
    base: dict[str, Any]
    matrix: dict[str, Values] = {}
    zip: dict[str, Values] = {}
    on_cpu: dict[str, Values] = {}
    exclude: list[dict[str, Any]] = []
    skip_invalid: bool = False
    repeats: int = Field(default=1, ge=1, le=1000)
    show: list[Metric] = Field(default=["step_ns", "tokens_per_s"], min_length=1)

    @property
    def axes(self) -> list[str]:
        """The options that vary, in the file's order."""
        return [*self.matrix, *self.zip]

    @property
    def scales(self) -> bool:
        """Whether its points are one training on more and more devices."""
        return not self.matrix and any(axis in self.zip for axis in DEVICES)

    def here(self, cpu: bool) -> Sweep:
        """The sweep with the values for this kind of machine."""
        if not cpu or not self.on_cpu:
            return self
        parts = {"matrix": self.matrix, "zip": self.zip}
        taken = {part: {name: self.on_cpu.get(name, v) for name, v in axes.items()} for part, axes in parts.items()}
        return self.model_copy(update=taken)


def sweep_names() -> list[str]:
    """The sweeps that come with the harness."""
    return sorted(path.stem for path in SWEEPS.glob("*.yaml"))


def shipped_sweep(name: str) -> Path | None:
    """The file of a sweep that comes with the harness."""
    return SWEEPS / f"{name}.yaml" if name in sweep_names() else None


def is_path(word: str) -> bool:
    """Whether the word on the command line means a file."""
    return "/" in word or word.endswith((".yaml", ".yml"))


def read_sweep(path_or_word: Path | str) -> Sweep:
    """A sweep from its file.
    Raises RequestError: it cannot be read or is not one."""
    path = expanded(path_or_word) if isinstance(path_or_word, str) else path_or_word
    data = read_yaml(path, "sweep file")
    if not isinstance(data, dict):
        raise RequestError(f"sweep file {path}: it must be a mapping of fields: {', '.join(Sweep.model_fields)}")
    try:
        return Sweep.model_validate(data)
    except ValidationError as error:
        raise RequestError(f"sweep file {path}: {why_invalid(error)}") from None


Settings = dict[str, Any]
"""Option → its own value."""


class VaryingOptions(NamedTuple):
    """What varies, as the options' own values."""

    matrix: dict[str, list[Any]]
    zip: dict[str, list[Any]]
    exclude: list[Settings]

    def combinations(self) -> Iterator[Settings]:
        """Every combination, the last axis fastest; `zip` is one axis."""
        axes = [[{name: value} for value in values] for name, values in self.matrix.items()]
        if self.zip:
            rows = zip(*self.zip.values(), strict=True)
            axes.append([dict(zip(self.zip, row, strict=True)) for row in rows])
        for parts in itertools.product(*axes):
            yield {name: value for part in parts for name, value in part.items()}


def exercise_of(sweep: Sweep) -> type[Experiment]:
    """The class that the sweep's base names. Raises RequestError: it names none."""
    number = sweep.base.get("exercise")
    if number == OWN:
        return OwnTraining
    if isinstance(number, int) and number in EXERCISES:
        return EXERCISES[number]
    what = "is missing" if number is None else f"is {number!r}"
    raise RequestError(f"sweep {sweep.name}: base.exercise {what}: the exercises are {listing()}, and {OWN}")


def fields_of(cls: type[Experiment]) -> list[str]:
    """The options that a sweep can set."""
    return [option.field for option in options_of(cls) if option.field != "exercise"]


def varying(sweep: Sweep, cls: type[Experiment]) -> tuple[VaryingOptions, list[str]]:
    """What varies, and a sentence for everything wrong with the file's names and values."""
    values = _Values(cls)
    found = VaryingOptions(
        {name: [values.own("matrix", name, v) for v in listed] for name, listed in sweep.matrix.items()},
        {name: [values.own("zip", name, v) for v in listed] for name, listed in sweep.zip.items()},
        [{name: values.own("exclude", name, v) for name, v in rule.items()} for rule in sweep.exclude],
    )
    base = {name: value for name, value in sweep.base.items() if name in fields_of(cls)}
    wrong = [f"base: {line}" for line in values_of(cls, base)[1]]
    if cls is OwnTraining:
        try:
            command_words(sweep.base.get("command"))
        except RequestError as error:
            wrong.append(str(error))
    return found, [*_wrong_names(sweep, cls), *wrong, *values.wrong, *_twice(found)]


def _twice(options: VaryingOptions) -> Iterator[str]:
    """The values that would give one point twice."""
    rows = [dict(zip(options.zip, row, strict=False)) for row in zip(*options.zip.values(), strict=False)]
    axes = [*([{name: value} for value in values] for name, values in options.matrix.items()), rows]
    for settings in (each for axis in axes for i, each in enumerate(axis) if each in axis[:i]):
        yield ", ".join(f"{name} {value}" for name, value in settings.items()) + " is given twice"


class _Values:
    """Values as the options of an exercise take them; `wrong` gets a sentence for each that they do not take."""

    def __init__(self, cls: type[Experiment]) -> None:
        self.cls, self.fields, self.wrong = cls, fields_of(cls), list[str]()

    def own(self, part: str, name: str, value: Any) -> Any:
        if is_script_flag(self.cls, name):
            if value is not None and not isinstance(value, str | int | float):
                self.wrong.append(f"{part}: {name}: got {value!r}, takes a text, a number, true or false")
            return value
        if name not in self.fields:
            return value  # its name is refused
        values, errors = values_of(self.cls, {name: value})
        self.wrong += [f"{part}: {line}" for line in errors]
        return values.get(name, value)


def _wrong_names(sweep: Sweep, cls: type[Experiment]) -> Iterator[str]:
    own = fields_of(cls)
    for name in sweep.base:
        if name not in (*own, *SITE_FIELDS, "exercise", *(PLACED if cls is OwnTraining else ())):
            yield f"base: {_no_option(cls, name, [*own, *SITE_FIELDS])}"
    for part, names in (("matrix", sweep.matrix), ("zip", sweep.zip)):
        unknown = [name for name in names if name not in own and not is_script_flag(cls, name)]
        yield from (f"{part}: {_no_option(cls, name, own)}" for name in unknown)
    yield from (f"{name} is in matrix and in zip: drop one" for name in sweep.matrix if name in sweep.zip)
    yield from (f"{name} is in base and varies: drop one" for name in sweep.axes if name in sweep.base)
    lengths = {name: len(values) for name, values in sweep.zip.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} {length}" for name, length in lengths.items())
        yield f"zip: its lists must have the same length, and have not ({told})"
    for part, rules in (("on_cpu", [sweep.on_cpu]), ("exclude", sweep.exclude)):
        for name in dict.fromkeys(name for rule in rules for name in rule if name not in sweep.axes):
            near = nearest(name, sweep.axes)
            yield f"{part}: {name} does not vary" + (f": did you mean {near}?" if near else "")


def _no_option(cls: type[Experiment], name: str, known: Sequence[str]) -> str:
    number = cls.model_fields["exercise"].default
    if name in SITE_FIELDS:
        return f"{name} belongs to the site and is the same for all points: move it to base"
    near = nearest(name.lstrip("-").replace("-", "_"), known)
    hint = f": did you mean {near}?" if near else f" ({COMMAND} help launch --all; a field has _ where its flag has -)"
    if cls is OwnTraining:
        return f"your own training has no option {name}{hint}; a flag of the script begins with a dash, or ends with ="
    return f"exercise {number} ({cls.title}) has no option {name}{hint}"

"""What varies in a sweep, checked against the options of its exercise: every error at once. Knows no run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from harness.common.errors import RequestError, nearest
from harness.experiment.exercises import EXERCISES, Experiment, Own, listing
from harness.experiment.options import options_of
from harness.experiment.parse import values_of
from harness.site.site import Site
from harness.study.sweeps.request import OWN, Sweep
from harness.study.sweeps.script_flags import command_words, is_script_flag, wrong_values

Settings = dict[str, Any]
"""Option → its own value."""

PLACED = ("command", "start_in")  # of a training of the user's own: no flag sets them
SITE_FIELDS = [option.field for option in options_of(Site)]


class Varying(NamedTuple):
    """What varies, as the options' own values."""

    matrix: dict[str, list[Any]]
    zip: dict[str, list[Any]]
    exclude: list[Settings]
    seeds: list[int] | None

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
        return Own
    if isinstance(number, int) and number in EXERCISES:
        return EXERCISES[number]
    what = "is missing" if number is None else f"is {number!r}"
    raise RequestError(f"sweep {sweep.name}: base.exercise {what}: there are {listing()}, and {OWN}")


def fields_of(cls: type[Experiment]) -> list[str]:
    """The options that a sweep can set."""
    return [option.field for option in options_of(cls) if option.field != "exercise"]


def varying(sweep: Sweep, cls: type[Experiment]) -> tuple[Varying, list[str]]:
    """What varies, and a sentence for everything wrong with the file's names and values."""
    values = _Values(cls)
    found = Varying(
        {name: [values.own("matrix", name, v) for v in listed] for name, listed in sweep.matrix.items()},
        {name: [values.own("zip", name, v) for v in listed] for name, listed in sweep.zip.items()},
        [{name: values.own("exclude", name, v) for name, v in rule.items()} for rule in sweep.exclude],
        _seeds(sweep, values),
    )
    base = {name: value for name, value in sweep.base.items() if name in fields_of(cls)}
    wrong = [f"base: {line}" for line in values_of(cls, base)[1]]
    if cls is Own:
        wrong += _wrong_command(sweep)
    return found, [*_wrong_names(sweep, cls), *wrong, *values.wrong, *_twice(found)]


def _wrong_command(sweep: Sweep) -> Iterator[str]:
    try:
        command_words(sweep.base.get("command"))
    except RequestError as error:
        yield str(error)


def _twice(found: Varying) -> Iterator[str]:
    """The values that would give one point twice."""
    rows = [dict(zip(found.zip, row, strict=False)) for row in zip(*found.zip.values(), strict=False)]
    axes = [*([{name: value} for value in values] for name, values in found.matrix.items()), rows]
    for settings in (each for axis in axes for i, each in enumerate(axis) if each in axis[:i]):
        yield ", ".join(f"{name} {value}" for name, value in settings.items()) + " is given twice"


class _Values:
    """Values as the options of an exercise take them; `wrong` gets a sentence for each that they do not take."""

    def __init__(self, cls: type[Experiment]) -> None:
        self.cls, self.fields, self.wrong = cls, fields_of(cls), list[str]()

    def own(self, part: str, name: str, value: Any) -> Any:
        if is_script_flag(self.cls, name):
            self.wrong += [f"{part}: {line}" for line in wrong_values(name, [value])]
            return value
        if name not in self.fields:
            return value  # its name is refused
        values, errors = values_of(self.cls, {name: value})
        self.wrong += [f"{part}: {line}" for line in errors]
        return values.get(name, value)


def _seeds(sweep: Sweep, values: _Values) -> list[int] | None:
    """`seeds: 3` means three that follow each other, from the base's seed on."""
    if sweep.seeds is None or "seed" not in values.fields:
        return None
    if isinstance(sweep.seeds, list):
        return [values.own("seeds", "seed", seed) for seed in sweep.seeds]
    first = values.own("base", "seed", sweep.base.get("seed", values.cls.model_fields["seed"].default))
    return [first + number for number in range(sweep.seeds)] if isinstance(first, int) else None


def _wrong_names(sweep: Sweep, cls: type[Experiment]) -> Iterator[str]:
    own = fields_of(cls)
    for name in sweep.base:
        if name not in (*own, *SITE_FIELDS, "exercise", *(PLACED if cls is Own else ())):
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
    for name in dict.fromkeys(name for rule in sweep.exclude for name in rule):
        if name not in sweep.axes:
            near = nearest(name, sweep.axes)
            yield f"exclude: {name} does not vary" + (f": did you mean {near}?" if near else "")
    if sweep.seeds is not None and "seed" in sweep.axes:
        yield "seed varies already: drop it there, or drop seeds"
    elif sweep.seeds is not None and "seed" not in own:
        yield f"seeds: {_no_option(cls, 'seed', own)}"


def _no_option(cls: type[Experiment], name: str, known: Sequence[str]) -> str:
    number = cls.model_fields["exercise"].default
    if name in SITE_FIELDS:
        return f"{name} belongs to the site and is the same for all points: move it to base"
    near = nearest(name.lstrip("-").replace("-", "_"), known)
    hint = f": did you mean {near}?" if near else " (docs/options.md; a field has _ where its flag has -)"
    if cls is Own:
        return f"your own training has no option {name}{hint}; a flag of the script begins with a dash, or ends with ="
    return f"exercise {number} ({cls.title}) has no option {name}{hint}"

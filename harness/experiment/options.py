"""An option, declared once: a field of an experiment plus a `Flag` that says how it looks and where it goes.

The command line, `--help`, validation messages, the run's name, the docs table and sweep axes all derive from
these. Knows Pydantic's field objects and nothing of any experiment, site or scheduler.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from dataclasses import field as declare
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

VALUE = object()
"""In `Flag.names`: this spelling takes a value (the other spellings set a fixed one)."""


@dataclass(frozen=True)
class Flag:
    """How one field is written, shown and passed on.

    `names` maps each spelling to `VALUE` or to the fixed value it sets. `tag` is the field's part of the run's
    name. `train` is the training script's argument, `deepspeed` a keyword of `deepspeed_config`: the field's
    effects, each optional.
    """

    names: Mapping[str, object]
    metavar: str = ""
    tag: str | None = None
    train: str | None = None
    deepspeed: str | None = None
    group: str = "training"  # "where" options are shown once, above the exercises


def value(*names: str, metavar: str = "N", **effects: Any) -> Flag:
    """A flag that takes a value."""
    return Flag(dict.fromkeys(names, VALUE), metavar=metavar, **effects)


def switch(*names: str, sets: object = True, **effects: Any) -> Flag:
    """A flag that sets a fixed value."""
    return Flag(dict.fromkeys(names, sets), **effects)


@dataclass(frozen=True)
class Option:
    """One field of one experiment class, as the outside sees it."""

    field: str
    flag: Flag
    info: FieldInfo = declare(repr=False)

    @property
    def help(self) -> str:
        return self.info.description or ""

    @property
    def default(self) -> Any:
        return self.info.default

    @property
    def spelling(self) -> str:
        """All spellings, as messages name them: `-n/--nodes`."""
        return "/".join(self.flag.names)

    def arguments(self, value: object) -> list[str]:
        """The training script's arguments for `value`; none when it is switched off or unset."""
        if self.flag.train is None or value is None or value is False:
            return []
        return [self.flag.train] if value is True else [self.flag.train, str(value)]


def options_of(model: type[BaseModel]) -> Iterator[Option]:
    """The options a model declares, base classes first."""
    for name, info in model.model_fields.items():
        for extra in info.metadata:
            if isinstance(extra, Flag):
                yield Option(name, extra, info)

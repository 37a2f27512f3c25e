"""An option, declared once: a field of an experiment plus a `Flag` that says how it looks and where it goes. The
command line, `--help`, validation messages, the run's name, the docs table and sweep axes derive from it. Knows
Pydantic's field objects, and nothing of any experiment, site or scheduler."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from dataclasses import field as declare
from pathlib import PurePosixPath
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo

Default = TypeVar("Default")

_LONGEST_TAG = 40  # characters: a file system takes 255 for the whole name

VALUE = object()
"""In `Flag.names`: this spelling takes a value (the other spellings set a fixed one)."""


SIZE, BATCH, SETTING, FAULT = range(4)
"""The place of a tag in a run's name, as on the slides: the ranks, the batch, the settings; then injected faults."""


def setting(default: Default, meaning: str, **limits: Any) -> Default:
    """A pydantic field of a model: its default, what its value says, and its limits as in `Field` (`ge`, `min_length`).
    Typed as its value: a class body holds the declaration where an instance holds the value."""
    return Field(default=default, description=meaning, **limits)  # type: ignore[no-any-return]


class BrokenRule(NamedTuple):
    """A rule between options that does not hold: the fields it joins and the sentence for the user."""

    fields: Set[str]
    sentence: str


@dataclass(frozen=True)
class InRun:
    """In `Flag.env`: a path in the run's directory, whose folder the launch makes."""

    path: str


@dataclass(frozen=True)
class Flag:
    """How one field is written, shown and passed on.

    names: each spelling, with `VALUE` or the fixed value that it sets.
    takes: the words after a spelling with `VALUE`, if the field's type does not list them.
    words: the value of such a word, if it is not the word itself.
    alone: the word that such a spelling stands for if none follows.
    help: what the flag does, if the field's description does not say it.
    tag, tag_place, tag_if_on: the field's part of the run's name and its place there; with `tag_if_on` it is only in
        the names of runs that switch it on.
    free: a lesson leaves the field to the student.
    compared: a comparison of two runs shows the field.
    path: made absolute, because the job runs in another folder.
    train, train_off: the training script's argument that sets the field; and the one that switches it off, if the
        script's default is on.
    env: the environment variable of the training that the field sets, to 1 if the field is a switch; of a field of
        KEY=VALUE texts, the prefix of each KEY; of several variables, the value of each: `VALUE`, a text, or a path
        `InRun`.
    nsys: options of `nsys profile` that the field sets, by nsys's names: `VALUE`, a text, or None to leave one out.
    nsys_only: refused if nsys does not record, as is every field that sets options of nsys.
    gpus_only: refused without GPUs, because it would have no effect.
    rare: shown by `help launch --all` only.
    repeats: it may be given several times; the field is the tuple of all values.
    """

    names: Mapping[str, object]
    takes: tuple[str, ...] = ()
    words: Mapping[str, object] = declare(default_factory=dict)
    alone: str | None = None
    metavar: str = ""
    help: str = ""
    tag: str | None = None
    tag_place: int = SETTING
    tag_if_on: bool = False
    free: bool = False
    compared: bool = True
    path: bool = False
    train: str | None = None
    train_off: str | None = None
    env: str | Mapping[str, object] | None = None
    nsys: Mapping[str, object] = declare(default_factory=dict)
    nsys_only: bool = False
    gpus_only: bool = False
    rare: bool = False
    repeats: bool = False
    group: str = "training"  # "where" options are shown once, above the exercises

    def option(self, default: Default, meaning: str, **limits: Any) -> Default:
        """As `setting`, for a field that this flag sets."""
        info: Any = setting(default, meaning, **limits)
        info.metadata.append(self)
        return info  # type: ignore[no-any-return]  # as in `setting`


def value(*names: str, metavar: str = "N", **effects: Any) -> Flag:
    return Flag(dict.fromkeys(names, VALUE), metavar=metavar, **effects)


def switch(*names: str, sets: object = True, **effects: Any) -> Flag:
    return Flag(dict.fromkeys(names, sets), **effects)


@dataclass(frozen=True)
class Option:
    """One field of one experiment class, as the outside sees it."""

    field: str
    flag: Flag
    info: FieldInfo = declare(repr=False)

    @property
    def meaning(self) -> str:
        return self.info.description or ""

    @property
    def help(self) -> str:
        return self.flag.help or self.meaning

    @property
    def default(self) -> Any:
        return self.info.default

    @property
    def spelling(self) -> str:
        """All spellings, as messages name them: `-n/--nodes`."""
        return "/".join(self.flag.names)

    def written(self, value: object) -> str:
        """The flag that sets `value`, without the value itself."""
        fixed = {meaning: name for name, meaning in self.flag.names.items() if meaning is not VALUE}
        valued = [name for name, meaning in self.flag.names.items() if meaning is VALUE]
        return fixed.get(value) or next(iter(valued or self.flag.names))

    def arguments(self, value: object) -> list[str]:
        """The training script's arguments for `value`; none when it is unset."""
        if self.flag.train is None or value is None:
            return []
        if value is False:
            return [self.flag.train_off] if self.flag.train_off else []
        if isinstance(value, tuple):
            return [word for each in value for word in (self.flag.train, str(each))]
        return [self.flag.train] if value is True else [self.flag.train, str(value)]

    def environment(self, value: object) -> dict[str, str | InRun]:
        """The training's environment variables for `value`; none when it is switched off or unset."""
        name = self.flag.env
        if name is None or value is None or value is False:
            return {}
        if isinstance(name, Mapping):
            texts = {each: value if text is VALUE else text for each, text in name.items()}
            return {each: text if isinstance(text, InRun) else str(text) for each, text in texts.items()}
        if isinstance(value, tuple):
            pairs = (str(each).partition("=") for each in value)
            return {name + key: text for key, _, text in pairs}
        return {name: "1" if value is True else str(value)}

    def nsys_options(self, value: object) -> dict[str, str | None]:
        """nsys's options for `value`, None for one to leave out; none when it is switched off or unset."""
        if value is None or value is False:
            return {}
        return {
            name: str(value) if text is VALUE else None if text is None else str(text)
            for name, text in self.flag.nsys.items()
        }


def tags_of(base_model: BaseModel) -> str:
    """A request's tags in a run's name, e.g. `-n2-g4-mbs8`."""
    tagged = [(option.flag, getattr(base_model, option.field)) for option in options_of(type(base_model))]
    shown = [(f, v) for f, v in tagged if f.tag and v is not None and (v or not f.tag_if_on)]
    return "".join(f"-{f.tag}{_short(v)}" for f, v in sorted(shown, key=lambda pair: pair[0].tag_place))


def _short(value: object) -> str:
    if isinstance(value, str):  # of a path, the characters that a folder's name may have
        return re.sub(r"\W", "_", PurePosixPath(value).stem, flags=re.ASCII)[:_LONGEST_TAG]
    if isinstance(value, tuple):  # of values with settings, the names
        names = "+".join(dict.fromkeys(re.split("[,=]", str(each))[0] for each in value))
        return names[: 2 * _LONGEST_TAG]
    return str(int(value)) if isinstance(value, bool) else str(value)


def for_nsys(base_model: BaseModel) -> dict[str, str]:
    """The flags of a request that do something only if nsys records, by field."""
    given = [(option, getattr(base_model, option.field)) for option in options_of(type(base_model))]
    return {
        option.field: option.written(value)
        for option, value in given
        if option.nsys_options(value) or (option.flag.nsys_only and value != option.default)
    }


def options_of(experiment_class: type[BaseModel]) -> Iterator[Option]:
    """The options a model declares, base classes first."""
    for name, info in experiment_class.model_fields.items():
        for extra in info.metadata:
            if isinstance(extra, Flag):
                yield Option(name, extra, info)

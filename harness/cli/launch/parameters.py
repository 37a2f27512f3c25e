"""The options of a launch as Typer's parameters, made from the fields of the experiments and of the site, and what its
page says of them at a site."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from inspect import Parameter
from typing import Annotated, Any, NamedTuple

import typer

from harness.cli.options import named_sites
from harness.common.paths import COMMAND
from harness.experiment.exercises import EXERCISES, Experiment, OwnTraining, Training, listing
from harness.experiment.model import model_names
from harness.experiment.options import VALUE, Option, options_of
from harness.experiment.parse import choices_of
from harness.site.detection import SiteChoice
from harness.site.site import Site

WHERE = "Where and how much"
SITE = "--site"
Home = type[Experiment] | type[Site]


class LaunchFlag(NamedTuple):
    """Spellings that mean the same, and the field of each class that they set; of `--site` no field."""

    names: tuple[str, ...]
    takes_value: bool
    homes: tuple[tuple[Home, Option], ...] = ()

    @property
    def identifier(self) -> str:
        """Its name in a signature of Python."""
        return self.names[-1].lstrip("-").replace("-", "_") + "_"

    @property
    def option(self) -> Option:
        """As its first class has it."""
        return self.homes[0][1]

    def parameter(self) -> Parameter:
        """All values are text: Pydantic says what is wrong with them, of all flags at once."""
        if not self.homes:
            text = f"site: a name ({COMMAND} sites) or a site file"
            info = typer.Option(*self.names, metavar="NAME|FILE", help=text, rich_help_panel=WHERE,
                                autocompletion=named_sites)  # fmt: skip
            return _keyword(self.identifier, Annotated[str | None, info])
        flag, words = self.option.flag, _words(self)
        if not self.takes_value:
            return _keyword(self.identifier, Annotated[bool, typer.Option(*self.names)], False)
        info = typer.Option(*self.names, metavar=flag.metavar, autocompletion=lambda: words)
        return _keyword(self.identifier, Annotated[list[str] | None if flag.repeats else str | None, info])


def _keyword(name: str, annotation: Any, default: Any = None) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _words(flag: LaunchFlag) -> list[str]:
    """The values that can be completed."""
    if flag.option.field == "exercise":
        return [str(number) for number in EXERCISES]
    if flag.option.field == "model":
        return list(model_names())
    return [str(word) for word in flag.option.flag.takes or choices_of(flag.option.info.annotation)]


@cache
def launch_flags() -> tuple[LaunchFlag, ...]:
    """Every flag of a launch, those of the site and of all exercises first."""
    found: dict[tuple[str, ...], list[tuple[Home, Option]]] = {}
    classes: list[Home] = [Site, *EXERCISES.values(), OwnTraining]
    for home in classes:
        for option in options_of(home):
            for names in _spellings(option):
                found.setdefault(names, []).append((home, option))
    # `--steps` of one exercise is the same parameter as `--iters/--steps` of another.
    for names in [names for names in found if any(set(names) < set(other) for other in found)]:
        whole = next(other for other in found if set(names) < set(other))
        found[whole] += found.pop(names)
    flags = [
        LaunchFlag(names, homes[0][1].flag.names[names[0]] is VALUE, tuple(homes)) for names, homes in found.items()
    ]
    return (LaunchFlag((SITE,), True), *flags)


def _spellings(option: Option) -> Iterator[tuple[str, ...]]:
    """Those with a value are one parameter; each that sets a fixed value is one of its own."""
    valued = tuple(name for name, meaning in option.flag.names.items() if meaning is VALUE)
    yield from [valued] if valued else []
    yield from ((name,) for name in option.flag.names if name not in valued)


class FlagOnPage(NamedTuple):
    """What the page says of a flag. default: empty: none is shown."""

    panel: str
    text: str
    default: str
    is_hidden: bool


def on_page(flag: LaunchFlag, choice: SiteChoice, asked: type[Experiment] | None, whole: bool) -> FlagOnPage:
    """asked: the exercise whose flags are shown; None: of all. whole: also the rarely used ones."""
    homes = [(home, option) for home, option in flag.homes if asked is None or home in (asked, Site)]
    if not flag.homes or not homes:
        return FlagOnPage(WHERE, "", "", is_hidden=bool(flag.homes))
    option = homes[0][1]
    text = _text(flag, option)
    has_default = flag.takes_value and option.field != "exercise"
    shown = _default(homes[0][0], option, choice.site) if has_default else ""
    return FlagOnPage(_panel(option, [home for home, _ in homes], asked), text, shown, option.flag.rare and not whole)


def _text(flag: LaunchFlag, option: Option) -> str:
    first, meaning = next(iter(option.flag.names.items()))
    fixed = option.flag.names.get(flag.names[0])
    if not flag.takes_value and flag.names[0] != first and (fixed is False or meaning is VALUE):
        return f"switch {first} off" if fixed is False else f"as {first} {fixed}"
    listed = {"exercise": listing(), "model": f"{option.help}: {', '.join(model_names())}"}
    return listed.get(option.field, option.help)


def _default(home: Home, option: Option, site: Site) -> str:
    """As it is where nothing is typed; empty: there is none to show."""
    value = getattr(site, option.field) if home is Site else site.defaults.get(option.field, option.default)
    if option.field == "gpus_per_node":
        value = site.gpus.per_node
    is_shown = value is not None and not isinstance(value, bool | tuple) and not option.info.is_required()
    return str(value) if is_shown else ""


def _panel(option: Option, homes: Sequence[Home], asked: type[Experiment] | None) -> str:
    if Site in homes or option.flag.group == "where":
        return WHERE
    if asked is not None:
        return "The training and its recording"
    named = {number: cls for number, cls in EXERCISES.items() if cls in homes}
    trainings = {number: cls for number, cls in EXERCISES.items() if issubclass(cls, Training)}
    if trainings.keys() <= named.keys():
        return f"All training exercises ({', '.join(map(str, trainings))})"
    title = ", ".join(f"exercise {number}: {cls.title}" for number, cls in named.items())
    return f"{title[:1].upper()}{title[1:]}" or "A training of your own (run -- SCRIPT)"


def exercise_of(word: str) -> type[Experiment] | None:
    """The exercise of a number; None: there is none."""
    return next((cls for number, cls in EXERCISES.items() if str(number) == word), None)

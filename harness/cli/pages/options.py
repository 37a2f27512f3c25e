"""The tables of docs/options.md, from the fields of the experiments and of a site."""

from __future__ import annotations

from collections.abc import Iterator

from harness.experiment.exercises import EXERCISES, Experiment, Own
from harness.experiment.options import Option, options_of
from harness.experiment.parse import allowed
from harness.site.site import Site

_OWN = "A training of your own: `run [FLAGS] -- SCRIPT …`"


def tables() -> str:
    """One table for what a site sets, one per exercise, and one for a training of the user's own."""
    exercises = (line for n, cls in EXERCISES.items() for line in _table(f"Exercise {n}: {cls.title}", cls))
    return "\n".join([*_site(), *exercises, *_table(_OWN, Own)])


def _site() -> Iterator[str]:
    yield from ("## Where (override the site's file)", "", "| flag | |", "|---|---|")
    for option in options_of(Site):
        yield f"| `{option.spelling}` | {option.help} |"


def _table(title: str, cls: type[Experiment]) -> Iterator[str]:
    yield from ("", f"## {title}", "")
    yield from ("| flag | takes | default | name | |", "|---|---|---|---|---|")
    for option in options_of(cls):
        if option.field != "exercise":
            takes = _takes(option)
            tag = option.flag.tag or ""
            yield f"| `{option.spelling}` | {takes} | {_default(option)} | {tag} | {option.help} |"


def _default(option: Option) -> str:
    return "" if option.default is None or isinstance(option.default, bool | tuple) else f"`{option.default}`"


def _takes(option: Option) -> str:
    if option.flag.repeats:
        return f"`{option.flag.metavar}`, any number of times"
    return allowed(option.info) if option.flag.metavar else "–"

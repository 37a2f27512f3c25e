"""docs/options.md, generated from the options: `python -m harness.cli.options_page > docs/options.md`."""

from __future__ import annotations

from collections.abc import Iterator

from harness.experiment.exercises import EXERCISES
from harness.experiment.options import Option, options_of
from harness.experiment.parse import allowed
from harness.site.site import Site


def page() -> str:
    """The page as Markdown: one table per exercise, one for what a site sets."""
    return "\n".join([*_head(), *_site(), *(line for n in EXERCISES for line in _exercise(n))]) + "\n"


def _head() -> Iterator[str]:
    yield "# Every flag"
    yield ""
    yield "Written from the fields of `harness/experiment/` and `harness/site/site.py`; a test keeps it so."
    yield "*Name* is the flag's part in a run's directory name. Flags may stand before or after `--`."


def _site() -> Iterator[str]:
    yield from ("", "## Where (override the site's file)", "", "| flag | |", "|---|---|")
    for option in options_of(Site):
        yield f"| `{option.spelling}` | {option.help} |"


def _exercise(number: int) -> Iterator[str]:
    cls = EXERCISES[number]
    yield from ("", f"## Exercise {number}: {cls.title}", "")
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


if __name__ == "__main__":
    print(page(), end="")

"""The run again with some fields of its experiment changed: what the page and the terminal offer to paste.

A change is made to the validated experiment, so whatever was typed (a launch, a lesson, a rerun) the command asks for
what is meant, and a change that breaks a rule between flags gives none. Knows no field's meaning.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from harness.analysis.expected import resolved
from harness.analysis.summary import Summary
from harness.common.errors import RequestError
from harness.experiment.advice import Fields
from harness.experiment.base import Experiment
from harness.experiment.options import options_of
from harness.experiment.parse import command_of, validate
from harness.site.site import Site, load_site


def is_ours(summary: Summary) -> bool:
    """Whether it is a run that a command of ours can repeat."""
    return _asked(summary) is not None


def command(summary: Summary, fields: Fields) -> str | None:
    """The summary's run again, changed. None: it is no run of ours, or so it would break a rule or be the
    same run, or no flag asks for it at its site."""
    asked = _asked(summary)
    if asked is None:
        return None
    changed = _changed(asked, fields)
    place = _place(summary.run or {})
    if changed is None or place is None or not _fits(summary, changed, fields):
        return None
    words = command_of(changed, defaults=((summary.run or {}).get("site") or {}).get("defaults"))
    if words is None:
        return None
    where, dashes, training = _parted(words)
    return "bash " + shlex.join(["slurm.sh", *where, *place, *dashes, *training])


def in_lines(text: str, width: int) -> list[str]:
    """A command as lines that can be pasted: broken between words, indented by two."""
    lines: list[str] = []
    for word in map(shlex.quote, shlex.split(text)):
        if lines and len(lines[-1]) + len(word) + 3 <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(f"  {'  ' * bool(lines)}{word}")
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def _asked(summary: Summary) -> Experiment | None:
    asked = summary.experiment
    if not isinstance(asked, Experiment) or not summary.run or any(asked.broken_rules()):
        return None
    return asked


def _changed(asked: Experiment, fields: Fields) -> Experiment | None:
    """None: a rule forbids it, or nothing would change."""
    if not set(fields) <= set(type(asked).model_fields):
        return None
    changed, _ = validate(type(asked), asked.model_dump() | dict(fields))
    return None if changed == asked else changed


def _fits(summary: Summary, changed: Experiment, fields: Fields) -> bool:
    """Whether the rules hold that only the number of ranks and the model's defaults bring into play, as far as
    those were recorded."""
    whole, recorded = changed.model_dump(), resolved(summary)
    filled = recorded.model_dump() if recorded else {}
    known = {n: v for n, v in filled.items() if whole[n] is None and n not in fields}
    known.pop("global_batch_size", None)  # what was not asked for is fitted anew
    return validate(type(changed), whole | known)[0] is not None


def _parted(words: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Before `--`, `--`, after it."""
    at = words.index("--") if "--" in words else len(words)
    return list(words[:at]), list(words[at : at + 1]), list(words[at + 1 :])


def _place(run: Mapping[str, Any]) -> list[str] | None:
    """What was said about the site, as typed; a rerun says nothing, so its record does. None: it cannot be said."""
    typed = [str(word) for word in run.get("command") or []]
    if typed[1:2] == ["rerun"]:
        return _recorded_place(run.get("site") or {})
    flags = {"--site", *(name for option in options_of(Site) for name in option.flag.names)}
    said: list[str] = []
    for word, following in zip(typed, [*typed[1:], ""], strict=True):
        name, equals, _ = word.partition("=")
        if name in flags:
            said += [word] if equals else [word, following]
    return said


def _recorded_place(site: Mapping[str, Any]) -> list[str] | None:
    try:
        usual = load_site(str(site.get("name")))
    except RequestError:
        return None  # a site file of somebody's own: where it lies was not recorded
    said = ["--site", usual.name]
    for option in options_of(Site):
        value = site.get(option.field)
        if value is not None and value != getattr(usual, option.field):
            said += [next(iter(option.flag.names)), str(value)]
    return said

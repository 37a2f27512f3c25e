"""The command that runs a run again with some fields of its experiment changed, for page and terminal.

The change is made to the validated experiment, not to the typed command. A change that breaks a rule between flags
gives no command. Knows no field's meaning.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from itertools import pairwise
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
    """Whether a command of this harness can repeat the run."""
    return _asked(summary) is not None


def changed_command(summary: Summary, fields: Fields) -> str | None:
    """The command for the summary's run with these fields. None: the run is not one of ours, the change breaks a
    rule or changes nothing, or no flag asks for it at its site."""
    changed = changed_experiment(summary, fields)
    return None if changed is None else _command(summary, changed)


def same_command(summary: Summary) -> str | None:
    """The command for the summary's run again. None: the run is not one of ours, or no flag asks for it at its site."""
    asked = _asked(summary)
    return None if asked is None else _command(summary, asked)


def _command(summary: Summary, asked: Experiment) -> str | None:
    if (place := _place(summary.run or {})) is None:
        return None
    words = command_of(asked, defaults=((summary.run or {}).get("site") or {}).get("defaults"))
    if words is None:
        return None
    at = words.index("--") if "--" in words else len(words)
    return "bash " + shlex.join(["slurm.sh", *words[:at], *place, *words[at:]])


def changed_experiment(summary: Summary, fields: Fields) -> Experiment | None:
    """The experiment of the summary's run with these fields. None: the run is not one of ours, or the change breaks a
    rule or changes nothing."""
    asked = _asked(summary)
    changed = None if asked is None else _changed(asked, fields)
    return changed if changed is not None and _fits(summary, changed, fields) else None


def in_lines(text: str, width: int) -> list[str]:
    """A command as lines to paste: broken between words, indented by two."""
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
    """The changed experiment. None: a rule forbids the change, or nothing changes."""
    if not set(fields) <= set(type(asked).model_fields):
        return None
    changed, _ = validate(type(asked), asked.model_dump() | dict(fields))
    return None if changed == asked else changed


def _fits(summary: Summary, changed: Experiment, fields: Fields) -> bool:
    """Whether the changed experiment also keeps the rules between its fields and the recorded defaults, which depend
    on the number of ranks and the model."""
    whole, recorded = changed.model_dump(), resolved(summary)
    filled = recorded.model_dump() if recorded else {}
    defaults = {n: v for n, v in filled.items() if whole[n] is None and n not in fields}
    defaults.pop("global_batch_size", None)  # its default follows the changed fields
    return validate(type(changed), whole | defaults)[0] is not None


def _place(run: Mapping[str, Any]) -> list[str] | None:
    """The typed flags of the site; for a rerun, which has no flags, those of its record. None: no flags give it."""
    typed = [str(word) for word in run.get("command") or []]
    if typed[1:2] == ["rerun"]:
        return _recorded_place(run.get("site") or {})
    flags = {"--site", *(name for option in options_of(Site) for name in option.flag.names)}
    argv: list[str] = []
    for word, following in pairwise([*typed, ""]):
        name, equals, _ = word.partition("=")
        if name in flags:
            argv += [word] if equals else [word, following]
    return argv


def _recorded_place(site: Mapping[str, Any]) -> list[str] | None:
    try:
        usual = load_site(str(site.get("name")))
    except RequestError:
        return None  # a user's own site file: its path was not recorded
    argv = ["--site", usual.name]
    for option in options_of(Site):
        value = site.get(option.field)
        if value is not None and value != getattr(usual, option.field):
            argv += [next(iter(option.flag.names)), str(value)]
    return argv

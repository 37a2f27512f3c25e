"""A run's own command line with other flags: what the page and the terminal offer to paste. Knows no flag's
meaning."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.analysis.summary import Summary


@dataclass(frozen=True)
class Flags:
    """What to take out of a command line and what to put in; None: a switch without a value."""

    put: Mapping[str, str | None] = field(default_factory=dict)
    drop: Sequence[str] = ()


def command(summary: Summary, flags: Flags) -> str | None:
    """The summary's run again, changed. None: it is no run of ours, or its command was not recorded."""
    asked = (summary.run or {}).get("command")
    if not isinstance(asked, list) or not asked or asked[0] != "slurm.sh":
        return None
    return "bash " + shlex.join(change([str(word) for word in asked], flags))


def in_lines(text: str, width: int) -> list[str]:
    """A command as lines that can be pasted: broken between words, indented by two."""
    lines: list[str] = []
    for word in map(shlex.quote, shlex.split(text)):
        if lines and len(lines[-1]) + len(word) + 3 <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(f"  {'  ' * bool(lines)}{word}")
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def change(argv: Sequence[str], flags: Flags) -> list[str]:
    """`argv` without the dropped switches and with the new values; `--flag=value` is understood too.

    >>> change(["slurm.sh", "-e", "2", "--", "--ds-no-overlap"], Flags(drop=["--ds-no-overlap"]))
    ['slurm.sh', '-e', '2']
    >>> change(["slurm.sh", "-e", "1", "--seed", "1"], Flags(put={"--seed": "2", "--mixed-precision": None}))
    ['slurm.sh', '-e', '1', '--seed', '2', '--mixed-precision']
    """
    kept: list[str] = []
    skip = False
    for word in argv:
        if skip:
            skip = False
            continue
        name, equals, _ = word.partition("=")
        if name in flags.put:
            skip = not equals and flags.put[name] is not None
            continue
        if word not in flags.drop:
            kept.append(word)
    if kept[-1:] == ["--"]:
        kept.pop()
    for name, value in flags.put.items():
        kept += [name] if value is None else [name, value]
    return kept

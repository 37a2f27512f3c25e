"""A sweep of a user's own training: its command, and axes that are flags of its script. Knows no run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.common.errors import RequestError
from harness.experiment.exercises import Experiment, Own
from harness.experiment.own import HOW_TO_TYPE

EXAMPLE = 'command: "train.py --lr 1e-4"'


def is_script_flag(cls: type[Experiment], name: str) -> bool:
    """Whether an axis is a flag of the user's script: `--lr`, or `optim.lr=` where the value is joined."""
    return cls is Own and (name.startswith("-") or name.endswith("="))


def command_words(text: object) -> tuple[str, ...]:
    """The command of a sweep's base: a text, or a list of words. Raises RequestError: it is none."""
    try:
        words = shlex.split(text) if isinstance(text, str) else text
    except ValueError as error:
        raise RequestError(f"base.command {text!r} cannot be split into words ({error})") from None
    if not isinstance(words, list | tuple) or not words or not all(isinstance(word, str) for word in words):
        raise RequestError(
            f"base.command is {text!r}: give the words after -- of {HOW_TO_TYPE}, as in {EXAMPLE}"
        )
    return tuple(words)


def wrong_values(name: str, values: Sequence[Any]) -> Iterator[str]:
    """Why these are no values of a flag, one sentence each."""
    for value in values:
        if value is not None and not isinstance(value, str | int | float):
            yield f"{name}: got {value!r}, takes a text, a number, true or false"


def with_flags(command: Sequence[str], settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The command with these flags, in the place of those that it has, else at its end. true: the flag alone; false and
    null: without the flag.

    >>> with_flags(["train.py", "--lr", "1", "--fused"], {"--lr": 2, "--fused": False, "--batch": 8})
    ('train.py', '--lr', '2', '--batch', '8')
    """
    words = list(command)
    for name, value in settings.items():
        words = _with_flag(words, name, value)
    return tuple(words)


def _with_flag(words: list[str], name: str, value: Any) -> list[str]:
    at = next((n for n, word in enumerate(words) if n and _is_flag(word, name)), None)
    kept = list(words)
    if at is not None:
        has_value = words[at] == name and not isinstance(value, bool) and _is_value(words[at + 1 : at + 2])
        del kept[at : at + 1 + has_value]
    place = len(kept) if at is None else at
    return [*kept[:place], *_written(name, value), *kept[place:]]


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

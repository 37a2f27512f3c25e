"""Slips and attacks on data: a JSON-like value changed in one place, and bytes changed in one place.

Each change is drawn from one number, so that a failing input can be made smaller by leaving changes out.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Sequence
from random import Random
from typing import Any

from tests.fuzz.hostile import NUMBERS, PATHS, TEXTS, nearly

DEEP = ("[", "]"), ('{"a":', "}")
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64, 10**30,
    10**400, 0.5, -0.0, 1e308, -1e308, 5e-324, float("inf"), float("-inf"), float("nan"), "", " ", "\0", [], {}, [[]],
    [None], {"": None}, ["a"] * 50, {"a": {"b": {"c": 1}}}, [0, 1], ["", 1, None],
)  # fmt: skip
_LEVELS = (3, 40, 70, 200, 990, 3000, 100_000)
_BYTES = (b"\0", b"\xff", b"\xfe\xff", b"\xef\xbb\xbf", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\n", b" ",
          b"-", b"e9", b"9" * 40, b"null", b"NaN", b"\\ud800", b"\\u0000", b"\xc3\x28", b"\xed\xa0\x80")  # fmt: skip


def changed(value: Any, parts: Sequence[int]) -> Any:
    """The value with a change for each number; `value` stays."""
    found = copy.deepcopy(value)
    for part in parts:
        found = _changed_once(found, Random(part))
    return found


def _changed_once(value: Any, chance: Random) -> Any:
    places = list(_places(value, ()))
    # The outer places more often: a wrong type there is met by more code.
    path = min((chance.choice(places) for _ in range(chance.choice((1, 1, 2)))), key=len)
    if not path:
        return odd_value(chance, value) if chance.random() < 0.2 else value
    outer = value
    for key in path[:-1]:
        outer = outer[key]
    _change(outer, path[-1], chance, value)
    return value


def _change(outer: Any, key: Any, chance: Random, whole: Any) -> None:
    how = chance.random()
    if how < 0.55:
        outer[key] = odd_value(chance, outer[key])
    elif how < 0.68:
        del outer[key]
    elif how < 0.78 and isinstance(outer, dict):
        outer[nearly(chance, str(key)) if chance.random() < 0.7 else chance.choice(TEXTS)] = outer.pop(key)
    elif how < 0.86:
        outer[key] = [outer[key]] if chance.random() < 0.5 else {"a": outer[key]}
    elif how < 0.94 and isinstance(outer, list):
        outer[key:key] = [copy.deepcopy(outer[key])] * chance.choice((1, 2, 100))
    else:  # something of another place
        places = list(_places(whole, ()))
        other = whole
        for step in chance.choice(places):
            other = other[step]
        outer[key] = copy.deepcopy(other)


def odd_value(chance: Random, now: Any) -> Any:
    """Instead of this value: one of another type, or of the same with an odd content."""
    share = chance.random()
    if share < 0.4:
        return copy.deepcopy(chance.choice(_VALUES))
    if share < 0.5:
        return deep(chance.choice(_LEVELS), chance.choice(DEEP))
    if isinstance(now, str) and share < 0.9:
        return chance.choice((nearly(chance, now), chance.choice(TEXTS), chance.choice(PATHS), now * 50))
    if isinstance(now, (int, float)) and not isinstance(now, bool) and share < 0.9:
        far = (now + 1, now - 1, -now, now * 2, now * 1000, str(now), float(now) if abs(now) < 1e300 else 0.5)
        return chance.choice(far)
    return chance.choice((chance.choice(NUMBERS), chance.choice(TEXTS)))


def _places(value: Any, path: tuple[Any, ...]) -> Any:
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _places(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value[:200]):
            yield from _places(inner, (*path, number))


def deep(levels: int, brackets: tuple[str, str]) -> str:
    """Stands in a value for brackets nested so deep that no writer of JSON could write them."""
    return f"\0deep:{levels}:{DEEP.index(brackets)}\0"


def as_json(value: Any, **how: Any) -> str:
    """JSON text; what `deep` stands for is written out."""

    def written(found: re.Match[str]) -> str:
        opening, closing = DEEP[int(found[2])]
        return f"{opening * int(found[1])}0{closing * int(found[1])}"

    return re.sub(r'"\\u0000deep:(\d+):(\d)\\u0000"', written, json.dumps(value, **how))


def bytes_changed(data: bytes, parts: Sequence[int]) -> bytes:
    """The bytes with a change for each number."""
    for part in parts:
        data = _bytes_changed_once(data, Random(part))
    return data


def _bytes_changed_once(data: bytes, chance: Random) -> bytes:
    if not data:
        return chance.choice(_BYTES)
    at = chance.randrange(len(data))
    span = min(len(data) - at, chance.choice((1, 1, 2, 4, 8, 64, 512, 4096)))
    inside, before, after = data[at : at + span], data[:at], data[at + span :]
    other = chance.randrange(len(data))
    ways = (
        lambda: before + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :],
        lambda: before + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :],
        lambda: before + after,
        lambda: before + chance.choice(_BYTES) * chance.choice((1, 1, 1, 2, 300)) + data[at:],
        lambda: before + inside * chance.choice((2, 2, 4, 50)) + after,
        lambda: before + data[other : other + span] + after,
        lambda: before + chance.randbytes(span) + after,
        lambda: before + chance.choice((b"\0", b"\xff")) * span + after,
    )
    return chance.choice(ways)()


def cut(data: bytes, chance: Random) -> bytes:
    """The bytes without their end: at least the last two, so that nothing is whole by chance."""
    if len(data) < 4:
        return b""
    near = len(data) - 2 - chance.randrange(min(len(data) - 3, 60))
    return data[: chance.choice((chance.randrange(len(data) - 2), near))]

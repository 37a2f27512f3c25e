"""What kind of work each event is: a class (compute, communication, memory) and a kind with its precision.

The rules are data, `configs/kernels.yaml`. This module knows how to apply them and nothing about any kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import msgspec.yaml
import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.idle import COMMUNICATION, COMPUTE, MEMORY, NOT_WORK
from harness.common.display import palette
from harness.common.errors import RequestError
from harness.common.paths import CONFIGS
from harness.traces.columns import distinct_rows
from harness.traces.trace import I32, U8, Activity, CopyKind, Events
from harness.traces.vocabulary import is_communication

RULES = CONFIGS / "kernels.yaml"
HOST, OTHER, LAYOUT = "host", "other", "layout"
NAME_CHARS = 1000  # mangled templates have many thousands; what matters comes first, and searching costs time
KINDS = {  # of kernels, each with its colour
    "gemm": "#1f6fb2",
    "attention": "#56b4e9",
    "communication": palette.COMMUNICATION,
    "normalisation": "#3f4fa0",
    "optimizer": "#7d6bc4",
    "embedding": "#8fb8de",
    LAYOUT: "#2f4b7c",
    "elementwise": "#74a9cf",
    HOST: "#b5bbc2",
    OTHER: "#8a94a0",
}
PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8")
_WITH_PRECISION = ("gemm", "attention")
MEMSET = "memset"
_FEW_KEYS = 1 << 20  # of a table in which they are looked up
# Of a pattern, what is no literal text of every name that it matches.
_ESCAPE_OR_CLASS, _GROUP = re.compile(r"\\.|\[[^]]*\]"), re.compile(r"\([^()]*\)")
_OPTIONAL, _LITERAL = re.compile(r".(?:[?*]|\{[^}]*\})"), re.compile(r"[\w:]+")


class _KindRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: str
    patterns: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"'{self.kind}' is not a kind; the kinds are {', '.join(KINDS)}")


class _PrecisionRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    precision: str
    patterns: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ValueError(f"'{self.precision}' is not a precision; they are {', '.join(PRECISIONS)}")


class _RulesFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kinds: tuple[_KindRule, ...]
    precisions: tuple[_PrecisionRule, ...]
    dtypes: dict[str, str]


# Parts of patterns, each after a text that a name has in lower case if it matches; empty: not known. To look for a text
# is a hundred times faster than to try a pattern, and a recording may have 100,000 names.
_Alternatives = tuple[tuple[str, str], ...]


@dataclass(frozen=True, eq=False)
class Rules:
    """Ordered rules. Methods: the kind of a name, the precision of a product."""

    kinds: tuple[tuple[str, _Alternatives], ...]
    precisions: tuple[tuple[str, _Alternatives], ...]
    dtypes: dict[str, str]

    def of_name(self, name: str, on_cpu: bool = False) -> str:
        """The first kind that matches; `host` is for operators of a CPU trace only."""
        return _kind_of(self, name, on_cpu)

    def precision(self, kind: str, name: str, dtype: str | None = None) -> str | None:
        """The precision of a gemm or attention; None for other kinds, or where name and dtype do not show it."""
        if kind not in _WITH_PRECISION:
            return None
        if dtype is not None and dtype in self.dtypes:
            return self.dtypes[dtype]
        return _first_match(self.precisions, name)


@lru_cache(maxsize=8192)  # a job's ranks run kernels of the same names
def _kind_of(rules: Rules, name: str, on_cpu: bool) -> str:
    return _first_match([rule for rule in rules.kinds if on_cpu or rule[0] != HOST], name) or OTHER


def _first_match(rules: Iterable[tuple[str, _Alternatives]], name: str) -> str | None:
    lowered = name.lower()
    return next((label for label, patterns in rules if _matches(patterns, name, lowered)), None)


def _matches(alternatives: _Alternatives, name: str, lowered: str) -> bool:
    return any(literal in lowered and _compiled(pattern).search(name) for literal, pattern in alternatives)


@cache
def load_rules(path: Path = RULES) -> Rules:
    """The rules in a file. Raises RequestError: they are not valid; it names file and field."""
    try:
        parsed = msgspec.yaml.decode(path.read_bytes(), type=_RulesFile)
        return Rules(
            tuple((rule.kind, _alternatives(rule.patterns)) for rule in parsed.kinds),
            tuple((rule.precision, _alternatives(rule.patterns)) for rule in parsed.precisions),
            parsed.dtypes,
        )
    except (OSError, msgspec.DecodeError) as error:  # of a wrong field it says which
        raise RequestError(f"{path}: kernel rules cannot be read: {error}") from error
    except re.error as error:
        raise RequestError(f"{path}: kernel rules: '{error.pattern!s}' is no regular expression: {error}") from error


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


def _alternatives(patterns: Iterable[str]) -> _Alternatives:
    """Raises re.error: one is no regular expression."""
    for pattern in patterns:
        re.compile(pattern)  # as a whole: a part of a wrong one may be right
    return tuple(part for pattern in patterns for part in _parts(pattern))


def _parts(pattern: str) -> Iterator[tuple[str, str]]:
    plain, before = _ESCAPE_OR_CLASS.sub(_blank, pattern), ""
    while plain != before:
        plain, before = _GROUP.sub(_blank, plain), plain
    begin = 0
    for part in _OPTIONAL.sub(_blank, plain).split("|"):
        literal = max(_LITERAL.findall(part), key=len, default="")
        yield literal.lower(), pattern[begin : begin + len(part)]
        begin += len(part) + 1


def _blank(found: re.Match[str]) -> str:
    return " " * len(found[0])


@dataclass(frozen=True)
class Kinds:
    """The kind of each of n events: `code` indexes `labels`, (kind, precision); classes are those of idle.py."""

    code: I32
    event_class: U8
    labels: list[tuple[str, str | None]]


def classify(events: Events, names: list[str], rules: Rules) -> Kinds:
    """Kind and class of every event. Each distinct (name, activity, dtype, direction) is judged once."""
    keys, inverse = _distinct(events)
    labels: dict[tuple[str, str | None], int] = {}
    code = np.empty(len(keys), np.int32)
    event_class = np.empty(len(keys), np.uint8)
    for i, (name, activity, dtype, direction) in enumerate(keys):
        element = names[dtype] if dtype >= 0 else None
        label, event_class[i] = _judge(names[name], activity, element, direction, rules)
        code[i] = labels.setdefault(label, len(labels))
    return Kinds(code[inverse], event_class[inverse], list(labels))


def _distinct(events: Events) -> tuple[list[tuple[int, int, int, int]], NDArray[np.integer]]:
    """The distinct (name, activity, dtype, direction) and which of them each event is. No sort."""
    columns: tuple[NDArray[np.integer], ...] = (events.name, events.activity, events.dtype, events.copy_kind)
    key = np.zeros(len(events), np.int64)
    lows = [int(column.min(initial=0)) for column in columns]
    spans = [int(column.max(initial=0)) - low + 1 for column, low in zip(columns, lows, strict=True)]
    for column, low, span in zip(columns, lows, spans, strict=True):
        if span > 1 or low:
            key *= span
            key += column
            key -= low
    distinct, inverse = distinct_rows(key, _FEW_KEYS)
    found = zip(np.unravel_index(distinct, spans), lows, strict=True)
    return list(zip(*((column + low).tolist() for column, low in found), strict=True)), inverse


def copy_label(direction: int) -> str:
    """The kind of a copy: `copy H2D`; `copy` where its direction was not recorded."""
    kind = CopyKind(direction)
    return "copy" if kind is CopyKind.UNKNOWN else f"copy {kind.name}"


def _judge(
    name: str, activity: int, dtype: str | None, direction: int, rules: Rules
) -> tuple[tuple[str, str | None], int]:
    """Label and class of one distinct event."""
    if activity == Activity.MEMSET:
        return (MEMSET, None), MEMORY
    if activity == Activity.MEMCPY and not is_communication(name):
        return (copy_label(direction), None), MEMORY
    if activity in (Activity.CPU_COLLECTIVE, Activity.MEMCPY):
        return ("communication", None), COMMUNICATION
    name = name[:NAME_CHARS]
    kind = rules.of_name(name, on_cpu=activity == Activity.CPU_OP)
    if kind == HOST:
        return (HOST, None), NOT_WORK
    event_class = COMMUNICATION if kind == "communication" else COMPUTE
    return (kind, rules.precision(kind, name, dtype)), event_class


def color_of_kind(kind: str) -> str:
    """The colour of a kind of work; copies and sets are memory."""
    return palette.MEMORY if kind.startswith(("copy", MEMSET)) else KINDS.get(kind, KINDS[OTHER])

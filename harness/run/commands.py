"""The commands that a run's nodes started, as people read and copy them; and what was left out of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from harness.common.shell_words import option_lines
from harness.run.record import NodeStatus

_MOST_NODES = 8  # that are shown because they differ
_LONGEST = 4096  # characters of a path or a name
_NUMBER = re.compile(r"(\d+)")
_SESSION = re.compile(r"--session-new=harness-\d+-\d+")  # by the number of the process that started it


class StartedRun(NamedTuple):
    """A sentence, and below it the lines of the commands that it names, if it names any."""

    sentence: str
    lines: tuple[str, ...] = ()


def commands_started(nodes: Sequence[NodeStatus]) -> list[StartedRun]:
    """What the first node started, then whether the others started the same; empty if no node has told."""
    told = [node for node in nodes if node.commands]
    if not told:
        return []
    first, *others = told
    differences = [differing(first, node) for node in others]
    same = [found for found in differences if found is not None]
    unlike = [node for node, found in zip(others, differences, strict=True) if found is None]
    found = [_block(first)]
    if same:
        its = "its" if len(same) == 1 else "their"
        count = len(nodes) - 1
        where = f"the other {count} nodes" if count > 1 else "the other node"
        which = where if len(same) == count else f"{len(same)} of {where}"
        but = [what for what in ("number", "name", "session of nsys") if any(what in each for each in same)]
        found.append(StartedRun(f"{which}: the same{f' but for {its} ' * bool(but)}{' and '.join(but)}"))
    found += map(_block, unlike[:_MOST_NODES])
    rest = len(unlike) - _MOST_NODES
    return [*found, *([StartedRun(f"{rest} more nodes started other commands")] if rest > 0 else [])]


def _block(node_status: NodeStatus) -> StartedRun:
    count = len(node_status.commands)
    several = f" {count} commands, one after the other" if count > 1 else ""
    lines = (line for words in node_status.commands for line in option_lines(words))
    return StartedRun(f"node {node_status.node} ({node_status.host}) started{several}:", tuple(lines))


def differing(node_status: NodeStatus, other: NodeStatus) -> frozenset[str] | None:
    """In what of the node's own its commands differ from those of the first: its number, its name, its session of nsys.
    None: they differ in something else, too."""
    if list(map(len, node_status.commands)) != list(map(len, other.commands)):
        return None
    pairs = zip(chain(*node_status.commands), chain(*other.commands), strict=True)
    found = [_difference(*pair, node_status, other) for pair in pairs if pair[0] != pair[1]]
    return None if None in found else frozenset().union(*filter(None, found))


def _difference(word: str, its: str, node_status: NodeStatus, other: NodeStatus) -> set[str] | None:
    if _SESSION.fullmatch(word) and _SESSION.fullmatch(its):
        return {"session of nsys"}
    of_other = _with_host(word, node_status.host, other.host)
    for of_host, named in ((word, set[str]()), (of_other, {"name"})):
        if of_host == its:
            return named
        if _has_number(of_host, its, str(node_status.node), str(other.node)):
            return {*named, "number"}
    return None


def _with_host(word: str, host: str, other: str) -> str:
    """The word with one name in place of the other; as it is if no such word or name can be a real one."""
    return word.replace(host, other) if host and len(word) < _LONGEST and len(other) < _LONGEST else word


def _has_number(word: str, its: str, number: str, its_number: str) -> bool:
    """Whether the words are the same but for one number in place of the other."""
    parts, its_parts = _NUMBER.split(word), _NUMBER.split(its)
    pairs = list(zip(parts, its_parts, strict=False))
    return len(parts) == len(its_parts) and all(a == b or (a, b) == (number, its_number) for a, b in pairs)


def left_out(nodes: Sequence[NodeStatus]) -> list[str]:
    """What was left out of the commands and why, a sentence each, with the nodes that say so."""
    said: dict[str, list[NodeStatus]] = {}
    for node in nodes:
        for sentence in dict.fromkeys(node.left_out):
            said.setdefault(sentence, []).append(node)
    return [f"{_named(which, len(nodes))}: {sentence}" for sentence, which in said.items()]


def _named(node_status: Sequence[NodeStatus], of: int) -> str:
    if len(node_status) == 1:
        return f"node {node_status[0].node}"
    if len(node_status) == of:
        return f"all {of} nodes"
    more = len(node_status) - _MOST_NODES
    numbers = ", ".join(str(node.node) for node in node_status[:_MOST_NODES])
    return f"nodes {numbers}{f' and {more} more' if more > 0 else ''}"

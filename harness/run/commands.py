"""The commands that a run's nodes started, as people read and copy them; and what was left out of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from harness.common.system.shell_words import option_lines
from harness.run.record import NodeStatus

_MOST_NODES = 8  # that a sentence names


class StartedRun(NamedTuple):
    """A sentence, and below it the lines of the commands that it names, if it names any."""

    sentence: str
    lines: tuple[str, ...] = ()


def commands_started(nodes: Sequence[NodeStatus]) -> list[StartedRun]:
    """What the first node started, as an example of all; empty if no node has told."""
    first = next((node for node in nodes if node.commands), None)
    if first is None:
        return []
    count = len(first.commands)
    several = f" {count} commands, one after the other" if count > 1 else ""
    lines = (line for words in first.commands for line in option_lines(words))
    return [StartedRun(f"node {first.node} ({first.host}) started{several}:", tuple(lines))]


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

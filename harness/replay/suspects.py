"""All rules: each looks at a job's time and names what it suspects. A rule is one function; `RULES` names them all."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from harness.replay.scene import Scene
from harness.replay.stalls import data, host, sending, stopped, without_core
from harness.replay.standing import buckets, tiny
from harness.replay.suspect import Suspect
from harness.replay.uneven_work import heavier, uneven

Rule = Callable[[Scene], Iterator[Suspect]]
RULES: tuple[Rule, ...] = (
    data,
    host,
    sending,
    stopped,
    without_core,
    uneven,
    heavier,
    tiny,
    buckets,
)


def suspects(scene: Scene) -> list[Suspect]:
    """What every rule suspects."""
    return [found for rule in RULES for found in rule(scene)]

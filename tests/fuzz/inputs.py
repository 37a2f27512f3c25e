"""The kinds of inputs, each by its name: what is made of which numbers, for the quick properties and for a night."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from random import Random

from tests.fuzz.box import Box
from tests.fuzz.command_lines import command_line
from tests.fuzz.fence import Case
from tests.fuzz.recorded_runs import contents, recorded_run
from tests.fuzz.site_files import site_file
from tests.fuzz.trace_files import kineto_files, nsys_files, rocpd_files

Maker = Callable[[Mapping[str, bytes], int, Sequence[int]], Case]

KINDS: dict[str, Maker] = {
    "commands": lambda _, head, parts: command_line(head, parts),
    "sites": lambda _, head, parts: site_file(head, parts),
    "records": recorded_run,
    "kineto": lambda _, head, parts: kineto_files(head, parts),
    "nsys": lambda _, head, parts: nsys_files(head, parts),
    "rocpd": lambda _, head, parts: rocpd_files(head, parts),
}
_HOW_MANY = (0, 1, 1, 1, 1, 2, 2, 2, 3, 4, 6, 9)


def numbers(kind: str, seed: int) -> tuple[int, list[int]]:
    """Head and parts of the input of this seed."""
    chance = Random(f"{kind}:{seed}")
    return chance.getrandbits(32), [chance.getrandbits(32) for _ in range(chance.choice(_HOW_MANY))]


def case_of(box: Box, kind: str, head: int, parts: Sequence[int]) -> Case:
    """The input of these numbers."""
    return KINDS[kind](_recorded(box.folder, box), head, parts)


@lru_cache(maxsize=1)
def _recorded(_folder: Path, box: Box) -> dict[str, bytes]:
    return contents(box)

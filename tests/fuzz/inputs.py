"""The kinds of inputs, each by its name: what is made of which numbers, for the quick properties and for a night."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from tests.fuzz.command_lines import command_line
from tests.fuzz.fence import Case
from tests.fuzz.site_files import site_file
from tests.fuzz.trace_files import kineto_files, nsys_files, rocpd_files

KINDS: dict[str, Callable[[int, Sequence[int]], Case]] = {
    "commands": command_line,
    "sites": site_file,
    "kineto": kineto_files,
    "nsys": nsys_files,
    "rocpd": rocpd_files,
}
_HOW_MANY = (0, 1, 1, 1, 1, 2, 2, 2, 3, 4, 6, 9)


def numbers(kind: str, seed: int) -> tuple[int, list[int]]:
    """Head and parts of the input of this seed."""
    chance = Random(f"{kind}:{seed}")
    return chance.getrandbits(32), [chance.getrandbits(32) for _ in range(chance.choice(_HOW_MANY))]

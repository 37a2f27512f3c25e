"""The dependency lists in pyproject.toml, read without a TOML parser, which Python 3.10 lacks.

Reads the shape this repository writes (one quoted requirement a line); a test compares it with a real parser.
"""

from __future__ import annotations

import re

_OPENING = re.compile(r"^(?P<name>[\w-]+) = \[$")
_REQUIREMENT = re.compile(r"""^\s+(?P<quote>["'])(?P<text>.*?)(?P=quote),?\s*(#.*)?$""")


class UnknownListError(Exception):
    """pyproject.toml has no such list."""


def requirements(pyproject: str, part: str) -> list[str]:
    """What `part` needs: `launcher` is the dependencies, else an extra. Raises UnknownListError."""
    table, name = ("project", "dependencies")
    if part != "launcher":
        table, name = ("project.optional-dependencies", part)
    found = _lists(pyproject).get((table, name))
    if found is None:
        raise UnknownListError(f"pyproject.toml has no list called {name!r} in [{table}].")
    return found


def _lists(pyproject: str) -> dict[tuple[str, str], list[str]]:
    lists: dict[tuple[str, str], list[str]] = {}
    table, current = "", None
    for line in pyproject.splitlines():
        if line.startswith("["):
            table = line.strip("[]")
        elif opening := _OPENING.match(line):
            current = lists.setdefault((table, opening["name"]), [])
        elif line.startswith("]"):
            current = None
        elif current is not None and (requirement := _REQUIREMENT.match(line)):
            current.append(requirement["text"])
    return lists

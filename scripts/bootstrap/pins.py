"""The dependency lists in pyproject.toml, read without a TOML parser, which Python 3.10 lacks.

Reads the shape this repository writes (one quoted requirement a line); a test compares it with a real parser.
"""

from __future__ import annotations

import re

from say import BootstrapError

_REQUIREMENT = re.compile(r"""^\s+(["'])(?P<text>.*?)\1,?\s*(#.*)?$""", re.M)


def requirements(pyproject: str, part: str) -> list[str]:
    """What `part` needs: `launcher` is the dependencies, else an extra. Raises BootstrapError: there is none."""
    table, name = ("project", "dependencies") if part == "launcher" else ("project.optional-dependencies", part)
    content = f"\n{pyproject}".partition(f"\n[{table}]\n")[2].partition("\n[")[0]
    _, opening, items = f"\n{content}".partition(f"\n{name} = [\n")
    if not opening:
        raise BootstrapError(f"pyproject.toml has no list called {name!r} in [{table}].")
    return [each["text"] for each in _REQUIREMENT.finditer(items.partition("\n]")[0])]

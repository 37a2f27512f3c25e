"""The containers' %test: every package that was asked for is there in the version asked for, and imports.

    python3 imports.py REQUIREMENT...
    python3 imports.py --requirements FILE

Reads requirements as pip does, one a line; knows nothing of what the packages do.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import sys
from pathlib import Path

# Distributions whose modules cannot be guessed from what they installed at the top level.
INSIDE = {"megatron-core": ["megatron.core"]}


def modules(distribution: str) -> list[str]:
    """The modules to import for a distribution."""
    owners = importlib.metadata.packages_distributions()
    found = [module for module, names in owners.items() if distribution in map(canonical, names)]
    return INSIDE.get(distribution) or [module for module in found if module.isidentifier()]


def canonical(name: str) -> str:
    """A distribution's name as indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def check(requirement: str) -> str:
    """Import what `requirement` names and say what was found. Raises SystemExit when it is another version."""
    name = canonical(re.split(r"[^\w.-]", requirement, maxsplit=1)[0])
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        raise SystemExit(f"{name} is not installed, but {requirement} is required") from None
    pinned = re.search(r"==([\w.]+)", requirement)
    if pinned and found.split("+")[0] != pinned[1]:
        raise SystemExit(f"{name} is {found}, but {requirement} is required")
    for module in modules(name):
        importlib.import_module(module)
    return f"{name} {found}: {', '.join(modules(name))}"


def main(arguments: list[str]) -> None:
    """Check them all, one line each."""
    if arguments[:1] == ["--requirements"]:
        arguments = Path(arguments[1]).read_text(encoding="utf-8").splitlines()
    for asked in arguments:
        print(check(asked), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

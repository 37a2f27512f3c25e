"""The tables of docs/faults.md, from the declared faults."""

from __future__ import annotations

from harness.cli.launch.faults import where
from harness.common.faults import FAULTS, FaultKind


def kinds() -> str:
    """One row per kind of fault: where it works, and what happens."""
    rows = [f"| `{kind.name}` | {' | '.join(where(kind))} | {kind.meaning} |" for kind in FAULTS.values()]
    return "\n".join(["| fault | exercise | on | what happens |", "|---|---|---|---|", *rows])


def keys() -> str:
    """One row per key of each kind."""
    rows = [row for kind in FAULTS.values() for row in _keys(kind)]
    return "\n".join(["| fault | key | takes | default | |", "|---|---|---|---|---|", *rows])


def _keys(kind: FaultKind) -> list[str]:
    defaults = ["required" if key.default is None else f"`{key.default}`" for key in kind.keys]
    return [
        f"| `{kind.name}` | `{key.name}` | {key.takes} | {default} | {key.meaning} |"
        for key, default in zip(kind.keys, defaults, strict=True)
    ]


def words() -> str:
    """One row per word that has its own effect."""
    rows = [
        f"| `{kind.name}` | `{key.name}={word}` | {meaning} |"
        for kind in FAULTS.values()
        for key in kind.keys
        for word, meaning in key.explained
    ]
    return "\n".join(["| fault | key | what happens |", "|---|---|---|", *rows])


def records() -> str:
    """What the recorded time of each kind is."""
    rows = [f"| `{kind.name}` | {kind.recorded} |" for kind in FAULTS.values() if kind.recorded]
    return "\n".join(["| fault | `ns` |", "|---|---|", *rows])

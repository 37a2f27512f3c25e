"""Ranges of a model's modules: the words of `--module-ranges`, and the names of the ranges. What launcher, training and
report agree on."""

from __future__ import annotations

from collections.abc import Container

from harness.common.errors import RequestError
from harness.common.whole_number import whole_number

LAYERS = "layers"  # down to the parts of the repeated layers
ALL = "all"
BACKWARD, RECOMPUTED = " (backward)", " (recomputed)"  # after a module's name: not its forward pass


def module_depth(word: str) -> str:
    """LAYERS, ALL, or the number of modules that may be around a module, as text. Raises RequestError: it is none.

    >>> module_depth("2"), module_depth("all")
    ('2', 'all')
    """
    if word in (LAYERS, ALL) or whole_number(word):
        return word
    raise RequestError(f"got {word!r}, takes {LAYERS}, {ALL}, or a whole number ≥ 1")


def module_of(name: str, names: Container[str]) -> str | None:
    """The module whose range this is, one of these names: a module has a range of its forward and one of its backward
    pass, or is a part of such a module. None for another range.

    >>> names = {"forward", "model.norm", "model.norm (backward)"}
    >>> module_of("model.norm (backward)", names), module_of("forward", names)
    ('model.norm', None)
    """
    for ending in (BACKWARD, RECOMPUTED):
        if name.endswith(ending):
            return module_of(name[: -len(ending)], names)
    outer = name.rpartition(".")[0]
    known = name in names and (name + BACKWARD in names or (outer and module_of(outer, names)))
    return name if known else None

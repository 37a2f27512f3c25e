"""What is inside of a batch, or goes into a module and comes out of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

_MOST_LOOKED_AT = 8  # values of each tuple, list or dictionary

is_compiling: Callable[[], bool] = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)
"""Whether torch.compile reads the program now: what is called is not run."""


def tensors_of(value: Any, depth: int = 3) -> Iterator[torch.Tensor]:
    """The tensors of a value, and of tuples, lists and dictionaries in it."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, (tuple, list, dict)):
        values = list(value.values() if isinstance(value, dict) else value)
        for inside in values[:_MOST_LOOKED_AT]:
            yield from tensors_of(inside, depth - 1)

"""The errors of a training script that a student can change, as one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from harness.common.errors import RequestError
from harness.observe.last_words import ON_CPU

Content = TypeVar("Content")
SIGTERM_EXIT_CODE = 143


def read_named_file(
    flag: str, path: Path, parse: Callable[[str], Content], kind: str, broken: type[Exception] = ValueError
) -> Content:
    """What `parse` makes of a file that a flag names. Raises RequestError: the file cannot be read, or is not of its
    `kind`, for which `parse` raises `broken`."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(f"{flag} {path}: cannot be read ({error.strerror})") from None
    except broken as error:
        raise RequestError(f"{flag} {path}: is not {kind} ({error})") from None


def without_memory(message: str) -> str:
    """The part of torch's message with the amounts of memory, and what to try instead of torch's hints for experts."""
    amounts = message.partition(" Including non-PyTorch memory")[0].partition(" Of the allocated memory")[0]
    amounts = amounts[amounts.find(ON_CPU) :] if ON_CPU in amounts else amounts or "no memory left"
    amounts = amounts.partition(" Error code")[0]
    return (
        f"{amounts} Try a smaller --micro-batch-size, --seq-length or --model, or --mixed-precision with "
        "--activation-checkpointing"
    )

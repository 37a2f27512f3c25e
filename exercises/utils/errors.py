"""How a training script reports an error: one sentence and an exit code, without a traceback."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from harness.common.errors import HarnessError, RequestError, WorkError
from harness.observe.last_words import tell_error

Content = TypeVar("Content")
SIGTERM_EXIT_CODE = 143
_ON_CPU = "can't allocate memory"  # PyTorch says so of its CPU allocator


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


def run_script(main: Callable[[], int]) -> None:
    """Run `main` and end the process with its exit code.

    A HarnessError becomes one line on stderr. So does a lack of memory, because a student can change that.
    """
    gc.freeze()  # what is imported is never garbage
    gc.enable()
    try:
        code = main()
    except (HarnessError, RuntimeError, MemoryError) as error:
        if isinstance(error, HarnessError):
            told, code = str(error), error.exit_code
        elif is_out_of_memory(error):
            told, code = _without_memory(str(error)), WorkError.exit_code
        else:
            raise
        tell_error(error, error.__traceback__)
        print(f"error: {told}", file=sys.stderr, flush=True)
    gc.freeze()  # Python looks once more when it ends, and PyTorch's modules take it half a second
    sys.exit(code)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed: a GPU's, PyTorch's on a CPU, or Python's own. By name: no torch is needed here."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or (isinstance(error, RuntimeError) and _ON_CPU in str(error))


def _without_memory(message: str) -> str:
    """The part of torch's message with the amounts of memory, and what to try instead of torch's hints for experts."""
    amounts = message.partition(" Including non-PyTorch memory")[0].partition(" Of the allocated memory")[0]
    amounts = amounts[amounts.find(_ON_CPU) :] if _ON_CPU in amounts else amounts or "no memory left"
    amounts = amounts.partition(" Error code")[0]
    return (
        f"{amounts} Try a smaller --micro-batch-size, --seq-length or --model, or --mixed-precision with "
        "--activation-checkpointing"
    )

"""How a training script reports an error: one sentence and an exit code, without a traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable

from harness.common.errors import HarnessError, WorkError

SIGTERM_EXIT_CODE = 143


def run_script(main: Callable[[], int]) -> None:
    """Run `main` and end the process with its exit code.

    A HarnessError becomes one line on stderr. So does a lack of GPU memory, because a student can change that.
    """
    try:
        code = main()
    except HarnessError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        code = error.exit_code
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's; by name, so that this module needs no torch
            raise
        print(f"error: {_without_memory(str(error))}", file=sys.stderr, flush=True)
        code = WorkError.exit_code
    sys.exit(code)


def _without_memory(message: str) -> str:
    """The part of torch's message with the amounts of memory, and what to try instead of torch's hints for experts."""
    amounts = message.partition(" Including non-PyTorch memory")[0].partition(" Of the allocated memory")[0]
    return (
        f"{amounts} Try a smaller --micro-batch-size, --seq-length or --model, or --mixed-precision with "
        "--activation-checkpointing"
    )

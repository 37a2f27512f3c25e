"""How a training script says that it cannot do what was asked: one sentence, an exit code, no traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable

from harness.common.errors import HarnessError, WorkError

SIGTERM_EXIT_CODE = 143


def run_script(main: Callable[[], int]) -> None:
    """Run `main` and leave the process with its exit code.

    A HarnessError becomes one line on stderr, and so does a GPU whose memory is full: a student can change that.
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


def _without_memory(said: str) -> str:
    """What to try, after the sentences in which torch says how much memory there is, and before those for experts."""
    amounts = said.partition(" Including non-PyTorch memory")[0].partition(" Of the allocated memory")[0]
    return (
        f"{amounts} Try a smaller --micro-batch-size, --seq-length or --model, or --mixed-precision with "
        "--activation-checkpointing"
    )

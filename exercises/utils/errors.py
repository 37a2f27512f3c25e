"""How a training script says that it cannot do what was asked: one sentence, an exit code, no traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable

REQUEST_EXIT_CODE = 2
WORK_EXIT_CODE = 1
SIGTERM_EXIT_CODE = 143


class TrainingError(Exception):
    """Training cannot go on, and a person can do something about it."""

    exit_code = WORK_EXIT_CODE


class TrainingRequestError(TrainingError):
    """What was asked of the script cannot be done: a missing file, a value that does not fit the model."""

    exit_code = REQUEST_EXIT_CODE


def run_script(main: Callable[[], int]) -> None:
    """Run `main` and leave the process with its exit code; a TrainingError becomes one line on stderr."""
    try:
        code = main()
    except TrainingError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        code = error.exit_code
    sys.exit(code)

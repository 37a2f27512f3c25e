"""The first import and the last call of a training script.

Importing this module begins the record of the job's time, before PyTorch and the libraries are imported: ruff sorts the
import before all other packages (`isort.sections` in pyproject.toml). It also switches Python's garbage collector off
until `run_script`, because no object that an import makes is garbage: this saves a third of the imports' time.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

from exercises.utils.errors import without_memory
from harness.common.errors import HarnessError, WorkError
from harness.observe import job_time
from harness.observe.last_words import is_out_of_memory, tell_error

gc.disable()
job_time.begin_script()


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
            sentence, code = str(error), error.exit_code
        elif is_out_of_memory(error):
            sentence, code = without_memory(str(error)), WorkError.exit_code
        else:
            raise
        tell_error(error, error.__traceback__)
        print(f"error: {sentence}", file=sys.stderr, flush=True)
    gc.freeze()  # Python collects once more when it ends, and PyTorch's modules take it half a second
    sys.exit(code)

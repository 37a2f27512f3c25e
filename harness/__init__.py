"""Launch, profile, measure and explain distributed AI training.

The Python API for notebooks; docs/api.md shows it. Importing this costs nothing: what is used is loaded then.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.analysis.summary import Summary
    from harness.run import Run


def load_run(token: str) -> Run:
    """A run by job id, name, path, or `last`. Raises RequestError when there is none."""
    from harness.run import find_run  # noqa: PLC0415 - see the module's docstring

    return find_run(token)


def analyse(what: Run | Path | str, window: str = "steps") -> Summary:
    """The numbers of a run, or of trace files and folders that form one job.

    Args:
        what: a run, or a path.
        window: "steps", the profiled steps; "gpu", from the first device event to the last.

    Raises:
        RequestError: the files belong to several jobs.
        WorkError: nothing can be read.
    """
    from harness.analysis import measure  # noqa: PLC0415 - see the module's docstring

    return measure([what if isinstance(what, str | Path) else what.path], window)


__all__ = ["analyse", "load_run"]

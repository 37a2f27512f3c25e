"""Traces to numbers: `measure` gives the Summary of a job. Columns in, parts of a Summary out; launches
nothing.

Importing this package is free: a colleague who only reads a Summary need not wait for numpy.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.analysis.summary import Summary, Window


def measure(paths: Iterable[Path | str], window: Window | str = "steps") -> Summary:
    """The summary of one job: a run's directory, or trace files and folders that form one job.

    Raises RequestError when the files belong to several jobs, WorkError when nothing can be read.
    """
    from harness.analysis.measure_paths import measure_one  # noqa: PLC0415 - see the module's docstring

    return measure_one(paths, window)


__all__ = ["measure"]

"""pytest's side of a part of the test command (scripts/run_tests.py): tells what happens, test by test.

Each event is a line of JSON in the file of HARNESS_TESTS_EVENTS: `collected` with the number of tests, `start`, `end`
with the outcome and the reason, `broken` for a file that cannot be collected. A process that ends without its
last `end` leaves the name of the test that ended it.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, TextIO

import psutil
import pytest

EVENTS = "HARNESS_TESTS_EVENTS"
_PR_SET_PDEATHSIG = 1
_RANK = {"passed": 0, "skipped": 1, "failed": 2}


class _Part:
    """Writes the events; ends the children of a test that was over its limit."""

    def __init__(self, events: TextIO) -> None:
        self._events = events
        self._outcome, self._why = "passed", ""

    def _tell(self, **event: Any) -> None:
        self._events.write(json.dumps(event) + "\n")
        self._events.flush()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        gc.freeze()
        gc.enable()
        self._tell(collected=len(session.items))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._tell(broken=report.nodeid, why=report.longreprtext)
        elif report.skipped and isinstance(report.longrepr, tuple):  # a whole module
            self._tell(left_out=report.nodeid, why=report.longrepr[2])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._outcome, self._why = "passed", ""
        self._tell(start=nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        own = psutil.Process()
        before = set(own.children(recursive=True))
        try:
            return (yield)
        except pytest.fail.Exception as error:
            if "Timeout" in str(error):
                _end([child for child in own.children(recursive=True) if child not in before])
            raise

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """After the setup, the call and the teardown of a test."""
        if _RANK[report.outcome] > _RANK[self._outcome]:
            self._outcome = report.outcome
            self._why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
            self._why += "".join(f"\n--- {name}\n{text}" for name, text in report.sections if report.failed)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._tell(end=nodeid, outcome=self._outcome, why=self._why)


def _end(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=10)


def pytest_configure(config: pytest.Config) -> None:
    """Where the runner is gone, this process ends too, so its fixtures end their clusters and trainings."""
    path = os.environ.get(EVENTS)
    if path is None:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)
    gc.disable()  # until all is collected: no object that an import makes is garbage
    config.pluginmanager.register(_Part(open(path, "w", encoding="utf-8")))  # noqa: SIM115, PTH123 - open to the end

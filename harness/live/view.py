"""All that is known of a watched run at one moment: its state, its heartbeats, and the sentences about it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from harness.common.errors import WorkError
from harness.heartbeats.model import Live, RunProgress
from harness.heartbeats.read import Reader
from harness.heartbeats.time_limit import Note
from harness.live.notes import notes
from harness.run import Run
from harness.run.state import RunState

_MISSING = "This run has no heartbeats: it has just begun, or its monitor does not run."


class RunView(NamedTuple):
    """A run at one moment. missing: why nothing is known of its ranks; empty: there are heartbeats, or it waits."""

    run: Run
    job_id: str
    user: str
    state: RunState
    live: Live
    progress: RunProgress
    notes: list[Note]
    missing: str = ""

    @property
    def now_ns(self) -> int:
        """Unix time of the moment."""
        return self.live.now_ns

    @property
    def first_sentence(self) -> str:
        """The most urgent of what is to be said."""
        return self.notes[0].sentence if self.notes else self.state.why or self.missing


class WatchedRun:
    """A run that is looked at again and again."""

    def __init__(self, run: Run, now_ns: Callable[[], int] = time.time_ns) -> None:
        self.run = run
        try:
            self.job_id, self._user, self._warning_s = (run.job_id, run.record.user, run.record.site.signal_seconds)
        except WorkError:  # its record is lost
            self.job_id, self._user, self._warning_s = run.name, "", 0
        self._reader = Reader(run.path, self.job_id, now_ns)

    def look(self, run_state: RunState) -> RunView:
        """The run now. run_state: its state, as `status` has it."""
        live = self._reader.read()
        live.began_ns, live.deadline_ns, live.warning_s = run_state.began_ns, run_state.deadline_ns, self._warning_s
        live.suspended = run_state.suspended
        return RunView(
            run=self.run,
            job_id=self.job_id,
            user=self._user,
            state=run_state,
            live=live,
            progress=live.progress(),
            notes=notes(live) if live.there and run_state.state in ("running", "unknown") else [],
            missing="" if live.there or run_state.state == "queued" else _MISSING,
        )

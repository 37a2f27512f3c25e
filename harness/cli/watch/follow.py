"""A run followed to its end: the new text of its logs, without lines that only a tool reads, then its report."""

from __future__ import annotations

import codecs
import json
import os
import re
import shlex
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO

from harness.cli.terminal import columns, show
from harness.common.display.format import amount
from harness.common.display.printable import printable_lines, unguarded
from harness.common.errors import HarnessError, WorkError
from harness.common.paths import COMMAND
from harness.common.system.bounded_read import open_regular, why_unread
from harness.common.system.users import this_user
from harness.launch.argv import quote_all
from harness.launch.backends.registry import backend_of_run
from harness.launch.cancel import cancel
from harness.launch.poll import look_at, state_of
from harness.run import Run
from harness.run.record import FINAL, State

if TYPE_CHECKING:
    from harness.analysis.summary import Summary

MOST_BYTES = 16 << 20  # of what is there before the first look
_BLOCK = 1 << 20
_LONGEST_LINE = 1 << 16  # a cut before the end of a longer line stays in it

# PyTorch's profiler writes these marks to stderr when it starts and stops. A KINETO_LOG_LEVEL that hides them also
# hides the profiler's errors, as the marks have the highest level. So they stay in the log and are left out here.
_MARK = rb"USDT:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \d+:\d+ \w+\.cpp:\d+\] profiler_(?:start|stop)"
# Ranks write at the same time: the line ends may follow all of the marks.
_MARKS = re.compile(rb"((?:" + _MARK + rb"\n?)+)(\n*)")
_UNFINISHED = re.compile(rb"USDT:[^\n]{0,200}\Z")
# Colours and bold face; and what a bar of progress begins its line anew with.
_KEPT_AT_TERMINAL = re.compile(r"(\x1b\[[0-9;:]{0,60}m|\r)")
_UNFINISHED_COLOUR = re.compile(rb"\x1b(?:\[[0-9;:]{0,60})?\Z")
_PLAIN = "\x1b[0m"
GRACE_S = 60


class Tail:
    """The text that was added to a file since the last read, of a huge file only the end. trouble: why none is read."""

    def __init__(self, path: Path, stream: TextIO) -> None:
        self.path, self._out = path, unguarded(stream)
        self.trouble = ""
        self._position: int | None = None
        self._terminal = self._out.isatty()
        self._held, self._coloured = b"", False
        # A read may end within a character; the next read gets its other bytes.
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def pump(self, last: bool = False) -> None:
        """Write the new text; `last`: no more text follows, so nothing is held back."""
        try:
            with open_regular(self.path) as file:
                self._pump(file)
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            self.trouble = f"{self.path}: {why_unread(error)}"
        if last:
            self._show(b"", last)

    def _pump(self, file: BinaryIO) -> None:
        size = os.fstat(file.fileno()).st_size
        if self._position is None:
            self._position = self._beginning(file, size)
        file.seek(self._position)
        while self._position < size and (new := file.read(min(_BLOCK, size - self._position))):
            self._position += len(new)
            self._show(new, last=False)

    def _beginning(self, file: BinaryIO, size: int) -> int:
        if size <= MOST_BYTES:
            return 0
        begin = size - MOST_BYTES
        file.seek(begin)
        begin += file.read(_LONGEST_LINE).find(b"\n") + 1
        print(
            f"{self.path} has {amount(size)}: the first {amount(begin)} are not shown; "
            f"to see all: less {shlex.quote(str(self.path))}",
            file=sys.stderr,
        )
        return begin

    def _show(self, new: bytes, last: bool) -> None:
        text = self._held + new
        self._held = b"" if last else self._unfinished(text)
        self._write(_MARKS.sub(_without, text[: len(text) - len(self._held)]), last)
        self._out.flush()

    def _unfinished(self, text: bytes) -> bytes:
        colour = _UNFINISHED_COLOUR.search(text) if self._terminal else None
        return colour[0] if colour else _unfinished(text)

    def _write(self, new: bytes, last: bool) -> None:
        raw = None if self._terminal else getattr(self._out, "buffer", None)
        if raw is not None:
            self._out.flush()  # what was written as text comes first
            raw.write(new)
            return
        text = self._decoder.decode(new, final=last)
        if self._terminal:
            self._coloured |= "\x1b[" in text
            text = at_terminal(text) + _PLAIN * (last and self._coloured)
        self._out.write(text)


def at_terminal(text: str) -> str:
    """A log's text for a terminal: with its colours, without other control characters.

    >>> at_terminal("\\x1b[31mred\\x1b[0m \\x1b]0;title\\x07\\x1b[2Jgone")
    '\\x1b[31mred\\x1b[0m ]0;title[2Jgone'
    """
    parts = _KEPT_AT_TERMINAL.split(text)
    return "".join(part if i % 2 else printable_lines(part) for i, part in enumerate(parts))


def _unfinished(text: bytes) -> bytes:
    """The end of the text that may become a mark, or a mark whose line end has not come yet."""
    begun = _UNFINISHED.search(text)
    last = [m for m in _MARKS.finditer(text) if m.end() == len(text)]
    marks = [m for m in last if m[0].count(b"\n") < m[0].count(b"USDT:")]
    starts = [m.start() for m in (begun, *marks) if m]
    return text[min(starts) :] if starts else b""


def _without(match: re.Match[bytes]) -> bytes:
    """Marks and the line ends after them are replaced by the line ends that are not theirs."""
    theirs = match[1].count(b"USDT:") - match[1].count(b"\n")
    return match[2][theirs:]


def tails(run: Run) -> list[Tail]:
    """The run's logs, each with the stream it is written to."""
    to_stderr = (run.err, *backend_of_run(run).logs(run))
    return [Tail(run.out, sys.stdout), *(Tail(path, sys.stderr) for path in to_stderr)]


def follow(run: Run, quiet: bool, as_json: bool) -> int:
    state = watch(run, quiet)
    print(f"{state}: {run.path}", file=sys.stderr)
    if reason := look_at(run).why:
        print(f"{state}: {reason}", file=sys.stderr)
    summaries, page = write_report(run)
    if as_json:
        payload = {"job_id": run.job_id, "name": run.name, "path": str(run.path), "state": state}
        print(json.dumps(payload | {"summary": str(run.summary) if run.summary.is_file() else None}))
    else:
        _show_report(run, summaries, not quiet, page)
        _tell_laptop(run, page)
    if state != "completed":
        print(f"its output: {COMMAND} logs {run.job_id}", file=sys.stderr)
    return 0 if state == "completed" else 1


def watch(run: Run, quiet: bool) -> State:
    with _interruptible(run):
        return wait_for_end(run, [] if quiet else tails(run))
    return state_of(run)  # Ctrl-C stopped it


def complete(run: Run, quiet: bool, ends: State = "completed") -> None:
    """Wait until the run has ended, and write its report. Raises WorkError: it did not end in the state `ends`."""
    state = watch(run, quiet)
    print(f"{state}: {run.path}", file=sys.stderr)
    if state != ends:
        wished = "did not complete" if ends == "completed" else f"should have ended as {ends}"
        raise WorkError(f"{run.job_id} {wished} ({state}): {COMMAND} logs {run.job_id}")
    if (page := write_report(run)[1]) is not None:
        print(f"the page: {page}", file=sys.stderr)
        _tell_laptop(run, page)


def wait_for_end(run: Run, outputs: list[Tail]) -> State:
    """Poll until the state is final, or unknown for GRACE_S while the scheduler answers; show `outputs` meanwhile."""
    unknown_since: float | None = None
    shown = ""
    while True:
        look = look_at(run)
        state = look.state
        for tail in outputs:
            tail.pump(last=state in FINAL)
        if state in FINAL:
            return state
        unknown_since = (unknown_since or time.monotonic()) if state == "unknown" and not look.silent else None
        if unknown_since and time.monotonic() - unknown_since > GRACE_S:
            return state
        if look.why and look.why != shown and (outputs or state != "running"):
            print(f"{state}: {look.why}", file=sys.stderr)
            shown = look.why
        time.sleep(backend_of_run(run).POLL_S)


@contextmanager
def _interruptible(run: Run) -> Iterator[None]:
    """Ctrl-C stops a run that this terminal holds; of a run elsewhere it only ends the watching."""
    try:
        yield
    except KeyboardInterrupt:
        if not backend_of_run(run).HELD:
            next_commands = f"{COMMAND} logs {run.job_id} -f · {COMMAND} cancel {run.job_id}"
            print(f"\nstill running: {next_commands}", file=sys.stderr)
            raise
        print("\nstopping: the traces so far are kept (a second Ctrl-C ends this wait, not the run)", file=sys.stderr)
        cancel(run)
        wait_for_end(run, [])


def write_report(run: Run) -> tuple[list[Summary], Path | None]:
    """Write the run's summary and page, and return both; where nothing can be measured, print the reason."""
    from harness.measure.of_run import can_be_measured, measured
    from harness.report.page.write import write_pages

    if not can_be_measured(run):
        return [], None
    try:
        found = measured(run, with_page=True)
    except HarnessError as error:
        print(f"no report: {error}", file=sys.stderr)
        return [], None
    pages: list[Path] = []
    try:
        pages = write_pages([str(run.path)], found, None)
    except HarnessError as error:
        print(f"no page: {error}", file=sys.stderr)
    return found.summaries, next(iter(pages), None)


def _tell_laptop(run: Run, page: Path | None) -> None:
    """The command by which a laptop gets the folder of a run elsewhere."""
    if page is None or backend_of_run(run).RUNS_HERE:
        return
    host = run.record.site.login or socket.getfqdn()
    typed = quote_all(["scp", "-r", f"{this_user()}@{host}:{run.path.absolute()}", "."])
    print(f"type on your laptop, for page and traces: {typed}", file=sys.stderr)


def _show_report(run: Run, summaries: list[Summary], is_shown: bool, page: Path | None) -> None:
    """The report, without the lines that the run's own output has just shown."""
    from harness.report.exercise_0.terminal import is_comm_run, render_comm
    from harness.report.first_screen import first_screen, whole_report
    from harness.report.tables.table import WIDTH

    if is_comm_run(run.path):
        show(render_comm(run.path, is_shown))
    for s in summaries if not is_comm_run(run.path) else ():
        show(first_screen(s, columns(WIDTH), more=whole_report([run.job_id], s), page=page))

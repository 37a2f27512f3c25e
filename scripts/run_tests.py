"""Runs all tests in processes of pytest, a part of the tests in each, and closes with one line of totals.

    run_tests.py RESULTS [pytest's options]     RESULTS: an existing folder for what the parts print

A part is a folder of tests, or several. pytest-xdist is not used: where one of its workers is lost, the run waits for
ever (docs/development/decisions/004-tests.md). Here a test over its limit fails alone, a part whose process is lost is
named with the test that it ran, and a test that did not run counts as failed. What a part leaves running is ended a
minute after the last test, named, and counts as a failure too.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.leftovers import OF_PART  # noqa: E402
from tests.part import EVENTS  # noqa: E402
from tests.waiting import limit_s  # noqa: E402

SLOTS = 3  # parts at a time on two cores: tests wait for jobs of Slurm, ranks and programs
TEST_LIMIT_S = 300.0  # of one test, its fixtures included, on an idle machine
NEWS_S = 30.0  # between two lines that say how far it is
LEFTOVERS_S = 60.0  # how long after the last test a process may still be there
_PR_SET_CHILD_SUBREAPER = 36
_NO_TESTS = 5  # pytest's exit code
_SHOWN_LINES = 60

# What is likely to fail and what waits long comes first; last what keeps a core busy. A folder that is named nowhere
# here is a part of its own.
FIRST: tuple[tuple[str, ...], ...] = (
    ("tests/slurm",),  # one cluster
    ("tests/launch",),
    ("tests/exercises", "tests/exercise_3"),  # the trainings of the exercises
    ("tests/container", "tests/faults", "tests/gpu"),
    ("tests/own", "tests/observe"),
    ("tests/study",),
    ("tests/bootstrap", "tests/wheel", "tests/exercise_0"),
    ("tests/common", "tests/doctor", "tests/heartbeats", "tests/live", "tests/monitor"),
    ("tests/report", "tests/export"),  # one browser
    ("tests/repo",),
    ("tests/replay", "tests/run", "tests/simulated", "tests/theory"),
    ("tests/traces",),
    ("tests/analysis",),
)


class Part(NamedTuple):
    """One process: its name, and what it runs."""

    name: str
    argv: list[str]
    tests: bool = True  # else a command whose exit code tells


@dataclass
class Running:
    """A part whose process runs, and what it has told so far."""

    part: Part
    process: subprocess.Popen[bytes]
    output: Path
    events: Path
    began_s: float = field(default_factory=time.monotonic)
    read_bytes: int = 0
    collected: int | None = None
    outcomes: Counter[str] = field(default_factory=Counter)
    current: str | None = None
    last_event_s: float = field(default_factory=time.monotonic)
    is_lost: bool = False

    def news(self) -> Iterator[dict[str, Any]]:
        """The events since the last look."""
        with suppress(FileNotFoundError), self.events.open("rb") as file:
            file.seek(self.read_bytes)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self.read_bytes += len(line)
                yield json.loads(line)


class Run:
    """All parts, a few at a time."""

    def __init__(self, parts: Sequence[Part], results: Path) -> None:
        self._waiting = list(parts)
        self._results = results
        self._running: dict[int, Running] = {}
        self._totals: Counter[str] = Counter()
        self._skips: Counter[str] = Counter()
        self._began_s = self._told_s = time.monotonic()

    def all(self) -> int:
        """Runs them; 0 if everything passed, 1 if not, 130 if it was interrupted."""
        interrupted = False
        _become_subreaper()
        for number in (signal.SIGINT, signal.SIGTERM):  # a shell ignores SIGINT for what it starts in the background
            signal.signal(number, signal.default_int_handler)
        try:
            while self._waiting or self._running:
                while self._waiting and len(self._running) < SLOTS:
                    self._start(self._waiting.pop(0))
                self._look()
                self._tell_progress()
                time.sleep(0.1)
        except KeyboardInterrupt:
            interrupted = True
            self._interrupt()
        self._name_leftovers()
        self._close()
        return 130 if interrupted else 1 if self._totals["failed"] else 0

    def _start(self, part: Part) -> None:
        output, events = self._results / f"{part.name}.txt", self._results / f"{part.name}.jsonl"
        with output.open("wb") as out:
            process = subprocess.Popen(
                part.argv, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                env={**os.environ, EVENTS: str(events), OF_PART: part.name}, start_new_session=True,
            )  # fmt: skip
        self._running[process.pid] = Running(part, process, output, events)

    def _look(self) -> None:
        for running in self._running.values():
            self._read(running)
            self._end_if_stuck(running)
        for pid, status in _ended_children():
            if pid in self._running:
                running = self._running.pop(pid)
                running.process.returncode = os.waitstatus_to_exitcode(status)
                self._read(running)
                self._account(running)

    def _tell_progress(self) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s < NEWS_S:
            return
        self._told_s = now_s
        parts = [
            f"{each.part.name} {each.outcomes.total()} of {each.collected}" if each.collected else each.part.name
            for each in self._running.values()
        ]
        minutes, seconds = divmod(int(now_s - self._began_s), 60)
        _say(f"{minutes}:{seconds:02} {', '.join(parts)}; {len(self._waiting)} more parts wait")

    def _read(self, running: Running) -> None:
        for event in running.news():
            running.last_event_s = time.monotonic()
            if "collected" in event:
                running.collected = event["collected"]
            elif "start" in event:
                running.current = event["start"]
            elif "end" in event:
                running.current = None
                running.outcomes[event["outcome"]] += 1
                if event["outcome"] == "failed":
                    _show(event["end"], event["why"])
                elif event["outcome"] == "skipped":
                    self._skips[event["why"]] += 1
            elif "broken" in event:
                running.outcomes["failed"] += 1
                _show(event["broken"], event["why"])
            else:
                self._skips[event["why"]] += 1

    def _end_if_stuck(self, running: Running) -> None:
        """pytest-timeout fails a test that Python can interrupt; this is for all else, also between tests."""
        over = time.monotonic() - running.last_event_s > limit_s(TEST_LIMIT_S) + 60
        if running.part.tests and over and not running.is_lost:
            running.is_lost = True
            _say(f"{running.part.name} says nothing any more and is ended; it was in {running.current or 'no test'}")
            os.kill(running.process.pid, signal.SIGABRT)  # faulthandler prints the stacks

    def _account(self, running: Running) -> None:
        """The counts of a part that has ended."""
        name, code, counts = running.part.name, running.process.returncode, running.outcomes
        if not running.part.tests:
            counts["failed"] += code != 0
            print(running.output.read_text(errors="replace"), end="", flush=True)
        else:
            missing = (running.collected or 0) - counts["passed"] - counts["failed"] - counts["skipped"]
            if code not in (0, 1, _NO_TESTS) or missing > 0 or running.collected is None:
                where = running.current or "no test"
                counts["failed"] += max(missing, 1)
                _show(where, f"the process of {name} ended with {code} in it; {max(missing, 0)} tests did not run\n"
                      + running.output.read_text(errors="replace"))  # fmt: skip
        self._totals += counts
        seconds = time.monotonic() - running.began_s
        counted = ", ".join(f"{counts[each]} {each}" for each in ("passed", "failed", "skipped") if counts[each])
        mark = "FAILED" if counts["failed"] else "ok    "
        _say(f"{mark} {name}: {counted or 'done'} in {seconds:.0f} s")

    def _interrupt(self) -> None:
        _say("interrupted: the tests that run are ended")
        for pid in self._running:
            os.kill(pid, signal.SIGINT)
        end_s = time.monotonic() + LEFTOVERS_S
        while self._running:
            self._look()
            time.sleep(0.1)
            if time.monotonic() > end_s:
                _kill(_descendants())
        _kill(_descendants())
        for part in self._waiting:
            self._totals["failed"] += 1
            _say(f"{part.name} did not run")

    def _name_leftovers(self) -> None:
        """All processes that the tests started, also those that left their parents, are children of this one."""
        end_s = time.monotonic() + LEFTOVERS_S
        while (left := _descendants()) and time.monotonic() < end_s:
            time.sleep(0.2)
            list(_ended_children())
        for process in left:
            self._totals["failed"] += 1
            _say(f"left running by {_described(process)}")
        _kill(left)

    def _close(self) -> None:
        if self._skips:
            _say("skipped, and why:")
            for why, count in self._skips.most_common():
                print(f"  {count:>4}  {why.removeprefix('Skipped: ')}")
        _say(f"{(time.monotonic() - self._began_s) / 60:.1f} minutes")
        print(f"{self._totals['passed']} passed, {self._totals['failed']} failed, {self._totals['skipped']} skipped")


def _become_subreaper() -> None:
    """What a part leaves behind becomes a child of this process, which finds it at the end."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _say(words: str) -> None:
    print(f"== {words}", flush=True)


def _show(test: str, why: str) -> None:
    """A failure as soon as it happens, with the command that repeats it alone."""
    lines = why.splitlines()
    cut = [f"… ({len(lines) - _SHOWN_LINES} lines before)"] if len(lines) > _SHOWN_LINES else []
    again = f"again: bash scripts/test '{test}'"
    print("", f"== FAILED {test}", *cut, *lines[-_SHOWN_LINES:], again, "", sep="\n", flush=True)


def _ended_children() -> Iterator[tuple[int, int]]:
    """Each child that has ended, a part or an orphan, with its status."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        yield pid, status


def _descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _described(process: psutil.Process) -> str:
    """The test that started it, from the environment that it inherited, or its part; and what it is."""
    with suppress(psutil.Error):
        variables = process.environ()
        test = variables.get("PYTEST_CURRENT_TEST") or variables.get(OF_PART) or "a test that did not leave its name"
        return f"{test}: process {process.pid}, {' '.join(process.cmdline())[:200]}"
    return f"a test: process {process.pid}, which has ended"


def parts(options: Sequence[str], results: Path) -> list[Part]:
    """The checks, and every folder of tests. What a test writes lies in the results, also when the next parts run."""
    python = sys.executable
    folders = sorted({file.relative_to(ROOT).parts[1] for file in ROOT.glob("tests/*/**/test_*.py")})
    left = [(f"tests/{name}",) for name in folders if not any(f"tests/{name}" in part for part in FIRST)]
    argv = [
        python, "-m", "pytest", "-p", "tests.part", "-m", "not gpu", "-q", "--continue-on-collection-errors",
        "--hypothesis-profile=ci", f"--timeout={limit_s(TEST_LIMIT_S):.0f}", "-p", "no:cacheprovider", *options,
    ]  # fmt: skip
    named = {paths[0].removeprefix("tests/"): paths for paths in (*FIRST, *left)}
    tests = [Part(name, [*argv, f"--basetemp={results}/{name}", *paths]) for name, paths in named.items()]
    return [*tests[:1], Part("checks", ["bash", "scripts/check"], tests=False), *tests[1:]]


def main() -> int:
    results, *options = sys.argv[1:]
    limit_s()  # measured once, before anything runs; the parts inherit it
    return Run(parts(options, Path(results)), Path(results)).all()


if __name__ == "__main__":
    sys.exit(main())

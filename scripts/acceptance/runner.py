"""Run one step after the other, each in its own process with its own time limit, so that a failure stays in its step.

Keeps acceptance.json current after every step, so that nothing is lost when the whole is stopped.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from failures import LackError, StepError
from pack import pack_outputs
from page import page
from place import ROOT, Place, run
from results import Result, read_json, read_results, result_from, write_result, write_results
from runs import forget
from steps import STEPS, Step

ENDING_S = 50.0  # a step that must stop first stops its run
SIGNS = {"done": "done", "lacks": "lacks", "failed": "FAILED", "partial": "partly", "waiting": "not yet"}


class Runner:
    """The whole list over one OUT folder."""

    def __init__(self, place: Place, say: Callable[[str], None]) -> None:
        self._place, self._say = place, say
        self._document = place.out / "acceptance.json"
        known = read_results(self._document)
        self._results = {step.name: known.get(step.name, Result(step.name)) for step in STEPS}

    def run(self, steps: list[Step], again: bool) -> int:
        """Do these steps until the time is over; returns 1 if a step failed or is not done yet, else 0."""
        for step in steps:
            before = self._results[step.name]
            if before.state == "done" and not again:
                self._say(f"{step.name}: done before (--again repeats it)")
                continue
            if again:
                _forget(self._place, step)
            self._results[step.name] = self._one(step)
            self._write()
            self._tell(step)
        asked = [self._results[step.name] for step in steps]
        self._close(asked)
        return int(any(result.state in ("failed", "partial", "waiting") for result in asked))

    def _one(self, step: Step) -> Result:
        if self._place.seconds_left < step.least_s:
            return Result(step.name, "waiting", f"no time left: it needs {step.least_s:.0f} s and more")
        seconds = self._place.seconds_for(step.seconds)
        self._say(f"{step.name}: {step.title} (at most {seconds:.0f} s) …")
        begin = time.monotonic()
        try:
            result = self._process(step, seconds)
        except OSError as error:  # for example a full disk
            result = Result(step.name, "failed", f"{error.filename}: {error.strerror}")
        return replace(result, seconds=time.monotonic() - begin)

    def _process(self, step: Step, seconds: float) -> Result:
        """A step's result, from its own process. A step keeps to its time; the limit here is for one that hangs."""
        written = self._place.work / "results" / f"{step.name}.json"
        written.unlink(missing_ok=True)
        argv: list[str | Path] = [sys.executable, ROOT / "scripts" / "acceptance", self._place.out]
        argv += ["--work", self._place.work, "--step", step.name, "--budget", f"{seconds:.0f}"]
        log = self._place.out / "acceptance.log"
        done = run(argv, seconds + ENDING_S, os.environ, log, grace_s=ENDING_S)
        found = read_json(written)
        if found is not None:
            return result_from(found)
        ending = "its time limit was reached" if done.code is None else done.ending
        return Result(step.name, "failed", f"it ended without a result: {ending}")

    def _tell(self, step: Step) -> None:
        result = self._results[step.name]
        for check in result.checks:
            self._say(f"  {check.verdict:5} {check.name}: {check.said}")
        why = f": {result.reason}" if result.reason else ""
        self._say(f"{step.name}: {SIGNS[result.state]} in {result.seconds:.0f} s{why}")

    def _write(self) -> None:
        """Write all results after every step, as the whole command may be ended at any time."""
        results = list(self._results.values())
        write_results(self._document, results)
        titles = {step.name: step.title for step in STEPS}
        (self._place.out / "acceptance.html").write_text(page(results, titles), encoding="utf-8")
        pack_outputs(self._place)

    def _close(self, asked: list[Result]) -> None:
        counts = {verdict: sum(result.count(verdict) for result in asked) for verdict in ("pass", "fail", "lacks")}
        self._say(f"{counts['pass']} checks hold, {counts['fail']} do not, {counts['lacks']} cannot be checked here")
        open_steps = [r.step for r in asked if r.state in ("failed", "partial", "waiting")]
        if open_steps:
            self._say(f"not done: {', '.join(open_steps)}; the same command continues there")
        self._say(f"results: {self._place.out / 'acceptance.html'}")


def _forget(place: Place, step: Step) -> None:
    """Remove the earlier outputs of a step that is done again."""
    if step.name == "training":
        from step_training import LARGER, NAMES

        forget(place, [*NAMES, LARGER])
    if step.name == "others":
        forget(place, ["megatron-tp1-pp1", "zero-3", "zero-2"])
    if step.name == "nsys":
        forget(place, ["nsys"])
    if step.name in ("compiled", "faults"):
        shutil.rmtree(place.work / "loops", ignore_errors=True)


def do_step(step: Step, place: Place) -> int:
    """Do the step in its own process, and write its result also after a failure."""
    result = Result(step.name)
    written: Path = place.work / "results" / f"{step.name}.json"
    try:
        step.work(place, result)
        if result.state == "waiting":
            result.state = "done"
    except LackError as lack:
        result.state, result.reason = "lacks", str(lack)
    except (StepError, OSError) as error:
        result.state, result.reason = "failed", str(error)
    except KeyboardInterrupt:
        result.state, result.reason = "partial", "its time limit was reached"
    except Exception as error:  # noqa: BLE001 - a bug in one step must not cost what it found
        traceback.print_exc()
        result.state, result.reason = "failed", f"{type(error).__name__}: {error}"
    write_result(written, result)
    return 0

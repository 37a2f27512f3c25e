"""Unchanged trainings hang and die as they are asked to: on that rank, and in that step."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.common.faults.declared import HANGS_ALONE, HANGS_IN_COLLECTIVE
from tests.exercises.ending_ranks import all_ended
from tests.own.observed_trainings import TIMEOUT_S, Running, start, training_of
from tests.waiting import limit_s, wait_until

pytestmark = [pytest.mark.train]

STEPS, STEP = 8, 3
LOOKED_AT_S = 2.0  # in which a hanging training writes nothing


@contextmanager
def trained_with(fault: str, folder: Path) -> Iterator[Running]:
    """A training whose rank 1 has the fault; at the end nothing of it is left."""
    asked = {"faults": [f"{fault},step={STEP}"], "profiler": "none"}
    running = start(training_of("plain_ddp"), folder, ["--steps", str(STEPS)], asked=asked)
    with all_ended(running.process):
        yield running


def faults_of(running: Running, rank: int) -> list[tuple[int, str]]:
    """(step, fault) of the lines that a rank wrote."""
    path = running.folder / f"faults/rank{rank}.jsonl"
    lines = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return [(line["step"], line["fault"]) for line in lines]


HANGS = {f"hang,kind={kind},rank=1": "" for kind in (*HANGS_ALONE, *HANGS_IN_COLLECTIVE)}
DEATHS = {  # and what is in the log then
    "crash,rank=1": "RuntimeError: this step failed",
    "oom,rank=1": "MemoryError",
    "crash,kind=exit,rank=1": "exitcode  : 3",
    "crash,kind=segv,rank=1": "SIGSEGV",
    "crash,kind=abort,rank=1": "SIGABRT",
    "crash,kind=kill,rank=1": "SIGKILL",
    "crash,kind=gone,rank=1": "Connection",
}


@pytest.mark.long
@pytest.mark.parametrize(("fault", "said"), (HANGS | DEATHS).items(), ids=HANGS | DEATHS)
def test_a_training_of_one_s_own_hangs_or_dies(fault: str, said: str, tmp_path: Path) -> None:
    with trained_with(fault, tmp_path / "run") as running:
        if said:
            assert running.process.wait(limit_s(TIMEOUT_S)) == 1, "what torchrun ends with"
            assert said in running.log
        else:
            wait_until(lambda: faults_of(running, 1), "the fault", lambda: running.log, TIMEOUT_S)
            time.sleep(LOOKED_AT_S)  # one that does not hang writes meanwhile
            assert running.process.poll() is None, running.log
            assert not any((running.folder / f"truth.rank{rank}").exists() for rank in (0, 1)), "its loop has not ended"
        assert (faults_of(running, 0), faults_of(running, 1)) == ([], [(STEP, fault.partition(",")[0])])
        assert "observer: off" not in running.log

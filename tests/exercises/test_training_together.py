"""Ranks whose parameters differ are detected, and a signal stops all ranks together: two real processes each."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the training scripts need PyTorch")

from exercises.utils.stop import StopRequest  # noqa: E402
from exercises.utils.synchronisation import SynchronisationCheck  # noqa: E402
from harness.common.errors import WorkError  # noqa: E402 - needs torch
from tests.exercises.ending_ranks import forkserver  # noqa: E402
from tests.waiting import limit_s, wait_until  # noqa: E402

pytestmark = pytest.mark.train


def _in_two_processes(work: Any, *arguments: Any) -> list[Any]:
    """Results of `work(rank, *arguments)` in two processes that share a gloo group."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = forkserver()
    answers: Any = context.Queue()
    started = [context.Process(target=_member, args=(rank, port, answers, work, arguments)) for rank in range(2)]
    for process in started:
        process.start()
    results = dict(answers.get(timeout=limit_s()) for _ in started)
    for process in started:
        process.join(limit_s())
    return [results[rank] for rank in range(2)]


def _member(rank: int, port: int, answers: Any, work: Any, arguments: tuple[Any, ...]) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    answers.put((rank, work(rank, *arguments)))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def _update_alone(rank: int, together: bool) -> str:
    parameter = torch.nn.Parameter(torch.ones(3))
    check = SynchronisationCheck([parameter])
    with torch.no_grad():
        parameter += 1.0 if together else 1.0 + rank
    try:
        for phase in ("active", ("active", "after")[rank], "wait"):  # recorded by the clock, and by steps
            check.after_update(phase)
            torch.distributed.barrier()
    except WorkError as error:
        return str(error)
    return "passed"


def test_ranks_whose_parameters_drift_apart_are_caught() -> None:
    assert _in_two_processes(_update_alone, True) == ["passed", "passed"]
    for said in _in_two_processes(_update_alone, False):
        assert "parameters differ between ranks" in said


def _stop_of_one(rank: int, lead: int) -> int:
    stop = StopRequest()
    if rank == 1:
        os.kill(os.getpid(), 15)
    for step in range(100):
        if stop.before(step, lead=lead):
            assert stop.exit_code == 143
            return step
        if step % lead == lead - 1:
            torch.distributed.barrier()  # like an optimizer step in a training
    return -1


@pytest.mark.parametrize("lead", [1, 4])
def test_a_signal_to_one_rank_stops_all_before_the_same_step(lead: int) -> None:
    assert _in_two_processes(_stop_of_one, lead) == [lead, lead]


def _leave(rank: int) -> tuple[float, float]:
    """When this rank came to its last step, and when it was let go."""
    stop = StopRequest()
    if rank == 0:
        os.kill(os.getpid(), 15)
    for step in range(2):
        torch.distributed.barrier()
        time.sleep(0.5 * rank)  # the rank without the store comes later
        came = time.monotonic()
        if stop.before(step):
            break
    return came, time.monotonic()


def test_the_rank_that_holds_the_store_stays_until_the_others_have_looked() -> None:
    (_, left), (came, _) = _in_two_processes(_leave)
    assert left >= came


def test_a_rank_that_hangs_after_a_signal_writes_where(tmp_path: Path) -> None:
    words = """
import os, time
from exercises.utils import stop
stop.STACKS_S = 0.3
stop.StopRequest()
def collective_that_never_ends():
    time.sleep(600)
os.kill(os.getpid(), 15)
collective_that_never_ends()
"""
    log = tmp_path / "log"
    with log.open("w") as file, subprocess.Popen([sys.executable, "-c", words], stderr=file) as hangs:
        try:
            wait_until(lambda: "in collective_that_never_ends" in log.read_text(), "the stacks", log.read_text)
        finally:
            hangs.kill()

"""The simulated machine, held against times that were worked out by hand; and the simulator's independence."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import gpu_jobs
import pytest
from gpu_jobs.machine import Costs, Loader, Machine
from gpu_jobs.program import (
    COMM,
    COMPUTE,
    US,
    Begin,
    Call,
    Compute,
    End,
    Fetch,
    Follow,
    Instruction,
    Launch,
    Message,
    Record,
    Recording,
    Wait,
    Work,
)
from gpu_jobs.simulate import run_step_ns
from gpu_jobs.training import Training

COSTS = Costs(latency_ns=0, gap_ns=0, event_ns=0, wake_ns=0)


def kernel(ns: int, stream: int = COMPUTE) -> Launch:
    return Launch(partial(Work, "k", stream, ns), "cudaLaunchKernel", US)


def run(*programs: Sequence[Instruction], costs: Costs = COSTS) -> list[Recording]:
    return Machine(programs, costs).run()


def spans(recording: Recording) -> list[tuple[int, int]]:
    return [(work.start, work.end) for work, _ in recording.work]


def test_a_kernel_begins_when_it_was_launched_and_its_stream_is_free() -> None:
    (one,) = run([kernel(5 * US), kernel(5 * US), Compute(20 * US), kernel(US)])
    assert spans(one) == [(US, 6 * US), (6 * US, 11 * US), (23 * US, 24 * US)]


def test_a_host_waits_where_too_many_launches_are_ahead_of_the_device() -> None:
    (one,) = run([kernel(10 * US)] * 4, costs=replace(COSTS, depth=2))
    assert [call.end for call in one.calls] == [US, 2 * US, 3 * US, 12 * US]


def test_a_stream_that_follows_an_event_begins_after_it() -> None:
    (one,) = run([kernel(9 * US), Record("e", COMPUTE), Follow(COMM, "e"), kernel(US, COMM)])
    assert spans(one)[1] == (10 * US, 11 * US)


def test_a_message_is_done_after_its_last_rank_has_come() -> None:
    def sends(late: int) -> list[Instruction]:
        message = Message(("m", 1), "all_reduce", (0, 1), 8, "Float", "0", 4 * US)
        return [Compute(late), Launch(partial(Work, "nccl", COMM, 0, message=message), "launch", US)]

    first, second = run(sends(0), sends(30 * US))
    assert spans(first) == [(US, 35 * US)]
    assert spans(second) == [(31 * US, 35 * US)]


def test_ranks_that_wait_for_each_other_for_ever_are_named() -> None:
    message = Message(("m", 1), "all_reduce", (0, 1), 8, "Float", "0", US)
    alone: list[Instruction] = [
        Launch(partial(Work, "nccl", COMM, 0, message=message), "launch", US),
        Wait("cudaDeviceSynchronize"),
    ]
    with pytest.raises(RuntimeError, match=r"ranks \[0\] wait"):
        run(alone, [])


def test_calls_that_wait_for_the_device_return_after_it() -> None:
    (one,) = run([kernel(50 * US), Call("cudaFree", 5 * US, after_device=True), Wait("cudaDeviceSynchronize")])
    assert [(call.name, call.end) for call in one.calls[1:]] == [
        ("cudaFree", 56 * US),
        ("cudaDeviceSynchronize", 59 * US),
    ]


@pytest.mark.parametrize(("workers", "step"), [(0, 10 * US + 4 * US), (1, 10 * US), (2, 5 * US)])
def test_workers_load_while_the_program_computes(workers: int, step: int) -> None:
    """A batch takes 10 us to load, and a step 4 us."""
    program: list[Instruction] = []
    for batch in range(40):
        program += [Begin("step", f"{batch}"), Fetch(batch, 0), Compute(4 * US), End()]
    (one,) = Machine([program], COSTS, {0: Loader(lambda _: 10 * US, workers, prefetch=1)}).run()
    begins = [span.start for span in one.steps]
    assert (begins[-1] - begins[-21]) / 20 == step


def test_a_fault_changes_nothing_but_itself() -> None:
    healthy = Training(kind="alone", ranks=1, item_every=1)
    stalled = replace(healthy, collect_ns=3_000 * US)
    assert run_step_ns(stalled) - run_step_ns(healthy) == pytest.approx(3_000 * US, rel=0.01)


def test_the_simulator_shares_no_code_with_what_it_tests() -> None:
    """Only what compares the two knows the harness."""
    folder = Path(str(gpu_jobs.__file__)).parent
    imports = {
        path.stem: {
            (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        for path in folder.glob("*.py")
    }
    ours = ("harness", "tests")
    knowing = {name for name, modules in imports.items() if any(m.split(".")[0] in ours for m in modules)}
    assert knowing == {"judge"}
    assert not any("replay" in module for module in imports["judge"])
    indirect = {name for name, modules in imports.items() if "judge" in modules}
    assert indirect <= {"tables"}

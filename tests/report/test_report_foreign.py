"""The first finding of recordings as others make them, one small made trace for each class, read as a user reads it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.analysis.summary import Summary
from harness.explain.answer import answer
from harness.measure.paths import measure_one
from tests.synthetic.one_gpu import Event, document, event, launched, written

STEPS = 6
GEMM = "ampere_bf16_s16816gemm_128x128"
Step = Callable[[float, int], list[Event]]


def recorded(folder: Path, step: Step, length: float = 10_000, mark: float | None = None) -> Summary:
    """The summary of steps of `length` µs, each with a mark and what `step(begin, number)` gives."""
    events: list[Event] = []
    for n in range(STEPS):
        begin = n * length
        events.append(event("user_annotation", f"ProfilerStep#{n}", begin, mark or length))
        events += step(begin, 100 * n)
    return measure_one([written(folder / "rank0.json.gz", document(events))])


def kernels(begin: float, number: int, count: int, length: float, every: float) -> list[Event]:
    """Kernels at a regular distance, each with its launch."""
    return [e for i in range(count) for e in launched(GEMM, number + i, begin + 10 + i * every, length)]


def nothing_between(begin: float, number: int) -> list[Event]:
    return kernels(begin, number, 10, 190, 200)


def around(begin: float, number: int) -> list[Event]:
    """Work in the first 2 ms and the last 2 ms of a step."""
    return [*kernels(begin, number, 10, 190, 200), *kernels(begin + 8_050, number + 50, 9, 190, 200)]


def stack(begin: float, number: int) -> list[Event]:
    own = event("python_function", "train.py(12): preprocess", begin + 2_000, 6_000)
    inner = event("python_function", "<built-in method zoom of module>", begin + 2_100, 5_500)
    return [*kernels(begin, number, 10, 190, 200), own, inner, *kernels(begin + 8_050, number + 50, 9, 190, 200)]


def blocking_copy(begin: float, number: int) -> list[Event]:
    copy = event("cuda_runtime", "cudaMemcpyAsync", begin + 2_000, 6_000, correlation=number + 40)
    to = event("cpu_op", "aten::to", begin + 1_990, 6_020)
    load = event("user_annotation", "load_batch_to_gpu", begin + 1_980, 6_040)
    work = event(
        "gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", begin + 7_800, 150, tid=7, device=0, stream=7,
        correlation=number + 40, bytes=1 << 20,
    )  # fmt: skip
    return [
        *kernels(begin, number, 10, 190, 200),
        load,
        to,
        copy,
        work,
        *kernels(begin + 8_050, number + 50, 9, 190, 200),
    ]


def small(begin: float, number: int) -> list[Event]:
    return kernels(begin, number, 90, 8, 110)


def busy(begin: float, number: int) -> list[Event]:
    return kernels(begin, number, 50, 199, 200)


def ahead(begin: float, number: int) -> list[Event]:
    """All launches of a step in its first millisecond, one step ahead of the device."""
    events: list[Event] = []
    for i in range(50):
        call = event("cuda_runtime", "cudaLaunchKernel", begin + 20 * i, 5.0, correlation=number + i)
        work = event("kernel", GEMM, begin + 9_500 + 200 * i, 199, tid=7, device=0, stream=7, correlation=number + i)
        events += [call, work]
    return [*events, event("python_function", "train.py(30): log", begin + 2_000, 7_000)]


@pytest.mark.parametrize(
    ("step", "cause", "ns", "what"),
    [
        (stack, "host-stall", 6e6, "zoom"),
        (blocking_copy, "pageable", 5.8e6, "cudaMemcpyAsync, inside aten::to, inside load_batch_to_gpu"),
        (small, "tiny-kernels", 9e6, None),
        (around, "host-stall", 6e6, None),
    ],
)
def test_the_first_finding_is_what_the_device_waited_for(
    step: Step, cause: str, ns: float, what: str | None, tmp_path: Path
) -> None:
    found = recorded(tmp_path, step).findings[0]
    assert (found.cause, found.basis, found.what) == (cause, "replay", what)
    assert found.lost_ns == pytest.approx(ns, rel=0.1)


def test_time_between_the_marks_is_a_cause_of_its_own(tmp_path: Path) -> None:
    """The last of six steps ends with its mark: 8 ms in five of six."""
    found = recorded(tmp_path, nothing_between, mark=2_100).findings[0]
    assert (found.cause, found.phase) == ("between-steps", "between steps")
    assert found.lost_ns == pytest.approx(8e6 * 5 / 6, rel=0.02)


def test_the_users_function_is_named_with_file_and_line(tmp_path: Path) -> None:
    where = recorded(tmp_path, stack).findings[0].where
    assert where is not None
    assert (where.file, where.line, where.function) == ("train.py", 12, "preprocess")


@pytest.mark.parametrize("step", [busy, ahead])
def test_a_device_that_always_has_work_loses_nothing_by_its_host(step: Step, tmp_path: Path) -> None:
    found = recorded(tmp_path, step)
    assert found.findings == []
    assert any("No part that could be avoided" in said for said in answer(found).sentences)


def test_what_was_not_recorded_is_said_with_the_option_that_records_it(tmp_path: Path) -> None:
    given = answer(recorded(tmp_path, around))
    said = " ".join([*given.first, *given.further])
    assert "was not recorded" in said and "with_stack=True" in said
    assert ".item()" not in said and "lock" not in said

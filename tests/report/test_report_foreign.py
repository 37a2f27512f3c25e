"""The first finding of recordings as others make them, one small made trace for each class, read as a user reads it.
Real traces with a planted fault are in tests/traces/test_traces_gpu.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.analysis.summary import Summary
from harness.explain.answer import answer
from harness.measure.paths import measure_one
from tests.report.given_summary import text
from tests.synthetic.one_gpu import Event, document, event, launched, written

STEPS, STEP_US = 6, 10_000
GEMM = "ampere_bf16_s16816gemm_128x128"


def recorded(
    folder: Path, *work: tuple[float, int, float], host: tuple[Event, ...] = (), mark: float = STEP_US
) -> Summary:
    """Steps of 10 ms, each with a mark. work: kernels of a step, as their begin, their number and how long one takes
    of its 200 µs; host: what else a step has."""
    events: list[Event] = []
    for n in range(STEPS):
        begin = n * STEP_US
        events.append(event("user_annotation", f"ProfilerStep#{n}", begin, mark))
        starts = [(start + i * 200, length) for start, count, length in work for i in range(count)]
        for i, (start, length) in enumerate(starts):
            events += launched(GEMM, 100 * n + i, begin + 10 + start, length)
        events += [own | {"ts": own["ts"] + begin} for own in host]
    return measure_one([written(folder / "rank0.json.gz", document(events))])


AROUND = (0, 10, 190), (8_040, 9, 190)  # work in the first 2 ms and the last 2 ms of a step
STACK = (
    event("python_function", "train.py(12): preprocess", 2_000, 6_000),
    event("python_function", "<built-in method zoom of module>", 2_100, 5_500),
)


def test_the_users_function_is_named_with_file_and_line(tmp_path: Path) -> None:
    found = recorded(tmp_path, *AROUND, host=STACK).findings[0]
    assert (found.cause, found.basis, found.what) == ("host-stall", "replay", "zoom")
    assert found.lost_ns == pytest.approx(6e6, rel=0.1)
    assert found.where is not None
    assert (found.where.file, found.where.line, found.where.function) == ("train.py", 12, "preprocess")


def test_what_was_not_recorded_is_said_with_the_option_that_records_it(tmp_path: Path) -> None:
    given = recorded(tmp_path, *AROUND)
    said = text(answer(given))
    assert given.findings[0].cause == "host-stall" and given.findings[0].what is None
    assert "was not recorded" in said and "with_stack=True" in said
    assert ".item()" not in said and "lock" not in said


def test_time_between_the_marks_is_a_cause_of_its_own(tmp_path: Path) -> None:
    """The last of six steps ends with its mark: 8 ms in five of six."""
    found = recorded(tmp_path, AROUND[0], mark=2_100).findings[0]
    assert (found.cause, found.phase) == ("between-steps", "between steps")
    assert found.lost_ns == pytest.approx(8e6 * 5 / 6, rel=0.02)


def test_a_device_that_always_has_work_loses_nothing_by_its_host(tmp_path: Path) -> None:
    given = recorded(tmp_path, (0, 50, 199))
    assert given.findings == [] and "No part that could be avoided" in text(answer(given))

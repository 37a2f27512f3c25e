"""The first finding of recordings as others make them, one small made trace for each class, read as a user reads it.
Real traces with a planted fault are in tests/traces/test_traces_gpu.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.summary import CodeLocation, Summary
from harness.explain.answer import answer
from harness.measure.paths import measure_one
from tests.report.given_summary import text
from tests.synthetic.one_gpu import Event, document, event, launched, written

STEPS, STEP_US = 6, 10_000
GEMM = "ampere_bf16_s16816gemm_128x128"


def recorded(
    folder: Path, work: Sequence[tuple[float, int, float]], host: Sequence[Event] = (), mark: float = STEP_US
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
PLACE = CodeLocation(file="train.py", line=12, function="preprocess")
FOUND: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...], tuple[str, ...]]] = {
    # given, of the first finding, said, not said
    "the user's function, with file and line": (
        {"work": AROUND, "host": STACK},
        {"cause": "host-stall", "basis": "replay", "what": "zoom", "where": PLACE,
         "lost_ns": pytest.approx(6e6, rel=0.1)}, (), (),
    ),
    "what was not recorded": (
        {"work": AROUND}, {"cause": "host-stall", "what": None},
        ("was not recorded", "with_stack=True"), (".item()", "lock"),
    ),
    # The last of six steps ends with its mark: 8 ms in five of six.
    "time between the marks": (
        {"work": AROUND[:1], "mark": 2_100},
        {"cause": "between-steps", "phase": "between steps", "lost_ns": pytest.approx(8e6 * 5 / 6, rel=0.02)}, (), (),
    ),
    "a device that always has work": ({"work": [(0, 50, 199)]}, {}, ("No part that could be avoided",), ()),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_the_first_finding_of_a_recording(tmp_path: Path, name: str) -> None:
    given, first, said, unsaid = FOUND[name]
    s = recorded(tmp_path, **given)
    assert {field: getattr(found, field) for found in s.findings[:1] for field in first} == first
    whole = text(answer(s))
    assert [words for words in said if words not in whole] == [words for words in unsaid if words in whole] == []
    assert bool(s.findings) == bool(first)

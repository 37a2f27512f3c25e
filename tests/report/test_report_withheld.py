"""What was withheld is shown as not known, by a readable name, and never counted as zero."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.analysis import device_time
from harness.analysis.labels import field_word
from harness.analysis.metrics import metrics_by_name
from harness.analysis.summary import (
    Device,
    IdleCause,
    Problem,
    Quality,
    RangeTime,
    RankSteps,
    RecordingVerdict,
    Spread,
    Steps,
    Summary,
    Withheld,
)
from harness.compare.summaries import compare
from harness.explain.answer import verdict
from harness.report.compare.breakdown import explained, steps_in_parts
from harness.report.compare.breakdown import split_section as compared
from harness.report.page.inputs import Inputs
from harness.report.page.run import quality_section
from harness.report.page.sections import split_section
from harness.report.tables.ranges import RANGES
from harness.report.tables.terminal import render
from harness.report.tables.time import CAUSES
from harness.report.window import NOT_KNOWN

ROOT = Path(__file__).parents[2]
MS = 1_000_000
IN_PARTS = (  # what quality.py withholds from a part, as pairs of a field and a reason
    "idle_ns",
    "busy_fraction",
    "communication_ns",
    "exposed_communication_ns",
    "overlapped_communication_ns",
    "overlap_fraction",
)
NO_IDLE: dict[str, object] = {"idle_ns": None, "idle_causes": []}
NO_COMMUNICATION = dict.fromkeys(("communication_ns", "exposed_communication_ns", "overlapped_communication_ns"))


def a_device(rank: int, **without: object) -> Device:
    """Of 100 ms: 30 compute, 20 exposed communication, 50 idle (launch-bound)."""
    cause = IdleCause(cause="launch-bound", duration_ns=50 * MS, share=1.0)
    whole = Device(
        rank=rank, device=0, source="made", gpu_events=1, kernels=1, window_ns=100 * MS, compute_ns=30 * MS,
        communication_ns=20 * MS, exposed_communication_ns=20 * MS, overlapped_communication_ns=0, memory_ns=0,
        exposed_memory_ns=0, idle_ns=50 * MS, idle_causes=[cause],
    )  # fmt: skip
    return whole.model_copy(update=without)


def a_job(*devices: Device, step_ms: int = 10) -> Summary:
    causes = [c for d in devices for c in d.idle_causes]
    step = step_ms * MS
    spread = Spread(count=10, median_ns=step, min_ns=step, max_ns=step, p10_ns=step, p90_ns=step)
    each = [RankSteps(rank=d.rank, durations_ns=[step] * 10) for d in devices]
    steps = Steps(source="made", counted=10, duration=spread, per_rank=each)
    return Summary(devices=list(devices), idle_causes=causes, steps=steps)


def test_a_rank_that_does_not_know_its_idle_time_does_not_thin_that_of_the_others() -> None:
    job = a_job(a_device(0), a_device(1, **NO_IDLE))
    said = verdict(job)
    assert "50.0 % idle (mean of 2 devices; idle time known of 1)" in " ".join(said.further)
    assert "launch-bound idle time: 50.0 % of the time" in said.sentences[0]
    assert CAUSES.on_page(job).caption == "Idle time by cause, 1 of 2 devices"
    assert not [name for name in metrics_by_name(job) if name.startswith("idle_")]
    assert metrics_by_name(a_job(a_device(0)))["idle_launch_bound_share"] == 0.5


@pytest.mark.parametrize(
    ("without", "said"), [(NO_IDLE, "idle time not known"), (NO_COMMUNICATION, "communication not known")]
)
def test_a_number_that_no_rank_knows_is_shown_and_drawn_as_not_known(without: dict[str, object], said: str) -> None:
    job = a_job(a_device(0, **without), a_device(1, **without))
    assert said in " ".join(verdict(job).further)
    section = split_section(job, Inputs())
    (figure,) = section.figures
    assert "not known" in section.lead
    assert [sum(bar["x"][i] for bar in figure.data) for i in range(2)] == pytest.approx([100, 100])


@pytest.mark.parametrize("without", [NO_IDLE, NO_COMMUNICATION])
@pytest.mark.parametrize("side", [0, 1])
def test_no_difference_is_explained_by_what_was_withheld(without: dict[str, object], side: int) -> None:
    runs = [a_job(a_device(0, **(without if i == side else {})), step_ms=10 * (i + 1)) for i in range(2)]
    found = steps_in_parts(("a", "b"), runs, [compare(runs[0], runs[1], ("a", "b"))])
    assert [run.whole for run in found] == pytest.approx([10, 20])
    assert found[side].parts[NOT_KNOWN] > 0
    assert explained(found, 1, per_token=False) == ""
    (figure,) = compared(found, per_token=False).figures
    assert figure.table is not None
    rows = {row[0]: row[1:] for row in figure.table.rows}
    part = "idle: launch-bound" if without is NO_IDLE else "exposed communication"
    assert (rows[part][side], rows[part][-1], rows["step"][-1]) == ("–", "–", "+10")


def test_what_is_not_given_has_a_name_that_people_read() -> None:
    quality = next(
        line for line in (ROOT / "docs/metrics.md").read_text().splitlines() if line.startswith("- `field`: `idle_ns`")
    )
    analysis = "".join(path.read_text() for path in sorted((ROOT / "harness/analysis").rglob("*.py")))
    fields = set(re.findall(r'Withheld\(field="([^"]+)"', analysis)) | {*IN_PARTS}
    assert len(fields) >= 9 and all(f"`{field}`" in quality for field in fields)  # the page of metrics lists the same
    words = {field_word(field) for field in fields}
    assert len(words) == len(fields) and not any("_" in word for word in words)
    named = [Withheld(field=field, reason="it was not read") for field in sorted(fields)]
    job = a_job(a_device(0)).model_copy(update={"quality": Quality(withheld=named)})
    rows = [word for table in quality_section(job).tables for row in table.rows for word in row]
    text = " ".join(render(job).split())
    assert "not given" in text and words <= set(rows) and all(word in text for word in words)
    assert not any(field in text or field in rows for field in fields)


def test_a_remark_on_a_good_recording_is_not_called_good() -> None:
    remark = Problem(
        severity=RecordingVerdict.GOOD, what="collectives cannot be matched across ranks", evidence="no names"
    )
    job = a_job(a_device(0)).model_copy(update={"quality": Quality(problems=[remark])})
    (table,) = quality_section(job).tables
    assert list(table.rows[0]) == ["note", remark.what, remark.evidence]


def test_a_device_of_unknown_idle_time_is_neither_the_busiest_nor_the_idlest() -> None:
    devices = [a_device(0, **NO_IDLE), a_device(1, idle_ns=9), a_device(2, idle_ns=5)]
    assert [d.rank for d in device_time.by_idleness(devices)] == [2, 0, 1]


def test_ranges_without_any_device_do_not_say_that_their_kernels_took_no_time() -> None:
    row = RangeTime(name="forward", instances=2, host_ns=6, kernels=0, kernel_ns=0)
    assert list(RANGES.on_page(Summary(ranges=[row])).rows[0]) == ["forward", "2", "3 ns"]

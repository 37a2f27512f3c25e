"""Copies: by direction, host memory, size and bandwidth beside the link's; and which kind a job loses time in."""

from __future__ import annotations

import random

import pytest

from harness.analysis.job.summarise import summarise_job
from harness.analysis.process.kinds import load_rules
from harness.analysis.summary import Summary, Window
from harness.explain.answer import verdict
from harness.explain.copies import CopiedJob, CopyCause, CopyClass, copy_causes
from harness.theory.devices import host_link
from harness.traces.trace import CopyKind, HostMemory
from tests.analysis.measuring import measure_trace
from tests.report.given_summary import text
from tests.synthetic.columns import Made

MB, MS = 10**6, 10**6
PINNED, PAGEABLE = HostMemory.PINNED, HostMemory.PAGEABLE
A100 = {"device_names": {0: "NVIDIA A100-SXM4-80GB"}}


def summarised(made: Made) -> Summary:
    return summarise_job(measure_trace(made.trace(), Window.STEPS, load_rules()))


def causes(s: Summary) -> list[CopyCause]:
    return copy_causes(s.copies, CopiedJob(s.devices, s.steps.counted))


def steps_of(made: Made, count: int = 4, step_ns: int = 100 * MS) -> Made:
    for i in range(count):
        made.step(i * step_ns, (i + 1) * step_ns, i)
    return made


def offloading(**identity: object) -> Made:
    """Layers whose weights are copied from pinned memory at 27 GB/s right before they are computed, as FSDP with CPU
    offload does; sizes differ."""
    made = steps_of(Made(**identity))
    at = 0
    while at < 399 * MS:
        for size in (54 * MB, 135 * MB, 189 * MB):
            end = at + size // 27
            made.copy(at, end, size, host_memory=PINNED)
            made.copy(end, end + 40_000, size, CopyKind.D2D)
            made.event(end + 50_000, end + 350_000)
            at = end + 400_000
    return made


def one_copy_a_step(size: int, copy_ns: int, compute_ns: int, memory: HostMemory, **identity: object) -> Made:
    made = steps_of(Made(**identity))
    for i in range(4):
        at = i * 100 * MS
        made.copy(at, at + copy_ns, size, host_memory=memory)
        made.event(at + copy_ns, at + copy_ns + compute_ns)
    return made


def many(
    every_ns: int,
    work_ns: int,
    copy_ns: int,
    size: int,
    kind: CopyKind = CopyKind.H2D,
    *,
    memory: HostMemory = HostMemory.UNKNOWN,
) -> Made:
    """Work, and after it a copy, again and again."""
    made = steps_of(Made())
    for at in range(0, 400 * MS, every_ns):
        end = at + work_ns
        made.event(at, end).copy(end, end + copy_ns, size, kind, host_memory=memory)
    return made


H100 = {"device_names": {0: "NVIDIA H100 80GB HBM3"}}
CLASSES: dict[str, tuple[Made, CopyClass, tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    # what and why have, the advice has, the advice has not
    "weights from pinned memory": (
        offloading(), CopyClass.OFFLOAD,
        ("offload", "pinned host memory", "27 GB/s", "the table needs the device's name"), ("offload",),
        ("non_blocking",),
    ),
    "at a link's limit": (
        offloading(**A100), CopyClass.OFFLOAD,
        ("85.7 % of the link's nominal bandwidth, 31.5 GB/s: the link's limit",), (), (),
    ),
    "below a link's limit": (
        offloading(**H100), CopyClass.OFFLOAD,
        ("42.9 % of the link's nominal bandwidth, 63 GB/s.", "older PCIe"), (), (),
    ),
    "a pinned batch that could be hidden": (
        one_copy_a_step(540 * MB, 20 * MS, 60 * MS, PINNED, **A100), CopyClass.EXPOSED,
        (), ("non_blocking",), ("pin the host buffers",),
    ),
    "a batch too large to be hidden": (
        one_copy_a_step(1890 * MB, 70 * MS, 20 * MS, PINNED, **A100), CopyClass.LARGE,
        (), ("fewer bytes",), ("non_blocking",),
    ),
    "pageable memory": (
        one_copy_a_step(120 * MB, 20 * MS, 60 * MS, PAGEABLE, **A100), CopyClass.PAGEABLE,
        ("6 GB/s, where the link's nominal bandwidth is 31.5 GB/s",), ("pin_memory=True",), (),
    ),
    "many small copies": (
        many(100_000, 55_000, 4_000, 4096, memory=PAGEABLE), CopyClass.SMALL,
        ("4,000 copies of less than 64 KiB", "1,000 for each device in a step"), (), ("pin",),
    ),
    "values that the host reads": (
        many(MS, 910_000, 2_000, 4, CopyKind.D2H, memory=PAGEABLE), CopyClass.TO_HOST,
        (".item()",), (), ("pin",),
    ),
    "within the device": (
        many(MS, 500_000, 400_000, 300 * MB, CopyKind.D2D), CopyClass.ON_DEVICE, (), (), (),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CLASSES)
def test_copies_that_cost_time_have_a_class_a_reason_and_what_helps(name: str) -> None:
    made, kind, said, helps, unsaid = CLASSES[name]
    s = summarised(made)
    first = causes(s)[0]
    assert first.kind is kind
    assert [words for words in said if words not in f"{first.what} {first.why}"] == []
    assert [words for words in helps if words not in first.advice] == []
    assert [words for words in unsaid if words in first.advice] == []
    if name == "weights from pinned memory":
        assert "offload" in text(verdict(s)) and "non_blocking" not in text(verdict(s))
        assert first.hideable_ns <= sum(d.compute_ns for d in s.devices) < 0.1 * first.exposed_ns


def test_copies_beside_compute_cost_nothing() -> None:
    made = steps_of(Made())
    for i in range(4):
        made.event(i * 100 * MS, i * 100 * MS + 90 * MS)
        made.copy(i * 100 * MS + 10 * MS, i * 100 * MS + 30 * MS, 500 * MB, host_memory=PINNED, stream=8)
    s = summarised(made)
    assert causes(s) == [] and s.copies[0].exposed_ns == 0


@pytest.mark.parametrize("seed", range(5))
def test_exposed_copies_of_all_rows_are_the_devices_copies_without_other_work(seed: int) -> None:
    dice, made = random.Random(seed), steps_of(Made(), 4, 1_000)
    rows = (CopyKind.H2D, PINNED), (CopyKind.H2D, PAGEABLE), (CopyKind.D2H, PINNED), (CopyKind.D2D, HostMemory.UNKNOWN)
    for _ in range(120):
        at, stream, (kind, memory) = dice.randrange(4_000), dice.randrange(4), dice.choice(rows)
        end = at + dice.randrange(1, 60)
        if dice.random() < 0.5:
            made.copy(at, min(end, 4_000), 100, kind, host_memory=memory, stream=stream)
        else:
            made.event(at, end, stream=stream)
    s = summarised(made)
    assert sum(c.exposed_ns for c in s.copies) == sum(d.exposed_memory_ns for d in s.devices)
    assert all(c.small_count == c.count and c.largest_bytes == 100 for c in s.copies)


@pytest.mark.parametrize(
    ("name", "gb_per_s"),
    [("NVIDIA A100-PG509-200", 31.5), ("NVIDIA H100 80GB HBM3", 63), ("NVIDIA GH200 120GB", 450),
     ("Tesla V100-SXM2-16GB", 15.75), ("AMD Instinct MI300X", 63), ("AMD Instinct MI250X", 36),
     ("NVIDIA GeForce RTX 2080 Ti", 15.75), ("AMD Radeon Graphics", None), (None, None)],
)  # fmt: skip
def test_a_devices_link_is_known_by_its_name_or_not_at_all(name: str | None, gb_per_s: float | None) -> None:
    link = host_link(name)
    assert (link and link.gb_per_s) == gb_per_s

"""Copies: by direction, host memory, size and bandwidth beside the link's; and which kind a job loses time in."""

from __future__ import annotations

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


def test_weights_copied_from_pinned_memory_all_the_time_are_offload_and_prefetching_cannot_hide_them() -> None:
    s = summarised(offloading())
    (first, *_) = causes(s)
    assert first.kind is CopyClass.OFFLOAD
    assert "offload" in first.what and "pinned host memory" in first.what and "27 GB/s" in first.what
    assert "the table needs the device's name" in first.why and "Copies of all large sizes reach 27 GB/s" in first.why
    assert "non_blocking" not in first.advice and "offload" in first.advice
    told = text(verdict(s))
    assert "offload" in told and "non_blocking" not in told
    computing = sum(d.compute_ns for d in s.devices)
    assert first.hideable_ns <= computing < 0.1 * first.exposed_ns


def test_at_a_links_limit_the_answer_says_so_and_below_it_what_to_look_at() -> None:
    (first, *_) = causes(summarised(offloading(**A100)))
    assert "85.7 % of the link's nominal bandwidth, 31.5 GB/s: the link's limit" in first.why
    (slower, *_) = causes(summarised(offloading(device_names={0: "NVIDIA H100 80GB HBM3"})))
    assert "42.9 % of the link's nominal bandwidth, 63 GB/s." in slower.why
    assert "so this is the link's limit" in slower.why, "no size is faster, whatever the data sheet says"
    assert "older PCIe" in slower.why


def test_a_pinned_batch_that_could_be_copied_while_kernels_run_is_to_be_prefetched() -> None:
    (only,) = causes(summarised(one_copy_a_step(540 * MB, 20 * MS, 60 * MS, PINNED, **A100)))
    assert only.kind is CopyClass.EXPOSED
    assert "non_blocking" in only.advice and "pin the host buffers" not in only.advice


def test_a_batch_too_large_to_be_hidden_has_to_become_smaller() -> None:
    (only,) = causes(summarised(one_copy_a_step(1890 * MB, 70 * MS, 20 * MS, PINNED, **A100)))
    assert only.kind is CopyClass.LARGE
    assert "non_blocking" not in only.advice and "fewer bytes" in only.advice


def test_pageable_memory_is_to_be_pinned() -> None:
    (only,) = causes(summarised(one_copy_a_step(120 * MB, 20 * MS, 60 * MS, PAGEABLE, **A100)))
    assert only.kind is CopyClass.PAGEABLE
    assert "6 GB/s, where the link's nominal bandwidth is 31.5 GB/s" in only.what
    assert "pin_memory=True" in only.advice


def test_many_small_copies_are_to_be_joined() -> None:
    made = steps_of(Made())
    for at in range(0, 400 * MS, 100_000):
        made.copy(at, at + 4_000, 4096, host_memory=PAGEABLE).event(at + 5_000, at + 60_000)
    (only,) = causes(summarised(made))
    assert only.kind is CopyClass.SMALL
    assert "4,000 copies of less than 64 KiB" in only.what and "1,000 for each device in a step" in only.what
    assert "pin" not in only.advice


def test_values_read_by_the_host_are_no_reason_to_pin() -> None:
    made = steps_of(Made())
    for at in range(0, 400 * MS, MS):
        made.event(at, at + 900_000).copy(at + 910_000, at + 912_000, 4, CopyKind.D2H, host_memory=PAGEABLE)
    (only,) = causes(summarised(made))
    assert only.kind is CopyClass.TO_HOST
    assert ".item()" in only.why and "pin" not in only.advice


def test_copies_within_the_device_are_operators_that_copy() -> None:
    made = steps_of(Made())
    for at in range(0, 400 * MS, MS):
        made.event(at, at + 500_000).copy(at + 500_000, at + 900_000, 300 * MB, CopyKind.D2D)
    (only,) = causes(summarised(made))
    assert only.kind is CopyClass.ON_DEVICE


def test_copies_beside_compute_cost_nothing() -> None:
    made = steps_of(Made())
    for i in range(4):
        made.event(i * 100 * MS, i * 100 * MS + 90 * MS)
        made.copy(i * 100 * MS + 10 * MS, i * 100 * MS + 30 * MS, 500 * MB, host_memory=PINNED, stream=8)
    s = summarised(made)
    assert causes(s) == [] and s.copies[0].exposed_ns == 0


@pytest.mark.parametrize("seed", range(5))
def test_exposed_copies_of_all_rows_are_the_devices_copies_without_other_work(seed: int) -> None:
    import random

    dice = random.Random(seed)
    made = steps_of(Made(), 4, 1_000)
    for _ in range(120):
        at = dice.randrange(4_000)
        end = at + dice.randrange(1, 60)
        stream = dice.randrange(4)
        kind, memory = dice.choice(
            [
                (CopyKind.H2D, PINNED),
                (CopyKind.H2D, PAGEABLE),
                (CopyKind.D2H, PINNED),
                (CopyKind.D2D, HostMemory.UNKNOWN),
            ]
        )
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

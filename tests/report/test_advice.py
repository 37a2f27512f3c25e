"""An advice is given where the recording allows it: both sides of each."""

from __future__ import annotations

from typing import Any

import pytest

from harness.analysis.summary import (
    Collective,
    Copy,
    HostActivity,
    KernelTime,
    KindTime,
    Summary,
    TimeLost,
    TraceSource,
    WhatIf,
)
from harness.explain.commands import COMPILED, command_of_what_if
from harness.explain.findings import reason_of, work_sentences
from harness.replay.attribute.diagnosis import by_share
from tests.report.given_summary import FP32, MS, of_devices, run, summary


def copies(memory: str | None) -> Any:
    return [Copy(direction="copy H2D", memory=memory, count=1, bytes=1, duration_ns=1, exposed_ns=1, largest_bytes=1)]


def activity(cause: str, what: str | None, kind: str, **more: Any) -> HostActivity:
    numbers = {"rank": 0, "device": 0, "idle_ns": MS, "count": 40, "longest_ns": 1, "first_ns": 0}
    return HostActivity(cause=cause, what=what, kind=kind, **(numbers | more))


def kernels(name: str) -> Any:
    return [KernelTime(name=name, kind="elementwise", count=1, duration_ns=1, mean_ns=1, min_ns=1, max_ns=1, share=1.0)]


def of_ranks(*ranks: int) -> Summary:
    sources = [TraceSource(path=f"{rank}", tool="kineto", rank=rank) for rank in ranks]
    return summary().model_copy(update={"world_size": 300, "ranks": list(ranks), "sources": sources})


def freed(count: int) -> Summary:
    given = summary(host_activities=[activity("allocation", "cudaFree", "call", call="cudaFree", count=count)])
    return of_devices(given, kernels=500)


def host(**more: Any) -> Summary:
    return summary(host_activities=[activity("host work", more.pop("what"), more.pop("kind"), **more)])


PINNED, OFF, ANOTHER = "pin_memory", "let PyTorch's allocator keep freed memory", "in another rank's trace"
ADVICE = {  # a cause, a recording, and whether words are in the advice
    "copies from pageable memory": ("data-stall", summary(copies=copies("pageable")), PINNED, True),
    "copies from memory that is not known": ("data-stall", summary(copies=copies(None)), PINNED, True),
    "copies from pinned memory": ("data-stall", summary(copies=copies("pinned")), PINNED, False),
    "a blocking copy from pageable memory": ("pageable", summary(copies=copies("pageable")), PINNED, True),
    "a blocking copy from pinned memory": ("pageable", summary(copies=copies("pinned")), "pinned already", True),
    "each tensor is freed": ("allocation", freed(272), OFF, True),
    "few segments are freed": ("allocation", freed(40), OFF, False),
    "kernels of no compiler": (
        "tiny-kernels",
        summary(kernels=kernels("add")),
        "fused operators (torch.compile)",
        True,
    ),
    "Inductor's kernels on a CPU": (
        "tiny-kernels",
        of_devices(summary(kernels=kernels("graph_0_cpp_fused_add_1")), device_kind="cpu"),
        "torch.compile",
        False,
    ),
    "Inductor's kernels": ("tiny-kernels", summary(kernels=kernels("triton_poi_0")), "fused operators", False),
    "an A100": ("fp32", of_devices(summary(kinds=[FP32]), name="NVIDIA A100-SXM4-40GB"), "(bf16)", True),
    "a T4": ("fp32", of_devices(summary(kinds=[FP32]), name="Tesla T4"), "fp16, with loss scaling", True),
    "a TITAN RTX": ("fp32", of_devices(summary(kinds=[FP32]), name="NVIDIA TITAN RTX"), "bf16", False),
    "code of the host": ("host-stall", host(what="load (a.py)", kind="python"), "in another process, or while", True),
    "a wait for somebody": ("host-stall", host(what="poll", kind="os call"), "waits for in poll", True),
    "a wait in a range": ("host-stall", host(what="futex", kind="os call", range="save"), "in another process", True),
    "one rank of many": ("communication", of_ranks(7), ANOTHER, True),
    "two ranks of many": ("communication", of_ranks(7, 8), ANOTHER, False),
    "one rank of many, and buckets": ("small-buckets", of_ranks(7), ANOTHER, True),
    "two ranks of many, and buckets": ("small-buckets", of_ranks(7, 8), ANOTHER, False),
}


@pytest.mark.parametrize("name", ADVICE)
def test_an_advice_is_given_where_the_recording_allows_it(name: str) -> None:
    cause, given, words, is_given = ADVICE[name]
    if cause in ("communication", "small-buckets"):
        row = Collective(kind="all_reduce", count=1, ranks=1, duration_ns=MS, mean_ns=MS, group_size=300)
        given = given.model_copy(update={"collectives": [row]})
    lost = TimeLost(cause=cause, ranks=[0], lost_ns=MS, share=0.1, what="something", basis="replay", evidence="")
    advice = " ".join(change.text for change in reason_of(given, lost).changes)
    assert (words in advice) == is_given, advice


def test_products_in_32_bits_are_no_loss_where_no_16_bits_are_faster() -> None:
    given = summary(kinds=[FP32], findings=[])
    assert [own.cause for own in by_share(of_devices(given, name="Tesla T4"))] == ["fp32"]
    assert by_share(of_devices(given, name="NVIDIA GeForce GTX 1080 Ti")) == []


ELEMENTWISE = KindTime(kind="elementwise", precision=None, count=9, duration_ns=50 * MS, share=0.5)


@pytest.mark.parametrize(
    ("exercise", "asked", "has_command"), [(1, {}, True), (2, {}, True), (1, {"compile": True}, False), (3, {}, False)]
)
def test_a_run_that_can_compile_is_told_the_command_by_advice_and_what_if(
    exercise: int, asked: dict[str, Any], has_command: bool
) -> None:
    given = summary(kinds=[ELEMENTWISE], **run(exercise, **asked)).model_copy(
        update={"sources": [TraceSource(path="a.json", tool="kineto", rank=0)]}
    )
    lost = TimeLost(cause="tiny-kernels", ranks=[0], lost_ns=MS, share=0.1, basis="replay", evidence="")
    changes = reason_of(given, lost).changes
    told = [change for change in changes if change.fields == COMPILED]
    assert len(told) == has_command
    command = f"bash slurm.sh -e {exercise} -- --compile"
    bound = WhatIf(name="fused", meaning="", step_ns=1, gain=0.5, bound=True)
    assert command_of_what_if(given, bound) == (command if has_command else None)
    assert (f"a run with it shows it: `{command}`." in " ".join(work_sentences(given))) == has_command

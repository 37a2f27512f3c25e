"""Kinds of recordings that strangers brought and that were told wrongly, each made with an answer that is known."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.summary import Summary
from harness.measure.paths import measure_jobs
from harness.report.first_screen import first_screen
from harness.traces.one_clock import on_one_clock
from harness.traces.trace import Activity, CopyKind, HostKind, HostMemory
from tests.replay.replaying import summary_of
from tests.synthetic.columns import GEMM, Made

MS, US = 1_000_000, 1_000
BF16 = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_nt"
NAMED = {"device_names": {0: "NVIDIA A100-SXM4-80GB"}}


def told(made: Made) -> str:
    return words(summary_of([on_one_clock(made.trace())]))


def words(s: Summary) -> str:
    return " ".join(first_screen(s).plain.split())


def work(made: Made, start: int, count: int = 20, *, ns: int = 400 * US, name: str = BF16, **columns: int) -> Made:
    """Kernels that keep the device busy, each launched 10 us before it begins."""
    for at in range(start, start + count * ns, ns):
        made.call(at - 10 * US, at - 5 * US, "cudaLaunchKernel")
        made.event(at, at + ns, name, launch_ns=at - 10 * US, **columns)
    return made


def uneven(made: Made, start: int, count: int = 20) -> Made:
    """Work in which no kernel recurs evenly."""
    for i in range(count):
        work(made, start + i * i * 40 * US, 1, ns=(2 * i + 1) * 40 * US - 12 * US)
    return made


def data_first() -> Made:
    made = Made(**NAMED).range(0, 60 * MS, "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__")
    return uneven(made, 80 * MS)


def imports_first() -> Made:
    made = Made(**NAMED).host(0, 50 * MS, "<frozen importlib._bootstrap>(1165): _find_and_load", HostKind.PYTHON)
    for step in range(3):
        work(made, (70 + 8 * step) * MS + 10 * US, 19)
        made.step((70 + 8 * step) * MS, (78 + 8 * step) * MS, step)
    return made


def short_start() -> Made:
    return uneven(data_first().range(0, 1, "a"), 100 * MS, 60)


def on_a_cpu(loads: Callable[[int], bool], **identity: object) -> Made:
    """Ten milliseconds of work, ten times; before some 6 ms of loading data."""
    made, at = Made(**identity), 0
    for i in range(10):
        if loads(i):
            made.range(at, at + 6 * MS, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")
            at += 6 * MS
        made.event(at, at + 10 * MS, "aten::mkldnn_convolution", activity=Activity.CPU_OP, stream=1)
        at += 10 * MS
    return made


def launched_before(streams: int, name: str = GEMM) -> Made:
    made = Made(**NAMED)
    for i in range(20):
        at, stream = 10 * MS + i // streams * 3 * MS, 7 + i % streams
        made.call(i * 20 * US, i * 20 * US + 5 * US, "cudaLaunchKernel")
        made.event(at, at + 3 * MS, name, launch_ns=i * 20 * US, stream=stream)
    return made.call(500 * US, 80 * MS, "cudaDeviceSynchronize")


def stalled(apart_ns: int = 0, drift: float = 0) -> Made:
    """Steps of 4 ms, half of each a wait for data; the device's clock is ahead."""
    made = Made(**NAMED)
    for step in range(25):
        begin = 500 * MS + step * 4 * MS
        made.range(begin, begin + 2 * MS, "dataloader").step(begin, begin + 4 * MS, step)
        for i in range(4):
            at = begin + 2 * MS + i * 500 * US
            made.call(at, at + 5 * US, "cudaLaunchKernel")
            moved = at + 8 * US + apart_ns + int(drift * step)
            made.event(moved, moved + 480 * US, BF16, launch_ns=at)
    return made


def lost(call: str, ns: int) -> Made:
    """As many calls of some name without any work as launches."""
    made = stalled()
    for i, row in enumerate(made.calls):
        row["correlation"] = made.events[i]["correlation"]
    for i in range(len(made.calls)):
        at = made.calls[i]["start_ns"] - 2 * US
        made.call(at, at + ns, call).calls[-1]["correlation"] = 1000 + i
    return made


def first_kernels(name: str, passes: int, *, again: bool = False, waits: str = "") -> Made:
    """New kernels, each 20 ms after the one before; then passes without a pause, or with it as well."""
    made, at = work(Made(**NAMED), 10 * MS, 2), 11 * MS
    for number in range(passes):
        for kind in range(6):
            pause = 20 * MS if again or not number else 50 * US
            if waits:
                made.host(at, at + pause - 20 * US, waits, HostKind.OS_CALL)
            work(made, at + pause, 1, name=f"{name}_{kind}")
            at += pause + 400 * US
    return made


def training_with_optimizer() -> Made:
    """A kernel recurs in forward and backward; an optimizer of small kernels follows, launched one by one."""
    made = Made(**NAMED)
    for i in range(12):
        work(made, 10 * MS + i * 4 * MS, 9, name=f"gemm_{i % 2}")
        work(made, 10 * MS + i * 4 * MS + 3_650 * US, 1, ns=300 * US, name="recurs")
    made.range(9 * MS, 58 * MS, "forward").range(58 * MS, 80 * MS, "optimizer")
    for i in range(120):
        work(made, 60 * MS + i * 100 * US, 1, ns=20 * US, name=f"small_{i}")
    return made


def named_passes(before: int) -> Made:
    """Passes of 8 ms in ranges of their names, 4 ms of each lost in the optimizer; the first loads a library
    for `before` ms."""
    made, at = Made(**NAMED), 0
    for i in range(5):
        cold = before * MS if i == 0 else 0
        if cold:
            made.call(at, at + cold, "cuLibraryLoadData")
        work(work(made, at + cold + 10 * US, 6), at + cold + 6 * MS, 4)
        made.range(at, at + cold + 1 * MS, "forward").range(at + cold + 1 * MS, at + cold + 3 * MS, "backward")
        made.range(at + cold + 3 * MS, at + cold + 8 * MS, "optimizer_step")
        at += cold + 8 * MS
    return made


def copied_elsewhere(late: bool) -> Made:
    """One copy fills a device beside the one that computes; or a second device begins late."""
    made = Made(device_names={0: "NVIDIA A100-SXM4-80GB", 1: "NVIDIA A100-SXM4-80GB"})
    if late:
        uneven(made, 10 * MS, 40)
        return work(made, 60 * MS, 30, device=1, stream=8)
    for step in range(2):
        at = step * 5 * MS
        made.step(at, at + 5 * MS, step).call(at + 50 * US, at + 4_600 * US, "cudaMemcpyAsync")
        columns = {"host_memory": int(HostMemory.PAGEABLE), "launch_ns": at + 50 * US, "device": 1, "stream": 8}
        made.copy(at + 100 * US, at + 4_600 * US, 20_000_000, CopyKind.H2D, **columns)
        work(made, at + 4_700 * US, 1, ns=100 * US)
    return made


def operators(name: str) -> Made:
    made = Made(**NAMED).range(0, 40 * MS, "backward").range(40 * MS, 60 * MS, "forward")
    for i in range(40):
        made.event(40 * MS + i * 500 * US, 40 * MS + i * 500 * US + 300 * US, name, activity=Activity.CPU_OP, stream=1)
    return made


SAID = {  # a recording, what is told of it, and what is not
    "data before the first work": (data_first(), ["of the", "lie before", "loading data (mostly _Multi"], ["No part"]),
    "imports before the first step": (imports_first(), ["lie before the first step", "50.0 ms imports"], []),
    "a start that is not most of it": (short_start(), [], ["lie before"]),
    "data on a CPU, at the start": (
        on_a_cpu(lambda i: i < 3),
        ["Waiting for data costs 12 of the 112 ms"],
        ["No part"],
    ),
    "data on a CPU, in between": (on_a_cpu(lambda i: i % 2 == 1), ["Waiting for data costs 30"], ["No part"]),
    "one operator of a CPU": (on_a_cpu(lambda i: False), ["100.0 % of the operators' time is"], []),
    "all launched before": (
        launched_before(1),
        ["32 bits costs 28.5 of the 57.0 ms", "fp32 take 57.0 ms"],
        ["doubtful"],
    ),
    "all launched before, two streams": (launched_before(2), ["32 bits costs 15.0 of the 30.0 ms"], ["No part"]),
    "all launched before, in 16 bits": (launched_before(1, BF16), ["No part that could be avoided"], ["costs"]),
    "a set of no bytes": (lost("cudaMemsetAsync", 200), ["Waiting for data costs 2.0"], ["missing", "doubtful"]),
    "a copy of no bytes": (lost("cudaMemcpyAsync", 900), ["Waiting for data costs 2.0"], ["missing", "doubtful"]),
    "launches that are lost": (lost("cudaLaunchKernel", 3_000), ["Work of the device is missing"], ["costs"]),
    "kernels that are compiled": (first_kernels("triton_poi_fused", 1), ["for the first time costs"], ["stall"]),
    "kernels that other threads compile": (
        first_kernels("kernel", 3, waits="futex"),
        ["for the first time costs"],
        ["stall"],
    ),
    "new kernels of a process that is not known to be cold": (first_kernels("kernel", 1), ["stall of the host"], []),
    "a stall before the same kernels": (
        first_kernels("triton_poi_fused", 3, again=True),
        ["stall of the host"],
        ["first time"],
    ),
    "an optimizer after the recurring kernel": (
        training_with_optimizer(),
        ["in optimizer", "of the 61.9 ms"],
        ["recurs"],
    ),
    "passes that are named": (named_passes(0), ["of 8.00 ms a step", "optimizer"], ["recurs", "lie before"]),
    "passes that are named, the first one cold": (
        named_passes(60),
        ["lie before the first step", "60.0 ms first use", "of 8.00 ms a step"],
        ["recurs"],
    ),
    "a copy to another device": (copied_elsewhere(late=False), ["Copying", "4.5", "device 0 works"], []),
    "a device that begins late": (copied_elsewhere(late=True), ["device 1 works for 12.0 ms of 12.0 ms"], []),
    "the host of a GPU alone": (
        operators("aten::mm"),
        ["was not recorded", "backward 40.0 ms, forward 20.0 ms"],
        ["stall"],
    ),
    "a CPU beside a GPU": (
        operators("aten::mkldnn_linear"),
        ["CPU overhead between small operators"],
        ["was not recorded"],
    ),
}


@pytest.mark.parametrize("name", SAID)
def test_what_a_strangers_recording_is_told_to_be(name: str) -> None:
    made, said, unsaid = SAID[name]
    found = told(made)
    assert [words for words in said if words.lower() not in found.lower()] == [], found
    assert [words for words in unsaid if words in found] == [], found


@pytest.mark.parametrize("apart_ns", [-150 * MS, 330 * MS, 830 * MS])
def test_clocks_that_are_apart_by_a_constant_change_no_number(apart_ns: int) -> None:
    assert told(stalled(apart_ns)) == told(stalled())
    (moved,) = summary_of([on_one_clock(stalled(apart_ns).trace())]).quality.problems
    assert (moved.severity.value, moved.evidence) == ("good", f"made.json: by {abs(apart_ns) // MS} ms")


def test_clocks_that_run_apart_leave_the_causes_on_the_host_out() -> None:
    found = told(stalled(-150 * MS, drift=400 * US))
    assert "The clocks of host and device are apart" in found and "costs" not in found


def test_a_host_that_is_far_ahead_of_its_device_has_the_same_clock() -> None:
    one_early = work(Made(), 10 * MS, 200, ns=MS).event(230 * MS, 231 * MS, BF16, launch_ns=233 * MS)
    for made in (launched_before(1), work(Made(), 10 * MS, 200, ns=MS), one_early):
        assert on_one_clock(made.trace()).device_clock_ns == 0


@pytest.mark.parametrize("by_argument", [True, False])
def test_the_last_rank_is_named_where_one_file_has_the_messages_of_all_and_nothing_else(
    tmp_path: Path, by_argument: bool
) -> None:
    """Rank 2 comes 2 ms after the others; each collective ends on all at once."""
    events = []
    for rank in range(3):
        pid = rank + 5 if by_argument else 100 * rank
        events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"RANK {rank} - GPU"}})
        for i in range(6):
            start = 1_000 + i * 5_000 + 2_000 * (rank == 2)
            args: dict[str, Any] = {
                "Collective name": "allreduce",
                "In msg nelems": 1_000,
                "Group size": 3,
                "dtype": "Float",
            }
            args |= {"Process Group Name": "0", "device": rank, "stream": 4} | ({"rank": rank} if by_argument else {})
            times: dict[str, Any] = {"ts": start, "dur": (i + 1) * 5_000 - 500 - start, "pid": pid, "tid": 4}
            events.append({"ph": "X", "cat": "kernel", "name": "ncclDevKernel_Generic", "args": args} | times)
    file = tmp_path / "merged.json"
    file.write_text(json.dumps({"traceEvents": events}))
    (found,) = measure_jobs([file])
    assert found.ranks == [0, 1, 2]
    assert "Rank 2 is last to arrive at 5 of 5 collectives, 2.000 ms after the first" in words(found)

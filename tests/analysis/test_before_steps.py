"""The time before the first step, in parts that add up; and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest

from harness.explain.answer import answer
from harness.explain.start import before_sentences, shows_pytorch
from harness.traces.trace import CopyKind, HostKind, HostMemory
from tests.analysis.measuring import part_of, summary_of
from tests.analysis.test_first_use import MS, US, replayed
from tests.synthetic.columns import GEMM, Made

PARTS = ("copies", "capture", "compile", "meeting", "first_use", "data", "model", "imports", "device", "unknown")
NATIVE = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)"


def started(*, named: bool = True) -> Made:
    """100 ms of imports, 50 of meeting, 200 of first use, 300 of a model, 120 of them copies, and 80 without a name."""
    made = Made()
    if named:
        made.host(0, 100 * MS, "<frozen importlib._bootstrap>(1165): _find_and_load", HostKind.PYTHON)
        made.host(350 * MS, 650 * MS, "transformers/modeling_utils.py(9): from_pretrained", HostKind.PYTHON)
    made.range(0, 900 * MS, "distributed_training")
    made.range(100 * MS, 150 * MS, "init_process_group")
    made.call(150 * MS, 350 * MS, "cudaFree")
    for i in range(12):
        at = 500 * MS + i * 10 * MS
        made.call(at, at + 10 * MS, "cudaMemcpyAsync")
        memory = {"host_memory": int(HostMemory.PAGEABLE), "launch_ns": at}
        made.copy(at + 100 * US, at + 10 * MS, 30_000_000, CopyKind.H2D, **memory)
    return made


def steps(made: Made, count: int = 4, *, marked: bool) -> Made:
    for step in range(count):
        begin = 730 * MS + step * 20 * MS
        for i in range(20):
            at = begin + (i * i * 50 * US if step % 2 else 18 * MS - (19 - i) ** 2 * 49 * US)  # no kernel recurs evenly
            made.call(at, at + 5 * US, "cudaLaunchKernel")
            made.event(at + 8 * US, at + 30 * US, GEMM if i % 2 else NATIVE, launch_ns=at)
        if marked:
            made.step(begin, begin + 20 * MS, step)
    return made


def row(made: Made) -> dict[str, Any]:
    (found,) = part_of(made).rows.before_steps
    return found.model_dump()


@pytest.mark.parametrize("marked", [True, False])
def test_the_parts_before_the_first_step_add_up(marked: bool) -> None:
    found = row(steps(started(), marked=marked))
    assert found["ended_by"] == ("step" if marked else "work")
    assert found["recorded_ns"] == 900 * MS
    assert found["duration_ns"] == pytest.approx(730 * MS, abs=MS)
    assert sum(found[f"{part}_ns"] for part in PARTS) == found["duration_ns"]
    told = {part: found[f"{part}_ns"] // MS for part in PARTS if found[f"{part}_ns"]}
    assert told == {"imports": 100, "meeting": 50, "first_use": 200, "model": 180, "copies": 120, "unknown": 80}
    assert (found["copied_bytes"], found["pageable_bytes"]) == (360_000_000, 360_000_000)
    assert found["largest"]["first_use"] == "cudaFree" and found["largest"]["model"] == "from_pretrained"


def test_what_has_no_name_is_not_known_and_a_short_start_is_not_told() -> None:
    found = row(steps(started(named=False), marked=True))
    assert (found["imports_ns"], found["model_ns"], found["unknown_ns"]) == (0, 0, 360 * MS)
    said = answer(replayed(steps(Made().range(700 * MS, 730 * MS, "setup"), 20, marked=True)))
    assert not any("lie before" in text for text in (*said.first, *said.rest))


def test_a_large_start_is_told_and_is_no_loss_of_the_steps() -> None:
    summary = replayed(steps(started(), marked=False))
    assert summary.replay is not None and summary.replay.step_ns < 80 * MS  # without the start
    assert not any(found.cause in ("allocation", "first-use", "copies", "pageable") for found in summary.findings)
    said = answer(summary)
    text = " ".join([*said.first, *said.rest])
    assert "730 ms of the 900 ms recorded, 81.1 %, lie before the model's first work (no step is marked): " in text
    assert "200 ms first use of libraries and memory (mostly cudaFree)" in text
    assert "120 ms copies to the device (360 MB at 3.0 GB/s from pageable memory)" in text


def test_a_recording_of_a_single_moment_has_no_start_to_tell_of() -> None:
    summary = summary_of(Made().event(5, 5))
    assert summary.before_steps[0].recorded_ns == 0
    assert before_sentences(summary) == []


def test_the_cure_is_that_of_the_largest_part() -> None:
    summary = replayed(steps(started(named=False), marked=True))
    (own,) = summary.before_steps
    copies = own.model_copy(update={"copies_ns": 500 * MS})
    said = answer(summary.model_copy(update={"before_steps": [copies]}))
    (text,) = (each for each in said.sentences if "lie before the first step" in each)
    assert text.endswith("with non_blocking=True, or load the weights straight to the device (safetensors' load_file "
                         "with device).")  # fmt: skip


@pytest.mark.parametrize("tool", ["nsys", "kineto"])
def test_a_recording_of_nothing_but_set_up_says_so_and_finds_nothing(tool: str) -> None:
    made = started(named=False)
    made.identity["source"] = tool
    summary = replayed(made)
    assert summary.findings == [] and summary.quality.verdict.value == "doubtful"
    first, parts, later = answer(summary).first
    assert first.startswith("No kernel ran: the recording holds only what comes before the first step")
    assert "first use of libraries and memory (mostly cudaFree)" in parts and "360 MB were copied" in parts
    assert ("--capture-range=cudaProfilerApi" if tool == "nsys" else "torch.profiler.schedule") in later
    assert not any(word in f"{first} {parts} {later}" for word in ("PYTORCH", "keep buffers", "loses"))


@pytest.mark.parametrize(("kernel", "is_pytorch"), [("encoder_forward_kernel3", False), (NATIVE, True)])
def test_advice_for_pytorch_is_for_programs_that_show_it(kernel: str, is_pytorch: bool) -> None:
    made = Made(source="nsys")
    for i in range(200):
        at = i * 2 * MS
        made.call(at + 5 * US, at + MS, "cudaMalloc").call(at + MS, at + MS + 5 * US, "cudaLaunchKernel")
        made.event(at + MS + 8 * US, at + 2 * MS, kernel, launch_ns=at + MS)
    summary = replayed(made)
    assert shows_pytorch(summary) == is_pytorch
    assert summary.findings[0].cause == "allocation"
    advice = answer(summary).first[-1]
    assert ("PYTORCH_CUDA_ALLOC_CONF" in advice) == is_pytorch and "keep buffers" in advice

"""What the report says of a memory snapshot of PyTorch. No GPU is here: the allocator is a fake one, whose log has the
format of PyTorch's source, and what was alive is counted beside it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.analysis.snapshot import numbers_of
from harness.analysis.snapshot_numbers import DeviceMemory, LineMemory
from harness.cli.main import main
from harness.report.snapshot import snapshot_text
from tests.analysis.cuda_snapshots import MB, Allocator, stack, write_snapshot

ANY_SIZE = 1 << 30  # of a file


def device_of(allocator: Allocator, history: bool = True) -> DeviceMemory:
    (device,) = numbers_of(allocator.snapshot(history), ANY_SIZE).devices
    return device


def by_line(lines: list[LineMemory]) -> dict[int | None, int]:
    return {line.line: line.bytes for line in lines}


def said(allocator: Allocator, history: bool = True) -> str:
    text = snapshot_text("snapshot.pickle", numbers_of(allocator.snapshot(history), ANY_SIZE), 1000)
    return " ".join(text.split())


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4 * MB)), min_size=1, max_size=40), st.integers(0, 30))
@settings(max_examples=100, deadline=None)
def test_a_fake_allocators_peak_by_line_is_that_of_a_count_beside_it(orders: list[tuple[int, int]], cut: int) -> None:
    allocator, alive, most = Allocator(), dict[int, tuple[int | None, int]](), list[Any]()
    begin = min(cut, len(orders) - 1)
    for number, (line, size) in enumerate(orders):
        if number == begin:  # what was before is not in the recording
            allocator.events.clear()
            most = [alive.copy()]
        if line == 0 and alive:
            address = next(iter(alive))
            allocator.free(address)
            del alive[address]
        else:
            alive[allocator.alloc(size, line)] = (line, size)
        most.append(alive.copy())
    peak = max(most, key=lambda each: sum(size for _, size in each.values()))
    total = sum(size for _, size in peak.values())
    device = device_of(allocator)
    ended = {address for address in peak if address not in alive}
    before = [
        address
        for address in peak
        if not any(e.get("addr") == address and e["action"] == "alloc" for e in allocator.events)
    ]
    count = Counter[int | None]()
    for address, (line, size) in peak.items():
        count[None if address in before and address in ended else line] += size  # its stack is recorded nowhere
    assert device.peak_bytes == total and by_line(device.at_peak) == dict(count)
    end = Counter[int | None]()
    for line, size in alive.values():
        end[line] += size
    assert by_line(device.at_end) == dict(end) and device.contradicting_blocks == 0


def test_a_fake_allocators_state_is_what_its_segments_hold() -> None:
    allocator = Allocator()
    pool = allocator.segment(10 * MB)
    allocator.alloc(MB, 1, pool)
    allocator.alloc(2 * MB - 100, 2, pool + 4 * MB)
    device = device_of(allocator)
    assert (device.allocated_bytes, device.reserved_bytes, device.unused_bytes) == (3 * MB, 10 * MB, 7 * MB)
    assert device.largest_free_bytes == 4 * MB and by_line(device.at_end) == {1: MB, 2: 2 * MB - 100}


def test_a_block_that_waits_for_another_stream_is_alive_in_a_fake_allocators_log() -> None:
    allocator = Allocator()
    allocator.alloc(MB, 1)
    allocator.note("free_requested", addr=next(iter(allocator.blocks)), size=MB, frames=[])
    content = allocator.snapshot()
    content["segments"][0]["blocks"][0]["state"] = "active_pending_free"
    (device,) = numbers_of(content, ANY_SIZE).devices
    # Of a recording with no `free_completed` at all, the request is what frees.
    assert (device.allocated_bytes, device.pending_bytes, device.peak_bytes) == (0, MB, MB)


@pytest.mark.parametrize(("asked", "fragmented"), [(3 * MB, True), (5 * MB, False)])
def test_a_fake_allocator_runs_out_by_fragmentation_or_at_the_peak(asked: int, fragmented: bool) -> None:
    allocator = Allocator()
    pool = allocator.segment(8 * MB)
    kept = [allocator.alloc(MB, 1, pool + place * MB) for place in range(8)]
    for address in kept[::2]:
        allocator.free(address)
    allocator.oom(asked, 7, 61)
    for address in kept[1::2]:  # the program went on: the state at the end is not that of the failure
        allocator.free(address)
    (failure,) = device_of(allocator).out_of_memory
    assert (failure.asked_bytes, failure.device_free_bytes, failure.line) == (asked, 7, 61)
    assert (failure.reserved_bytes, failure.allocated_bytes, failure.unused_bytes) == (8 * MB, 4 * MB, 4 * MB)
    assert failure.is_fragmentation is fragmented
    text = said(allocator)
    assert text.startswith("snapshot.pickle: GPU 0 Out of memory at job/model.py:61 forward: ")
    assert ("fragmentation" in text) is fragmented and ("less must be held at the peak" in text) is not fragmented


def test_of_a_fake_allocator_only_the_line_that_keeps_blocks_in_every_step_grows() -> None:
    allocator = Allocator()
    for weights in range(30):
        allocator.alloc(4 * MB, 10 + weights % 2)
    for _ in range(40):
        activations = [allocator.alloc(MB, 20) for _ in range(30)]
        allocator.alloc(MB // 2, 77)
        for address in activations:
            allocator.free(address)
    (growing,) = device_of(allocator).growing
    assert growing.line == 77 and 38 * MB // 2 <= growing.grown_bytes <= 40 * MB // 2
    assert "job/model.py:77 forward grows" in said(allocator) and "Steps are not known" in said(allocator)


def test_a_fake_allocators_state_without_history_says_that_no_line_is_known() -> None:
    allocator = Allocator()
    allocator.alloc(MB, 1)
    device, text = device_of(allocator, history=False), said(allocator, history=False)
    assert device.peak_bytes is None and device.at_peak == [] and device.growing == []
    assert "Nothing was recorded before it" in text and "No block has a line" in text


def test_a_fake_allocators_blocks_alone_have_lines_and_no_peak() -> None:
    """As `_record_memory_history("state")` records."""
    allocator = Allocator()
    allocator.alloc(MB, 7)
    allocator.events = [{"action": "snapshot", "addr": 0, "size": MB, "stream": 0, "time_us": 1, "frames": []}]
    text = said(allocator)
    assert device_of(allocator).peak_bytes is None and "job/model.py:7 forward holds most: 1.05 MB, 100 %" in text
    assert "there is no peak" in text and "No block has a line" not in text


def test_a_fake_recording_that_stopped_before_the_snapshot_is_doubted() -> None:
    allocator = Allocator()
    allocator.alloc(MB, 1)
    allocator.blocks.clear()
    assert device_of(allocator).contradicting_blocks == 1 and "The peak may be wrong" in said(allocator)


def test_a_fake_snapshot_of_pytorch_2_0_has_its_lines_in_the_history_of_blocks() -> None:
    history = [{"addr": 1, "real_size": 1000, "frames": stack(5)}, {"addr": 1, "real_size": 9, "frames": stack(6)}]
    block = {"size": 1024, "state": "active_allocated", "history": history}
    content = [{"device": 3, "address": 1, "total_size": 1024, "blocks": [block]}]
    (device,) = numbers_of(content, ANY_SIZE).devices
    assert device.device == 3 and by_line(device.at_end) == {5: 1000} and device.allocated_bytes == 1024


FILES = {
    "/home/ann/job/lib/util.py": True,
    "/tmp/ipykernel_12/3.py": True,
    "/opt/conda/lib/python3.10/site-packages/transformers/trainer.py": False,
    "/usr/lib/python3/dist-packages/torch/nn/functional.py": False,
    "/home/ann/pytorch/torch/nn/functional.py": False,
    "/home/ann/job/kernel.cu": False,
    "<frozen runpy>": False,
}


@pytest.mark.parametrize(("file", "users"), FILES.items())
def test_a_line_is_the_innermost_of_the_users_files(file: str, users: bool) -> None:
    allocator = Allocator()
    address = allocator.alloc(MB, 1)
    allocator.blocks[address]["frames"] = [{"filename": file, "line": 7, "name": "f"}, *stack(8)]
    (line,) = device_of(allocator).at_end
    assert (line.line, line.file) == ((7, file) if users else (8, "/home/ann/job/model.py"))


def test_the_command_reports_a_fake_snapshot_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    allocator = Allocator(device=1)
    allocator.alloc(600 * MB, 12)
    path = str(write_snapshot(tmp_path / "dump", allocator.snapshot()))  # known by its first bytes
    assert main(["report", path]) == 0
    out = capfd.readouterr().out
    peak = "At the peak, 0 s after the recording began, 629 MB were held. job/model.py:12 forward holds most: 629 MB, "
    assert out.startswith(f"dump: GPU 1\n{peak}") and "  job/model.py:12 forward       629 MB" in out
    assert main(["report", path, "--json"]) == 0
    assert '"peak_bytes": 629145600' in capfd.readouterr().out
    for words in ([path, path], [path, "--html", str(tmp_path / "page.html")]):
        assert main(["report", *words]) == 2
        (line,) = capfd.readouterr().err.splitlines()
        assert "is a memory snapshot of PyTorch: " in line

"""A trace says the same in whatever layout its JSON is written."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.common.display.printable import printable
from harness.traces import open_trace
from harness.traces.kineto import framing
from harness.traces.trace import Activity
from tests.synthetic import kineto
from tests.traces.told import told


@pytest.mark.parametrize("layout", kineto.LAYOUTS)
@pytest.mark.parametrize("block_bytes", [framing.BLOCK_BYTES, 1, 7, 64, 1000])
def test_every_layout_reads_the_same_and_records_may_lie_across_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, block_bytes: int
) -> None:
    reference = told(open_trace(kineto.kineto(tmp_path / "reference.json", kineto.gpu_step())))
    assert reference["events"][0] == "void gemm<float, 2>(float*)"
    monkeypatch.setattr(framing, "BLOCK_BYTES", block_bytes)
    assert told(open_trace(kineto.kineto(tmp_path / "t.json", kineto.gpu_step(), layout))) == reference


@pytest.mark.parametrize("layout", kineto.LAYOUTS)
@pytest.mark.parametrize("long_bytes", [framing._LONG_BYTES, 0])
def test_a_record_of_thousands_of_blocks_is_looked_at_a_few_times_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, long_bytes: int
) -> None:
    records, looks = kineto.gpu_step(), 0
    whole = told(open_trace(kineto.kineto(tmp_path / "short.json", records, layout)))
    nested = [{"n": number} for number in range(9_000)]
    records[2:2] = [{"ph": "M", "name": "blocks", "pid": 1, "tid": 1, "args": {"nested": nested}}]
    path = kineto.kineto(tmp_path / "long.json", records, layout)

    more = framing.more

    def counted(stream: Iterator[bytes], size: int) -> bytes:
        nonlocal looks
        looks += 1
        return more(stream, size)

    monkeypatch.setattr(framing, "more", counted)
    monkeypatch.setattr(framing, "_LONG_BYTES", long_bytes)
    monkeypatch.setattr(framing, "BLOCK_BYTES", 50)
    without_notes = {"notes": None}  # a record that holds so many others may be left out, and no event is
    assert told(open_trace(path)) | without_notes == whole | without_notes
    assert path.stat().st_size / 50 > 2_000 > 10 * looks


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from("kcnora"), min_size=5, max_size=60), st.sampled_from([300, 1500]))
def test_dense_and_sparse_stretches_read_the_same_in_blocks_of_any_size(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[str], block_bytes: int
) -> None:
    nccl = {"Collective name": "allgather", "In msg nelems": 8, "Out msg nelems": 16, "dtype": "Float"}
    made = {
        "k": lambda t: kineto.kernel("void gemm()", t, 5, correlation=t),
        "c": lambda t: kineto.call("cudaLaunchKernel", t, 2, correlation=t),
        "n": lambda t: kineto.kernel("ncclDevKernel_AllGather", t, 9, **nccl),
        "o": lambda t: kineto.operator("record_param_comms", t, 9, **nccl),
        "r": lambda t: kineto.said(f"batch_{t}", t, 9),
        "a": lambda t: {"ph": "s", "id": t, "pid": 1, "tid": 1, "ts": kineto.at(t), "cat": "ac2g", "name": "ac2g"},
    }
    records = [made[kind](1_000 + 10 * i) for i, kind in enumerate(k for k in kinds for _ in range(12))]
    records.append(kineto.kernel("last", 10**9, 1))
    folder = tmp_path_factory.mktemp("dense")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(framing, "BLOCK_BYTES", block_bytes)
        compact = told(open_trace(kineto.kineto(folder / "t.json", records, "compact")))
        assert told(open_trace(kineto.kineto(folder / "t.json", records, "torch 1.9"))) == compact


DECOYS = [
    ("a category inside the arguments", {"inner": {"cat": "kernel", "name": "x", "ts": 1, "dur": 1}}),
    ("a record inside the arguments", {"cat": "cuda_runtime", "pid": 7, "ts": 3, "list": [{}, {"a": [{}]}]}),
    ("brackets in a text", {"text": '}, {"cat": "kernel"}]}'}),
    ("a quote at a text's end", {"text": 'x}, {\\"'}),
    ("the events' own key", {"traceEvents": [{"cat": "kernel"}, {"ph": "X"}]}),
]


@pytest.mark.parametrize("layout", kineto.LAYOUTS)
@pytest.mark.parametrize("args", [args for _, args in DECOYS], ids=[name for name, _ in DECOYS])
def test_text_that_only_looks_like_a_record_is_no_record(tmp_path: Path, layout: str, args: dict[str, Any]) -> None:
    records = [kineto.operator("aten::mm", 5_000, 10), *kineto.gpu_step(), kineto.said("range", 7_000, 10)]
    records[0]["args"] = records[-1]["args"] = args
    found = told(open_trace(kineto.kineto(tmp_path / "t.json", records, layout)))
    assert (len(found["events"]), len(found["calls"])) == (4, 2)
    assert sorted(found["ranges"]) == ["ProfilerStep#3", "ProfilerStep#4", "range"]


def test_a_large_footer_with_records_of_its_own_is_no_event(tmp_path: Path) -> None:
    footer = {"log": [{"cat": "kernel", "n": i, "text": "x" * 200} for i in range(5_000)], "traceName": "t"}
    for layout in kineto.LAYOUTS:
        trace = open_trace(kineto.kineto(tmp_path / "t.json", kineto.gpu_step(), layout, footer=footer))
        assert len(trace.events) == 4, layout
        assert trace.notes == [], layout


def test_a_bare_array_of_events_is_a_trace_too(tmp_path: Path) -> None:
    text = kineto.kineto_text(kineto.gpu_step(), "compact", header={}, footer={})
    (tmp_path / "t.json").write_bytes(text.removeprefix(b'{"traceEvents":').removesuffix(b"}"))
    assert len(open_trace(tmp_path / "t.json").events) == 4


spans = st.tuples(st.integers(0, 9 * 10**15), st.integers(0, 10**9), st.text(max_size=12), st.integers(0, 3))


@settings(max_examples=60, deadline=None)
@given(st.lists(spans, max_size=12), st.sampled_from(sorted(kineto.LAYOUTS)), st.randoms(use_true_random=False))
def test_any_kernels_in_any_layout_come_out_as_they_went_in(
    tmp_path_factory: pytest.TempPathFactory,
    kernels: list[tuple[int, int, str, int]],
    layout: str,
    chance: random.Random,
) -> None:
    records = [
        kineto.kernel(name, start, length, device=device, correlation=number)
        for number, (start, length, name, device) in enumerate(kernels)
    ]
    for one in records:
        if chance.random() < 0.3:
            items = list(one.items())
            chance.shuffle(items)
            one.clear()
            one.update(items)
    path = kineto.kineto(tmp_path_factory.mktemp("any") / "t.json", [*records, kineto.said("step", 0, 5)], layout)
    found = told(open_trace(path))
    got = list(zip(found["device"], found["start"], found["length"], found["events"], strict=True))
    assert sorted(got) == sorted((d, s, n, printable(json.loads(json.dumps(text)))) for s, n, text, d in kernels)
    assert set(found["activity"]) <= {Activity.KERNEL}
    assert got == sorted(got, key=itemgetter(0, 1))

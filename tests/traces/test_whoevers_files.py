"""Members of each kind of file that was once read wrongly: a report is never "good" and wrong.

Each member is made from a trace whose share of computing is known by its making, and in many layouts. What cannot be
told rightly is repaired, doubted or refused; only `good` with another share is a failure.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from harness.analysis.summary import RecordingVerdict, Summary
from harness.common.errors import HarnessError
from harness.explain.answer import answer
from harness.measure.paths import measure_jobs
from harness.traces import open_trace
from tests.synthetic import kineto

STEPS, STEP_NS, KERNELS = 6, 100_000_000, 30
BEGIN_NS = 1_732_620_000_000_000_000
NEAR = 0.01  # of the window, by which a share may differ: a step's edge, a repaired end
Record = dict[str, Any]
Random = random.Random


def header(rank: int = 0, world: int = 1) -> Record:
    about = {"backend": "nccl", "rank": rank, "world_size": world}
    device = {"id": 0, "name": "NVIDIA A100-SXM4-40GB", "numSms": 108}
    return {"schemaVersion": 1, "deviceProperties": [device], "distributedInfo": about, "host_name": "node7"}


def training(r: Random, share: float, *, begin_ns: int = BEGIN_NS, pid: int = 4100, first: int = 3) -> list[Record]:
    """Steps in whose parts kernels of random lengths compute `share` of the time, one after the other."""
    records: list[Record] = []
    number = 1000
    for step in range(STEPS):
        start = begin_ns + step * STEP_NS
        records.append(kineto.said(f"ProfilerStep#{first + step}", start, STEP_NS))
        weights = [r.uniform(0.3, 1.0) for _ in range(KERNELS)]
        at = start + 1_000_000
        for place, weight in enumerate(weights):
            took = int(share * STEP_NS * weight / sum(weights))
            name = ["void gemm_bf16<256, 128>(float*)", "elementwise_kernel<add>", "flash_fwd_kernel"][place % 3]
            records.append(kineto.operator("aten::mm", at - 20_000, 15_000))
            records.append(kineto.call("cudaLaunchKernel", at - 10_000, 5_000, correlation=number))
            records.append(kineto.kernel(name, at, took, correlation=number))
            number += 1
            at += took + int((1 - share) * (STEP_NS - 2_000_000) / KERNELS)
    for record in records:
        record["pid"] = pid if record["pid"] == 50 else record["pid"]
    return records


def is_kernel(record: Record) -> bool:
    return bool(record.get("cat") == "kernel")


def written(r: Random, folder: Path, records: list[Record], name: str = "t.json", **how: Any) -> Path:
    path = kineto.kineto(folder / name, records, r.choice(sorted(kineto.LAYOUTS)), header=header(**how), footer={})
    if r.random() < 0.5:
        packed = path.with_name(path.name + ".gz")
        packed.write_bytes(gzip.compress(path.read_bytes(), 1))
        path.unlink()
        return packed
    return path


def computing(summary: Summary) -> list[float]:
    return sorted((device.compute_ns or 0) / device.window_ns for device in summary.devices)


def never_good_and_wrong(paths: list[Path], shares: list[list[float]]) -> list[Summary]:
    """The summaries; a good one has the shares of one job. Empty: the files were refused."""
    try:
        summaries = measure_jobs(paths)
    except HarnessError:
        return []
    for summary in summaries:
        if summary.quality.verdict is RecordingVerdict.GOOD:
            found = computing(summary)
            near = [job for job in shares if len(job) == len(found)]
            assert any(found == pytest.approx(sorted(job), abs=NEAR) for job in near), (found, shares)
    return summaries


ODD_TEXTS = ("a\nb", "a\x01b", "C:\\dev\\x", 'say "x"', "\\ud800", "\tb", "half \\u12", "end\\")


def not_strict_json(r: Random, folder: Path, share: float) -> tuple[list[Path], list[list[float]]]:
    """Some names hold what JSON does not allow, or the text is in another encoding."""
    records = training(r, share)
    chosen = r.sample(range(len(records)), r.randint(1, 5))
    for at in chosen:
        records[at] = {**records[at], "name": records[at]["name"] + "@@"}
    path = written(r, folder, records)
    packed = path.suffix == ".gz"
    text = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
    text = re.sub(rb"@@", lambda _: r.choice(ODD_TEXTS).encode(), text)
    encoding = r.choice(("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1"))
    text = text.decode().encode(encoding)
    path.write_bytes(gzip.compress(text, 1) if packed else text)
    return [path], [[share]]


def impossible_durations(r: Random, folder: Path, share: float) -> tuple[list[Path], list[list[float]]]:
    """Kernels that last seconds into the next ones of their stream."""
    records = training(r, share)
    kernels = [record for record in records if is_kernel(record)][:-KERNELS]
    for record in r.sample(kernels, r.randint(1, 4)):
        record["dur"] = kineto.at(r.randint(STEP_NS // 2, 40 * STEP_NS))
    return [written(r, folder, records)], [[share]]


def merged_ranks(r: Random, folder: Path, share: float) -> tuple[list[Path], list[list[float]]]:
    """Several ranks in one file, told apart by labelled processes, by a rank in each event, or by nothing."""
    ranks = r.randint(2, 4)
    shares = [share * r.uniform(0.4, 1.0) for _ in range(ranks)]
    how = r.choice(("label", "args", "nothing", "pids"))
    records: list[Record] = []
    for rank, own in enumerate(shares):
        for record in training(r, own, pid=4100 + rank * (how == "pids")):
            if how == "label":
                record["pid"] = f"[TP{rank:02d}] {record['pid']}"
            if how == "args":
                record["args"] = {**record.get("args", {}), "rank": rank}
            records.append(record)
    return [written(r, folder, records)], [shares]


def unknown_devices(r: Random, folder: Path, share: float) -> tuple[list[Path], list[list[float]]]:
    """A device's work has a category that nobody knows; its calls may have one, too."""
    records = training(r, share)
    category = r.choice(("mtia_ccp_events", "hpu_kernel", "npu", "xpu_kernel", "tpu_op", "gpu_task", "Kernel"))
    for record in records:
        if is_kernel(record):
            record["cat"] = category
        elif record.get("cat") == "cuda_runtime" and r.random() < 0.5:
            record["cat"] = "privateuse1_runtime"
    return [written(r, folder, records)], [[share]]


def begin_and_end(r: Random, folder: Path, share: float) -> tuple[list[Path], list[list[float]]]:
    """Pairs of begin and end in the place of spans."""
    events: list[Record] = []
    for record in training(r, share):
        start = float(record["ts"])
        begin = {key: value for key, value in record.items() if key != "dur"} | {"ph": "B", "ts": start}
        end = {key: record[key] for key in ("name", "pid", "tid")} | {"ph": "E", "ts": start + float(record["dur"])}
        events += [begin, end]
    events.sort(key=lambda event: event["ts"])
    path = folder / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return [path], [[share]]


def several_recordings(r: Random, folder: Path, share: float) -> tuple[list[Path], list[list[float]]]:
    """Two or three recordings of each of two ranks in one folder."""
    cycles = r.randint(2, 3)
    shares = [[share * r.uniform(0.5, 1.0) for _ in range(2)] for _ in range(cycles)]
    named_by_step = r.random() < 0.5
    apart = r.randint(2, 9)
    for cycle, pair in enumerate(shares):
        begin = BEGIN_NS + cycle * apart * STEPS * STEP_NS
        for rank, own in enumerate(pair):
            records = training(r, own, begin_ns=begin, pid=4100 + rank, first=3 + 10 * cycle)
            name = f"step_{10 * cycle}_rank{rank}.json" if named_by_step else f"h_{4100 + rank}.{begin + rank}.json"
            written(r, folder, records, name, rank=rank, world=2)
    return [folder], shares


def lost_work(r: Random, folder: Path, share: float) -> tuple[list[Path], list[list[float]]]:
    """The kernels of some launches are not in the file: at the beginning, in the middle, or here and there."""
    records = training(r, share)
    kernels = [at for at, record in enumerate(records) if is_kernel(record)]
    kernels = kernels[:-1]  # after the last work nothing tells what was lost
    count = r.randint(len(kernels) // 40, len(kernels) // 3)
    begin = r.choice((0, r.randint(1, len(kernels) - count)))
    lost = {*(kernels[begin : begin + count] if r.random() < 0.7 else r.sample(kernels, count))}
    return [written(r, folder, [record for at, record in enumerate(records) if at not in lost])], [[share]]


def optimizer_marks(r: Random, folder: Path, share: float) -> tuple[list[Path], list[list[float]]]:
    """Marks around several steps each, or none: PyTorch's own ranges of the optimizer tell the steps."""
    records = [record for record in training(r, share) if record.get("cat") != "user_annotation"]
    for step in range(STEPS):
        end = BEGIN_NS + (step + 1) * STEP_NS
        records.append(kineto.said("Optimizer.step#AdamW.step", end - 2_000_000, 1_000_000))
    marks = r.randint(0, 3)
    for mark in range(marks):
        length = STEPS * STEP_NS // marks
        records.append(kineto.said(f"ProfilerStep#{3 + mark}", BEGIN_NS + mark * length, length))
    return [written(r, folder, records)], [[share]]


AUTOGRAD = 51  # the thread of the backward passes
LOADS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
NODE = "autograd::engine::evaluate_function: MmBackward0"


def evaluated_batches(r: Random, folder: Path, share: float) -> tuple[list[Path], list[list[float]]]:
    """In some steps a second batch is loaded, and nothing is trained on it. No range says so."""
    records = training(r, share)
    chosen = r.sample(range(STEPS), r.randint(1, STEPS - 1))
    for step in range(STEPS):
        start = BEGIN_NS + step * STEP_NS
        begin, end = (STEP_NS * part // 10 for part in ((3, 6) if step in chosen else (4, 10)))
        records.append(kineto.operator(NODE, start + begin, end - begin, tid=AUTOGRAD))
        records += [kineto.said(LOADS, start + at, 500_000) for at in (100_000, *([end] if step in chosen else ()))]
        for record in records:
            in_step = int(record["ts"].replace(".", "")) - start
            if record["cat"] == "cuda_runtime" and begin <= in_step < end:
                record["tid"] = AUTOGRAD
    return [written(r, folder, records)], [[share]]


def numbers_that_are_no_ranks(r: Random, folder: Path, share: float) -> tuple[list[Path], list[list[float]]]:
    """Trainings apart, whose names differ in a number: LoRA's rank, a host, a worker of a data loader."""
    name = r.choice(("lora_rank{}.json", "worker-{}_4100.json", "bert-rank{}-r1.json", "node7_worker{}.json"))
    shares = [[share * r.uniform(0.4, 1.0)] for _ in range(r.randint(1, 3))]
    for place, (own,) in enumerate(shares):
        records = training(r, own)
        kineto.kineto(folder / name.format(2 ** (3 + place)), records, header={"schemaVersion": 1}, footer={})
    return [folder], shares


def records_twice(r: Random, folder: Path, share: float) -> tuple[list[Path], list[list[float]]]:
    """Some or all of the records are in the file again, in any order."""
    records = training(r, share)
    again = r.choice((records, [record for record in records if r.random() < 0.5]))
    together = [*records, *again]
    if r.random() < 0.5:
        r.shuffle(together)
    return [written(r, folder, together)], [[share]]


def moved_devices(r: Random, folder: Path, share: float) -> tuple[list[Path], list[list[float]]]:
    """A half of a device's work has another device's number, here and there or in the second half."""
    records = training(r, share)
    kernels = [record for record in records if is_kernel(record)]
    moved = r.choice((kernels[len(kernels) // 2 :], r.sample(kernels, len(kernels) // 2), kernels[::2]))
    for record in moved:
        record["args"] = record["args"] | {"device": 1}
        record["pid"] = r.choice((record["pid"], 1))
    return [written(r, folder, records)], [[share]]


Maker = Callable[[Random, Path, float], tuple[list[Path], list[list[float]]]]


class Kind(NamedTuple):
    """A row of reliability.md. told: what the report says of one of its members at least; empty: nothing. is_read: each
    member is read as what it is."""

    make: Maker
    file: str
    what_is_done: str
    told: str = ""
    is_read: bool = False


KINDS = (
    Kind(not_strict_json, "records that are not strict JSON (a line break in a name), or a text in UTF-16",
         "the record is repaired, or left out and counted", is_read=True),
    Kind(impossible_durations, "a kernel that lasts into the next ones of its stream",
         "it is taken as long as the others of its name, or until the next begins",
         "still run where the next one of their stream begins"),
    Kind(merged_ranks, "several ranks in one file", "they are told apart by what differs; else the report is doubtful",
         "launches have the number of another launch"),
    Kind(unknown_devices, "a device's work under an unknown category",
         "it is read as the device's, and never replaced by the host's", "no category of PyTorch's, are read as",
         is_read=True),
    Kind(begin_and_end, "pairs of begin and end in the place of spans", "they are read as spans", is_read=True),
    Kind(several_recordings, "several recordings of each rank in one folder", "each is a job, by its time or steps",
         is_read=True),
    Kind(lost_work, "launches whose kernels are not in the file",
         "the steps that made them are left out, and the report is doubtful; if no two steps are whole, it has no idle "
         "time",
         "launches have no kernel, copy or set in the file"),
    Kind(optimizer_marks, "a mark around several steps, or none",
         "the optimizer's own ranges, which PyTorch records, tell the steps", is_read=True),
    Kind(evaluated_batches, "an evaluation between steps that no range tells",
         "batches that no backward pass follows, in some steps and not in all, are the phase *evaluation*",
         "without training costs"),
    Kind(records_twice, "the same records twice", "each counts once, and the report is doubtful",
         "pieces of work are in the file again", is_read=True),
    Kind(moved_devices, "work of one context on several devices", "the report is doubtful", "a context has one device"),
    Kind(numbers_that_are_no_ranks, "a number in a file's name that is no rank (LoRA's rank, a host)",
         "it is a rank if the names of the folder count up from 0; else the file is a training of its own"),
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.make.__name__)
def test_no_member_of_a_kind_is_good_and_wrong_and_what_is_done_is_told(tmp_path: Path, kind: Kind) -> None:
    said: list[str] = []
    for seed in range(12):
        folder = tmp_path / str(seed)
        folder.mkdir()
        r = Random(f"{kind.make.__name__} {seed}")
        paths, shares = kind.make(r, folder, r.uniform(0.2, 0.8))
        summaries = never_good_and_wrong(paths, shares)
        for summary in summaries:
            said += [*(problem.evidence for problem in summary.quality.problems), *answer(summary).first]
        if kind.is_read:
            found = [share for summary in summaries for share in computing(summary)]
            assert sorted(found) == pytest.approx(sorted(chain(*shares)), abs=2 * NEAR)
            assert [len(summary.devices) for summary in summaries] == [len(job) for job in shares]
    assert not kind.told or any(kind.told in one for one in said)


def test_the_trace_itself_is_good_and_right(tmp_path: Path) -> None:
    for seed in range(6):
        folder = tmp_path / str(seed)
        folder.mkdir()
        r = Random(seed)
        (summary,) = never_good_and_wrong([written(r, folder, training(r, 0.45))], [[0.45]])
        assert summary.quality.verdict is RecordingVerdict.GOOD


@pytest.mark.parametrize(
    ("size", "peers", "beside", "communicates"),
    [(2, 1, False, True), (4, 3, False, True), (1, 1, False, False), (2, 1, True, False)],
)
def test_copies_that_carry_out_a_collective_communicate(
    tmp_path: Path, size: int, peers: int, beside: bool, communicates: bool
) -> None:
    """NCCL's copy engines, without a kernel. A group of one copies to itself; a kernel may have a copy beside it."""
    r = Random(size)
    records = training(r, 0.4)
    about = {"Collective name": "_allgather_base", "In msg nelems": 500_000, "Out msg nelems": 500_000 * size,
             "Group size": size, "dtype": "BFloat16", "Process Group Name": "0"}  # fmt: skip
    for step in range(STEPS):
        start, number = BEGIN_NS + step * STEP_NS + 50_000_000, 90_000 + 10 * step
        records.append(kineto.operator("record_param_comms", start, 60_000, **about))
        for peer in range(peers):
            records.append(kineto.call("cudaMemcpyBatchAsync", start + 5000 + peer * 6000, 5_000, correlation=number))
            copy = kineto.kernel("Memcpy PtoP (Device -> Device)", start + 10**6 * (1 + 10 * peer), 9 * 10**6,
                                 cat="gpu_memcpy", stream=20, correlation=number, bytes=10**6)  # fmt: skip
            records.append(copy)
            number += 1
        if beside:
            records.append(kineto.call("cudaLaunchKernel", start + 40_000, 5_000, correlation=number))
            records.append(kineto.kernel("ncclDevKernel_AllGather_RING_LL", start + 90_000, 500_000, stream=21,
                                         correlation=number))  # fmt: skip
    (summary,) = measure_jobs([written(r, tmp_path, records, world=size)])
    (device,) = summary.devices
    copied_ns = STEPS * peers * 9 * 10**6
    assert computing(summary) == pytest.approx([0.4], abs=NEAR)
    assert device.communication_ns == (copied_ns if communicates else STEPS * 500_000 * beside)
    assert device.memory_ns == (0 if communicates else copied_ns)
    sent = [(row.kind, row.count, row.duration_ns) for row in summary.collectives]
    whole_ns = STEPS * (peers * 10**7 - 10**6)  # from the first copy's begin to the last one's end
    assert sent == ([("all_gather", STEPS, whole_ns)] if communicates else sent)


def test_what_a_file_of_another_tool_holds_is_named(tmp_path: Path) -> None:
    """As VizTracer writes it: Python's functions, without anything of a device."""
    path = tmp_path / "result.json"
    span = {"ph": "X", "cat": "FEE", "name": "f (t.py:1)", "pid": 1, "tid": 1, "dur": 1}
    spans = [span | {"ts": n} for n in range(9)]
    path.write_text(json.dumps({"traceEvents": spans, "viztracer_metadata": {"version": "1.1.1"}, "file_info": {}}))
    (summary,) = measure_jobs([path])
    assert answer(summary).first[0].startswith("Do not build on these numbers")
    assert "the file holds 9 spans (0.0 ms) of 'FEE', which are neither" in answer(summary).first[0]


def test_events_of_an_unknown_category_are_a_devices_only_if_they_name_one(tmp_path: Path) -> None:
    work = [kineto.kernel("op", BEGIN_NS + n * 1000, 500, cat="task") for n in range(4)]
    phases = [kineto.record("phase", "load", BEGIN_NS + n * 1000, 900, pid="trainer", tid=1) for n in range(4)]
    events = open_trace(kineto.kineto(tmp_path / "t.json", [*work, *phases])).events
    assert (events.end_ns - events.start_ns).tolist() == [500] * 4


@pytest.mark.parametrize("step", range(STEPS))
def test_a_step_that_lost_work_is_left_out_and_the_others_are_right(tmp_path: Path, step: int) -> None:
    r = Random(step)
    records = training(r, 0.45)
    kernels = [at for at, record in enumerate(records) if is_kernel(record)]
    count = r.randint(4, KERNELS - 1)
    lost = {*kernels[step * KERNELS : (step + 1) * KERNELS][:count]}
    kept = [record for at, record in enumerate(records) if at not in lost]
    (summary,) = never_good_and_wrong([written(r, tmp_path, kept)], [])
    assert summary.quality.verdict is RecordingVerdict.DOUBTFUL
    assert computing(summary) == pytest.approx([0.45], abs=NEAR)
    assert summary.steps.counted == max(step, STEPS - 1 - step)
    assert summary.steps.counted + summary.steps.excluded_work_lost == STEPS


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (("lora_rank8.json", "lora_rank16.json"), [None, None]),
        (("worker-3_4100.json",), [None]),
        (("run_rank0.json", "run_rank1.json"), [0, 1]),
        (("rank5.json",), [5]),
        (("a_rank0.json", "a_rank1.json", "b_rank2.json", "b_rank3.json"), [0, 1, 2, 3]),
    ],
)
def test_a_number_in_a_name_is_a_rank_only_if_the_names_say_so(
    tmp_path: Path, names: tuple[str, ...], ranks: list[int | None]
) -> None:
    for name in names:
        kineto.kineto(tmp_path / name, training(Random(name), 0.5), header={"schemaVersion": 1}, footer={})
    found = {Path(s.path).name: s.rank for summary in measure_jobs([tmp_path]) for s in summary.sources}
    assert [found[name] for name in names] == ranks

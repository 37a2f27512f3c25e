"""Files and folders of traces: found in order, read in turn or in a pool; broken files are named."""

from __future__ import annotations

import gzip
import io
import os
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from harness.traces import Trace, TraceError, find_traces, many, map_traces
from harness.traces.many import memory_bytes, worker_count
from harness.traces.pool import process_pool
from harness.traces.progress import ProgressLine
from tests.synthetic import kineto


def ranks(folder: Path, count: int) -> list[Path]:
    for rank in range(count):
        records = [kineto.kernel(f"on {rank}", 1_000 + i, 1) for i in range(rank + 1)]
        kineto.kineto(folder / f"rank{rank}.json", records)
    return [folder / f"rank{rank}.json" for rank in range(count)]


def kernels_and_process(trace: Trace) -> tuple[int, int]:
    return len(trace.events), os.getpid()


def test_folders_give_their_traces_in_the_order_of_ranks(tmp_path: Path) -> None:
    files = ranks(tmp_path, 12)
    assert find_traces([tmp_path]) == files
    assert find_traces([files[3], tmp_path])[0] == files[3]
    assert len(find_traces([files[3], tmp_path])) == 12


def test_other_json_in_a_folder_is_no_trace(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"experiment": 1}')
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "rank0.json.gz").write_bytes(gzip.compress(kineto.kineto_text(kineto.gpu_step())))
    (tmp_path / "broken.json.gz").write_bytes(b"\x1f\x8b")
    assert [f.name for f in find_traces([tmp_path])] == ["rank0.json.gz"]
    with pytest.raises(TraceError, match="does not exist"):
        find_traces([tmp_path / "nowhere"])


def test_a_rank_whose_file_is_unusable_is_found_and_says_why(tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
    kinds = {"": b"", "lfs": pointer, "damaged": b"\x1f\x8b" + b"x" * 99, "cut": b"\x1f\x8b"}
    for number, data in enumerate(kinds.values()):
        (tmp_path / f"rank{number}.json.gz").write_bytes(data)
    (tmp_path / "rank4.json").write_bytes(b"")
    (tmp_path / "rank5.sqlite").write_bytes(b"")
    (tmp_path / "rank6.nsys-rep").write_bytes(pointer)
    (tmp_path / "notes.json").write_bytes(b"")
    found = find_traces([tmp_path])
    assert [f.name for f in found] == [f.name for f in sorted(tmp_path.glob("rank*"))]
    said = map_traces(found, kernels_and_process, workers=1)
    for what, error in zip(["is empty", "LFS", "damaged", "ends in the middle", "is empty", "is empty", "LFS"], said,
                           strict=True):  # fmt: skip
        assert what in str(error)


def test_an_empty_export_does_not_stand_in_for_its_report(tmp_path: Path) -> None:
    report, export = tmp_path / "profile_node0.nsys-rep", tmp_path / "profile_node0.sqlite"
    report.write_bytes(b"x")
    export.write_bytes(b"")
    assert find_traces([tmp_path]) == [report]


def test_of_a_report_and_its_own_export_one_is_read(tmp_path: Path) -> None:
    report, export = tmp_path / "profile_node0.nsys-rep", tmp_path / "profile_node0.sqlite"
    report.write_bytes(b"x")
    export.write_bytes(b"x")
    (tmp_path / "profile_node0.nsys-rep.0123456789abcdef.sqlite").write_bytes(b"x")
    assert find_traces([tmp_path]) == [export]
    os.utime(export, ns=(0, 0))
    assert find_traces([tmp_path]) == [report], "an export older than its report is not its own"


@pytest.mark.parametrize("workers", [1, 3])
def test_results_keep_the_order_and_broken_files_are_named(tmp_path: Path, workers: int) -> None:
    files = ranks(tmp_path, 5)
    files[2].write_text("no trace")
    seen: list[tuple[int, int]] = []
    results = map_traces(files, kernels_and_process, workers=workers, progress=lambda *d: seen.append(d))
    assert [None if isinstance(r, TraceError) else r[0] for r in results] == [1, 2, None, 4, 5]
    broken = results[2]
    assert isinstance(broken, TraceError) and str(files[2]) in str(broken)
    assert seen[-1][0] == seen[-1][1] > 0
    processes = {r[1] for r in results if not isinstance(r, TraceError)}
    assert (os.getpid() in processes) == (workers == 1)


def kill_the_worker(trace: Trace) -> int:
    os._exit(9)


def test_a_worker_that_is_killed_is_an_error_that_says_so(tmp_path: Path) -> None:
    results = map_traces(ranks(tmp_path, 3), kill_the_worker, workers=2)
    assert all(isinstance(r, TraceError) and "worker process was killed" in str(r) for r in results)


def test_a_worker_that_dies_while_files_are_handed_out_is_an_error_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = process_pool

    def dying(workers: int) -> ProcessPoolExecutor:
        pool = made(workers)
        hand_out = pool.submit
        handed_out: list[Any] = []

        def submit(*job: Any) -> Any:
            if handed_out:
                raise BrokenProcessPool
            handed_out.append(job)
            return hand_out(*job)

        monkeypatch.setattr(pool, "submit", submit)
        return pool

    monkeypatch.setattr(many, "process_pool", dying)
    read, *lost = map_traces(ranks(tmp_path, 3), kernels_and_process, workers=2)
    results = sorted([read, *lost], key=lambda result: isinstance(result, TraceError))
    assert [isinstance(result, TraceError) for result in results] == [False, True, True]
    assert all("worker process was killed" in str(result) for result in results[1:])


def test_no_more_workers_than_the_memory_holds(tmp_path: Path) -> None:
    files = ranks(tmp_path, 8)
    each = max(map(memory_bytes, files))
    assert worker_count(files, 8, 3 * each) == 3
    assert worker_count(files, 8, 100 * each) == 8
    assert worker_count(files, 8, 1) == 1, "one is always read"
    assert worker_count(files[:2], 8, 100 * each) == 2


def test_progress_is_silent_for_a_second_and_then_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    out = io.StringIO()
    with ProgressLine("reading", out) as progress:
        progress(10_000_000, 500_000_000)
        assert out.getvalue() == ""
        now += 1.5
        progress(200_000_000, 500_000_000)
    assert out.getvalue() == "reading: 200 of 500 MB\n"

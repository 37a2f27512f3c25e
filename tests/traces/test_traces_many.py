"""Files and folders of traces: found in order, read in turn or in a pool; broken files are named."""

from __future__ import annotations

import gzip
import io
import os
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from harness.traces import Trace, TraceError, find_traces, map_traces, open_trace
from harness.traces.many import memory_bytes, worker_count
from harness.traces.progress import ProgressLine
from tests.synthetic import kineto, nsys


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


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
PACKED = gzip.compress(kineto.kineto_text(kineto.gpu_step()))
REPORT, EXPORT = "profile_node0.nsys-rep", "profile_node0.sqlite"
FOLDERS: dict[str, tuple[dict[str, bytes], list[str]]] = {
    "other JSON is no trace": (
        {"run.json": b'{"experiment": 1}', "rank0.json.gz": PACKED, "broken.json.gz": b"\x1f\x8b", "notes.json": b""},
        ["rank0.json.gz"],
    ),
    "an empty export does not stand in for its report": ({REPORT: b"x", EXPORT: b""}, [REPORT]),
    "of a report and its own export one is read": (
        {REPORT: b"x", EXPORT: b"x", f"{REPORT}.0123456789abcdef.sqlite": b"x"}, [EXPORT]
    ),
}  # fmt: skip
UNUSABLE = {
    "rank0.json.gz": (b"", "is empty"), "rank1.json.gz": (POINTER, "LFS"),
    "rank2.json.gz": (b"\x1f\x8b" + b"x" * 99, "damaged"), "rank3.json.gz": (b"\x1f\x8b", "ends in the middle"),
    "rank4.json": (b"", "is empty"), "rank5.sqlite": (b"", "is empty"), "rank6.nsys-rep": (POINTER, "LFS"),
}  # fmt: skip


def filled(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("name", FOLDERS)
def test_the_traces_of_a_folder_are_found(tmp_path: Path, name: str) -> None:
    files, expected = FOLDERS[name]
    assert [file.name for file in find_traces([filled(tmp_path, files)])] == expected


def test_an_export_older_than_its_report_is_not_its_own(tmp_path: Path) -> None:
    os.utime(filled(tmp_path, {REPORT: b"x", EXPORT: b"x"}) / EXPORT, ns=(0, 0))
    assert find_traces([tmp_path]) == [tmp_path / REPORT]


def test_a_rank_whose_file_is_unusable_is_found_and_says_why(tmp_path: Path) -> None:
    found = find_traces([filled(tmp_path, {name: content for name, (content, _) in UNUSABLE.items()})])
    assert [file.name for file in found] == list(UNUSABLE)
    said = map_traces(found, kernels_and_process, workers=1)
    for error, (_, why) in zip(said, UNUSABLE.values(), strict=True):
        assert why in str(error)
    with pytest.raises(TraceError, match="does not exist"):
        find_traces([tmp_path / "nowhere"])


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


def broken(*_: object) -> None:
    raise BrokenProcessPool


def test_a_worker_that_is_killed_is_an_error_of_each_file_that_was_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[object] = [*map_traces(ranks(tmp_path, 3), kill_the_worker, workers=2)]
    monkeypatch.setattr(ProcessPoolExecutor, "submit", broken)  # it died before the files were handed out
    lost += map_traces(ranks(tmp_path, 3), kernels_and_process, workers=2)
    assert len(lost) == 6
    assert all(isinstance(each, TraceError) and "worker process was killed" in str(each) for each in lost)


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


@pytest.mark.parametrize("kind", ["t.json", "t.sqlite"])
def test_progress_grows_up_to_the_files_size(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    if kind == "t.json":
        kineto.kineto(path, [r for i in range(2_000) for r in kineto.gpu_step(10**15 + i, 10 * i)])
    else:
        made = nsys.nsys_step()
        for i in range(20_000):
            made.kernel("k", 50_000 + i, 1)
        made.saved(path)
    reported: list[tuple[int, int]] = []
    open_trace(path, progress=lambda done, total: reported.append((done, total)))
    assert len(reported) > 2
    assert {total for _, total in reported} == {path.stat().st_size}
    assert all(0 < done <= total for done, total in reported)
    assert [done for done, _ in reported] == sorted(done for done, _ in reported)

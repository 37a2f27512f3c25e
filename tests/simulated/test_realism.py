"""The simulator is held against recordings: its own, which it must meet, and real ones, which it must come near to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gpu_jobs.kineto_file import write_kineto
from gpu_jobs.realism import WITHIN, realism, table
from gpu_jobs.recorded import Call, Process, Task, read
from gpu_jobs.retold import story
from gpu_jobs.simulate import run
from gpu_jobs.training import Training

from tests.real_traces import real_trace

HOST_AHEAD = Training(ranks=2, steps=5, kernel_ns=400_000)
DEVICE_AHEAD = Training(ranks=2, steps=5, kernel_ns=10_000, python_ns=30_000)
READS_LOSS = Training(kind="alone", ranks=1, item_every=1)
PIPELINE = Training(kind="pipeline", ranks=4, stages=4, micro_batches=4)


def recorded(training: Training, folder: Path) -> Path:
    for recording in run(training):
        write_kineto(recording, training.ranks, folder / f"rank{recording.rank}.json", python=False)
    return folder


@pytest.mark.parametrize("training", [HOST_AHEAD, DEVICE_AHEAD, Training(kind="alone", ranks=1, item_every=1)])
def test_a_simulated_recording_told_again_runs_as_it_did(training: Training, tmp_path: Path) -> None:
    result = realism(recorded(training, tmp_path))
    assert result.kernels > 500
    assert result.p90_error < 0.005
    assert result.makespan_ratio == pytest.approx(1, abs=0.005)


def test_longer_work_of_the_device_or_the_host_is_seen_where_it_is_what_takes_the_time(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    device_bound = realism(recorded(HOST_AHEAD, tmp_path / "a"))
    host_bound = realism(recorded(DEVICE_AHEAD, tmp_path / "b"))
    assert device_bound.device_control > 0.1
    assert device_bound.host_control < 0.01
    assert host_bound.host_control > 0.1
    assert host_bound.device_control < 0.02


def test_a_launch_that_waited_for_room_is_told_without_its_waiting() -> None:
    """The host launches 600 kernels of 100 us, each call 5 us, and has to wait whenever 400 are ahead."""
    calls: list[Call] = []
    tasks: list[Task] = []
    now = device = 0
    for number in range(1, 601):
        start = now
        now += 5_000
        if number > 400:
            now = max(now, tasks[number - 401].start)
        calls.append(Call(1, "cudaLaunchKernel", start, now, number))
        begin = max(now + 2_000, device)
        device = begin + 100_000
        tasks.append(Task("gemm", "kernel", 7, begin, device, number, False))
    told = story(Process(calls, tasks))
    assert told.costs.depth == pytest.approx(400, abs=2)
    assert len(told.full) > 150


def test_a_wait_before_the_first_launch_is_for_what_was_not_recorded(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    events = [
        event("cuda_runtime", "cudaDeviceSynchronize", 0, 9_000, 1, correlation=1),
        event("cuda_runtime", "cudaLaunchKernel", 9_010, 5, 1, correlation=2),
        event("kernel", "k", 9_020, 500, 7, stream=7, correlation=2),
    ]
    path.write_text(json.dumps({"traceEvents": events}))
    assert realism(path).median_error < 0.01


def event(cat: str, name: str, start_us: int, us: int, thread: int, **args: object) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": start_us, "dur": us, "tid": thread, "pid": 1, "args": args}


def test_a_recorded_event_says_what_a_stream_waits_for(tmp_path: Path) -> None:
    """The second kernel of stream 7 waits for stream 20's first one, not for its last."""
    path = tmp_path / "trace.json"
    kernels = [(1, 20, 10, 50), (2, 20, 60, 20), (3, 7, 65, 10)]
    events = [event("kernel", "k", at, us, s, stream=s, correlation=n) for n, s, at, us in kernels]
    events += [event("cuda_runtime", "cudaLaunchKernel", n * 2, 1, 1, correlation=n) for n in (1, 3)]
    events += [
        event("cuda_runtime", "cudaEventRecord", 3, 1, 1, correlation=10),
        event("cuda_runtime", "cudaLaunchKernel", 4, 1, 1, correlation=2),
        event("cuda_runtime", "cudaStreamWaitEvent", 5, 1, 1, correlation=11),
        event(
            "cuda_sync",
            "Stream Wait Event",
            5,
            0,
            7,
            stream=7,
            correlation=11,
            wait_on_stream=20,
            wait_on_cuda_event_record_corr_id=10,
        ),
    ]
    path.write_text(json.dumps({"traceEvents": events}))
    assert story(read(path)[0]).follows == {2: [0]}


def test_what_has_no_launches_says_so(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [event("kernel", "k", 1, 1, 7, stream=7, correlation=1)]}))
    assert "no launches of device work were recorded" in table([path])


@pytest.mark.parametrize(
    "name",
    ["kineto_dlrm_v100_8ranks", "kineto_resnet50_workers/num_workers_4.json.gz", "nsys_h100_2gpu_ab/before.sqlite"],
)
def test_real_devices_do_what_the_simulated_one_does(name: str) -> None:
    result = realism(real_trace(name))
    assert result.median_error < WITHIN
    assert result.makespan_ratio == pytest.approx(1, abs=WITHIN)
    assert max(result.device_control, result.host_control) > 5 * result.median_error
    assert max(result.device_control, result.host_control) > WITHIN

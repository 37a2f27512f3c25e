"""What ranks agree on without a collective: when one nsys records all of a node, and which steps a request means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import limit_s

pytest.importorskip("torch", reason="the training scripts need PyTorch")

from tests.exercises.ending_ranks import forked_script

# Rank 1 is always late: for a barrier by a moment, elsewhere until rank 0 has continued without it. Each rank
# writes when it arrives and when it continues, so a rank that waits where there is no barrier never arrives.
RANK = """
import json, sys, time
from pathlib import Path
import torch.distributed as dist
from harness.observe.capture import open_capture
from harness.common.run_folder.profile_window import ProfileWindow

folder, rank, last, meetings = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
times = {}

def be_late(name):
    if name in meetings:
        time.sleep(0.4)
        return
    wait_for(folder / f"rank0 went on from {name}")

def wait_for(file):
    while not file.exists():
        time.sleep(0.01)

def timed(call, step):
    name = f"{call.__name__} {step}"
    if rank == 1:
        be_late(name)
    came = time.monotonic_ns()
    call(step)
    times[name] = (came, time.monotonic_ns())
    (folder / f"rank{rank} went on from {name}").touch()

with open_capture("nsys", ProfileWindow(skip=1, wait=0, warmup=0, active=2), folder, rank) as capture:
    for step in range(last + 1):
        timed(capture.step_begins, step)
        timed(capture.step_ends, step)
    if rank == 1:
        wait_for(folder / "rank0 left")
(folder / f"rank{rank}.json").write_text(json.dumps(times))
(folder / f"rank{rank} left").touch()
"""

# Rank 1's looks are later by half of the time between two looks, and its steps are shorter but for the all-reduce.
ASKED = """
import json, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from harness.common.run_folder.captures import CaptureRequest, as_text, request_file, stop_file
from harness.observe import capture

folder, rank = Path(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
request_file(folder).parent.mkdir(exist_ok=True)
recorded = {}

class Recording:
    def __init__(self, number):
        self.steps = recorded.setdefault(number, [])
    def begin(self):
        self.steps.append(step)
    def end(self, together):
        self.steps.append(step)

class Asked(capture.OnRequest):
    def _new(self):
        return Recording(self._number)

looked = []
capture.first_said = lambda *said, real=capture.first_said: looked.append(step) or real(*said)
on_request = Asked(capture.Capture(), folder, rank, first_step=2, lead=1)
time.sleep(rank * capture.LOOK_S / 2)
begin_s = time.monotonic()
for step in range(200):
    if step == 20:
        before_s = time.monotonic() - begin_s
    if rank == 0 and step == 20:
        request_file(folder).write_text(as_text(CaptureRequest(1, steps=5)))
    if rank == 0 and step == 100:
        request_file(folder).write_text(as_text(CaptureRequest(2, steps=1000)))
    if rank == 0 and 2 in recorded and len(recorded[2]) == 1:
        stop_file(folder, 2).touch()
    on_request.step_begins(step)
    time.sleep(0.03 if rank == 0 else 0.002)
    dist.all_reduce(torch.ones(1))
    on_request.step_ends(step)
before = len([step for step in looked if step < 20])
(folder / f"rank{rank}.json").write_text(json.dumps([recorded, before <= 2 + before_s / capture.LOOK_S]))
dist.destroy_process_group()
"""

Times = dict[str, tuple[int, int]]


def run(folder: Path, last_step: int, meetings: list[str]) -> list[Times]:
    """The times of both ranks, after the last step."""
    return two_ranks(RANK, folder, str(last_step), *meetings)


def two_ranks(script: str, folder: Path, *words: str) -> list[Any]:
    """What two ranks of a script wrote into `rank<R>.json`."""
    ranks = [forked_script(script, str(folder), str(rank), *words) for rank in range(2)]
    try:
        for rank in ranks:
            rank.join(limit_s(240))
        assert [rank.exitcode for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.join(limit_s())
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def test_ranks_meet_where_recording_begins_and_ends_and_nowhere_else(tmp_path: Path) -> None:
    meetings = ["step_begins 1", "step_ends 2"]
    early, late = run(tmp_path, last_step=3, meetings=meetings)
    assert {meeting: early[meeting][1] >= late[meeting][0] for meeting in meetings} == dict.fromkeys(meetings, True)


@pytest.mark.long
def test_a_rank_that_ends_inside_the_window_does_not_wait_for_the_others(tmp_path: Path) -> None:
    run(tmp_path, last_step=1, meetings=["step_begins 1"])


def test_all_ranks_record_the_steps_that_are_asked_for_and_seldom_look_before(tmp_path: Path) -> None:
    (first, seldom), (second, seldom_too) = two_ranks(ASKED, tmp_path)
    assert first == second
    begin, end = first["1"]
    assert 20 < begin < 100
    assert end - begin == 4
    assert first["2"][1] < 199, "it was stopped"
    assert seldom and seldom_too, "twice a second at most, however long the steps take"

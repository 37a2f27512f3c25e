"""A node's heartbeats of real processes, from their memory to the answer that the run is stuck. No PyTorch: the
processes write what the observer would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.common.run_folder.run_files import EVIDENCE, HEARTBEATS
from harness.common.system import processes
from harness.heartbeats.collect import Collector
from harness.heartbeats.hang import Hang, read_hang
from harness.heartbeats.model import decode
from harness.heartbeats.node import Guard
from tests.waiting import limit_s, wait_until

RANK = """
import json, os, sys, threading, time
memory, rank, fifo = sys.argv[1], int(sys.argv[2]), sys.argv[3]
facts = dict(rank=rank, world=2, local=rank, pid=os.getpid(), tid=threading.get_native_id(), calls=0, collectives=0,
             phase="data", planned=100, loss="0.5", place=["/home/ann/data.py", 41, "read"], memory=None, ended_ns=0,
             error=None, step=0, done=[])

def beat():
    asked = ""
    while True:
        text = json.dumps({**facts, "unix_ns": time.time_ns()})
        with open(f"{memory}/.{rank}", "w") as file:
            file.write(text)
        os.replace(f"{memory}/.{rank}", f"{memory}/rank{rank}.json")
        if rank == 0 and os.path.exists(f"{memory}/ask") and (now := open(f"{memory}/ask").read()) != asked:
            asked = now
            main = [["/venv/site-packages/torch/autograd/graph.py", 979, "_engine_run_backward", False],
                    ["/home/ann/train.py", 88, "main", True]]
            line = ["/home/ann/train.py", 88, "main"]
            waits = dict(op="all_reduce", group="0", ranks=[0, 1], seq=3, p2p=False, sizes=[[9]], line=line, unix_ns=1)
            answer = dict(asked=asked, threads={"main": main}, call=None, collectives=[waits], groups={})
            with open(f"{memory}/.answer", "w") as file:
                json.dump(answer, file)
            os.replace(f"{memory}/.answer", f"{memory}/rank0.stacks.json")
        time.sleep(0.05)

threading.Thread(target=beat, daemon=True).start()
for step in range(int(sys.argv[4])):
    time.sleep(0.02)
    facts["done"] = [*facts["done"], [step, 20_000 + 1000 * rank, 15_000]][-300:]
    facts["step"] = step + 1
if rank == 1 and fifo:
    exec(open(fifo).read())
threading.Event().wait() if fifo else None
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run; its ranks' memory is below it."""
    monkeypatch.setattr("harness.heartbeats.node.LOOK_S", 0.3)
    monkeypatch.setattr("harness.heartbeats.collect.AGAIN_S", 1.5)
    monkeypatch.setattr("harness.heartbeats.collect.ANSWER_S", 0.8)
    (tmp_path / "memory").mkdir()
    (tmp_path / "run").mkdir()
    return tmp_path


@pytest.fixture
def stuck_soon(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks count as stuck after a second."""
    for name in ("harness.heartbeats.collect", "harness.heartbeats.stuck"):
        monkeypatch.setattr(f"{name}.LEAST_S", 1.0)


@pytest.fixture
def begin(place: Path) -> Iterator[Callable[..., list[subprocess.Popen[bytes]]]]:
    """Starts two ranks that take `steps` steps; with a FIFO they hang afterwards."""
    started: list[subprocess.Popen[bytes]] = []

    def ranks(fifo: str = "", steps: int = 60) -> list[subprocess.Popen[bytes]]:
        for rank in range(2):
            argv = [sys.executable, "-S", "-c", RANK, str(place / "memory"), str(rank), fifo, str(steps)]
            started.append(subprocess.Popen(argv))
        return started

    yield ranks
    for process in started:
        process.kill()
        process.wait(limit_s())


def lines_of(place: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in HEARTBEATS.path(place / "run", "n1").read_text().splitlines()]


def collector(place: Path) -> Collector:
    return Collector(place / "run", place / "memory", "n1", 0)


def test_steps_are_written_once_and_an_end_is_no_failure(place: Path, begin: Callable[..., Any]) -> None:
    with collector(place):
        for process in begin():
            process.wait(limit_s())
        wait_until(lambda: sum(line["event"] == "gone" for line in lines_of(place)) == 2, "the end of two ranks")
    lines = lines_of(place)
    assert [line["event"] for line in (lines[0], lines[-1])] == ["node", "end"]
    begun = [line for line in lines if line["event"] == "rank"]
    assert sorted((line["rank"], line["world"], line["steps"]) for line in begun) == [(0, 2, 100), (1, 2, 100)]
    beats = [beat for line in lines if line["event"] == "beat" for beat in line["ranks"]]
    for rank in (0, 1):
        own = [beat for beat in beats if beat[0] == rank and beat[9] >= 0]
        durations = [us for beat in own for us in decode(beat[11])]
        assert all(abs(us - 20_000 - 1000 * rank) < 200 for us in durations)
        assert [beat[9] for beat in own] == sorted({beat[9] for beat in own})
        assert all(len(json.dumps(beat, separators=(",", ":"))) <= 96 for beat in own)
    assert not EVIDENCE.path(place / "run", "n1").exists()


def test_a_rank_killed_before_the_first_look_at_it_with_a_count_of_ours(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = place / "memory.oom_control"
    count.write_text("oom_kill 0\n")

    def counted(pid: int) -> tuple[Path | None, processes.OomKills]:
        """A process that has ended is in no cgroup."""
        file = count if pid == os.getpid() else None
        return file, processes.counted(file)

    monkeypatch.setattr("harness.heartbeats.collect.processes.killed_for_memory", counted)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    try:
        wait_until(lambda: not processes.lives(ended.pid), "its end")
        with collector(place):
            count.write_text("oom_kill 1\n")
            facts = {"rank": 0, "world": 1, "local": 0, "pid": ended.pid, "step": 0, "host_memory": 7, "done": []}
            (place / "memory" / "rank0.json").write_text(json.dumps(facts))
            wait_until(lambda: any(line["event"] == "gone" for line in lines_of(place)), "its last line")
    finally:
        ended.wait(limit_s())
    (gone,) = [line for line in lines_of(place) if line["event"] == "gone"]
    assert (gone["oom"], gone["host_bytes"]) == ("cgroup", 7)


def stuck(place: Path) -> Hang | None:
    found = read_hang(place / "run")
    return found if found is not None and found.until_ns is None else None


def told(place: Path, kind: str, sentence: str = "") -> Hang:
    """What is said of the run, once it is of this kind and with this sentence: a rank that gets no core for a second
    counts as stuck, too, until it goes on."""

    def holds() -> bool:
        found = stuck(place)
        return found is not None and found.kind == kind and sentence in found.sentence

    wait_until(holds, f"{kind}: {sentence}", lambda: read_hang(place / "run"))
    found = stuck(place)
    assert found is not None
    return found


@pytest.mark.usefixtures("stuck_soon")
def test_who_hangs_is_named_and_who_goes_on_is_stuck_no_more(place: Path, begin: Callable[..., Any]) -> None:
    fifo = place / "fifo"
    os.mkfifo(fifo)
    with collector(place), Guard(place / "run", stop=False):
        begin(str(fifo))
        wanted = f"rank 0 waits in all_reduce (train.py:88); rank 1 is last seen at data.py:41, opening the FIFO {fifo}"
        found = told(place, "file", f"in step 60: {wanted}")
        assert (found.ranks, found.waiting, found.step) == ((1,), (0,), 60)
        with fifo.open("w"):
            pass
        # It opened the FIFO and waits elsewhere: no progress, but another answer.
        told(place, "lock")


def test_before_a_step_has_ended_only_a_run_in_which_nobody_works_is_stuck(
    place: Path, begin: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("collect.FIRST_S", "preparing.UNKNOWN_S", "stuck.UNKNOWN_S", "node.TELL_S"):
        monkeypatch.setattr(f"harness.heartbeats.{name}", 2.0)
    fifo, go, said = place / "fifo", place / "go", list[str]()
    os.mkfifo(fifo)

    def prepares() -> bool:
        said.append(capsys.readouterr().err)
        return stuck(place) is None and "for rank 1, which is computing in data.py:41" in "".join(said)

    with collector(place), Guard(place / "run", stop=False):
        begin(str(fifo), steps=0)
        fifo.write_text(f"while not os.path.exists({str(go)!r}): pass")
        wait_until(prepares, "who works", lambda: said)
        go.touch()
        assert told(place, "lock", "before the first step has ended: rank 0 waits in all_reduce").ranks == (1,)


def test_a_job_that_was_suspended_is_not_stuck(place: Path, begin: Callable[..., Any]) -> None:
    """All of it stops, the monitor too; afterwards no time has passed for the ranks."""
    watched = subprocess.Popen(
        [sys.executable, "-c", _SUSPENDED.format(run=place / "run", memory=place / "memory")], start_new_session=True
    )
    try:
        ranks = begin(steps=5000)
        wait_until(lambda: HEARTBEATS.path(place / "run", "n1").exists() and len(lines_of(place)) > 4, "heartbeats")
        processes = [*ranks, watched]
        for process in processes:
            os.kill(process.pid, signal.SIGSTOP)
        time.sleep(8)  # the suspension, longer than a rank is quiet before it counts as stuck
        for process in reversed(processes):
            os.kill(process.pid, signal.SIGCONT)
        wait_until(lambda: any(line["event"] == "slept" and line["ns"] > 5e9 for line in lines_of(place)), "its sleep")
        time.sleep(1.5)  # in which a hang would be told
        assert read_hang(place / "run") is None
    finally:
        watched.kill()
        watched.wait(limit_s())


_SUSPENDED = """
import time
from pathlib import Path
from harness.heartbeats import collect, node, stuck
collect.LEAST_S = stuck.LEAST_S = 5.0
with collect.Collector(Path("{run}"), Path("{memory}"), "n1", 0), node.Guard(Path("{run}"), False):
    time.sleep(600)
"""


def test_a_damaged_memory_is_no_rank(place: Path) -> None:
    (place / "memory" / "rank0.json").write_text('{"rank": 0, "pid": ')
    (place / "memory" / "rank1.json").write_text("[]")
    (place / "memory" / "rank2.json").write_bytes(b"\xff\xfe")
    with collector(place):
        time.sleep(1.5)  # in which it looks at them
    assert [line["event"] for line in lines_of(place) if line["event"] != "beat"] == ["node", "end"]

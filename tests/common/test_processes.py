"""What /proc tells of real processes: whether they compute, and what they wait in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.common import processes
from tests.waiting import limit_s

Start = Callable[[str], subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts programs of Python, which are ended with the test."""
    started = []

    def begin(text: str) -> subprocess.Popen[bytes]:
        program = subprocess.Popen([sys.executable, "-S", "-c", text], start_new_session=True)
        started.append(program)
        return program

    yield begin
    for program in started:
        os.killpg(program.pid, signal.SIGKILL)
        program.wait(limit_s())


def eventually(read: Callable[[], str], wanted: str) -> str:
    """What `read` gives, once `wanted` is in it, or after ten seconds."""
    end_s = time.monotonic() + 10
    while wanted not in (found := read()) and time.monotonic() < end_s:
        time.sleep(0.02)
    return found


WAITS = {
    "sleeping": "import time; time.sleep(99)",
    "waiting for a lock": "import threading; a = threading.Lock(); a.acquire(); a.acquire()",
    "receiving from a socket": "import socket; a, b = socket.socketpair(); a.recv(1)",
    "reading a pipe": "import os; os.read(os.pipe()[0], 1)",
    "waiting for a child, sleep": "import os; os.spawnlp(os.P_WAIT, 'sleep', 'sleep', '99')",
    "polling": "import select; select.select([], [], [], 99)",
}


@pytest.mark.parametrize(("wanted", "text"), WAITS.items(), ids=WAITS)
def test_what_a_process_waits_in(start: Start, wanted: str, text: str) -> None:
    program = start(text)
    assert eventually(lambda: processes.waits_in(program.pid), wanted).startswith(wanted)


def test_a_fifo_is_named_while_it_is_opened_and_while_it_is_read(start: Start, tmp_path: Path) -> None:
    fifo = tmp_path / "a fifo"
    os.mkfifo(fifo)
    opens = start(f"open({str(fifo)!r})")
    wanted = f"opening the FIFO {fifo}"
    assert eventually(lambda: processes.waits_in(opens.pid), wanted) == wanted
    reads = start(f"import os; a = os.open({str(fifo)!r}, os.O_RDWR); os.read(a, 1)")
    wanted = f"reading the FIFO {fifo}"
    assert eventually(lambda: processes.waits_in(reads.pid), wanted) == wanted


def test_who_computes_who_is_stopped_and_who_is_below_whom(start: Start) -> None:
    busy = start("while True: pass")
    stopped = start("import time; time.sleep(99)")
    os.kill(stopped.pid, signal.SIGSTOP)
    before = processes.usage(busy.pid).cpu_ns
    eventually(lambda: str(processes.usage(busy.pid).cpu_ns - before > 100_000_000), "True")
    assert processes.usage(busy.pid).cpu_ns - before > 100_000_000
    assert eventually(lambda: getattr(processes.stat_of(stopped.pid), "state", ""), "T") == "T"
    parent = start("import os; os.spawnlp(os.P_WAIT, 'sleep', 'sleep', '99')")
    assert eventually(lambda: str(len(processes.below(parent.pid))), "1") == "1"
    assert eventually(lambda: str(processes.usage(parent.pid).below_runs), "False") == "False"
    waits = start(f"import subprocess; subprocess.run([{sys.executable!r}, '-S', '-c', 'while True: pass'])")
    assert eventually(lambda: str(processes.usage(waits.pid).below_runs), "True") == "True"
    assert processes.lives(busy.pid)
    assert not processes.is_frozen(busy.pid)


def test_a_process_that_has_ended_is_told_as_such() -> None:
    program = subprocess.Popen(["true"])
    assert eventually(lambda: str(processes.lives(program.pid)), "False") == "False"  # a zombie does not live
    program.wait(limit_s())
    assert processes.stat_of(program.pid) is None
    assert processes.waits_in(program.pid) == ""
    assert processes.usage(program.pid) == (0, 0, 0, False)
    assert processes.below(program.pid) == []


def test_who_listens_on_a_port_and_who_is_above_whom(start: Start) -> None:
    text = "import socket, sys, time; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)"
    with subprocess.Popen(
        [sys.executable, "-S", "-c", f"{text}; time.sleep(99)"], stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        port = int(program.stdout.readline())
        assert processes.listener(port) == program.pid
        assert os.getpid() in processes.ancestors(program.pid)
        program.kill()
    assert processes.listener(port) is None


def test_a_thread_goes_on_as_often_as_bytes_arrive(start: Start) -> None:
    arriving = start(
        "import socket, threading, time\na, b = socket.socketpair()\n"
        "threading.Thread(target=lambda: [(time.sleep(.02), b.send(b'x')) for _ in range(5000)], daemon=True).start()\n"
        "while a.recv(1): pass"
    )
    silent = start("import socket; a, b = socket.socketpair(); a.recv(1)")
    for program in (arriving, silent):
        eventually(lambda pid=program.pid: processes.waits_in(pid), "receiving from a socket")  # type: ignore[misc]
    before = [processes.switches(program.pid) for program in (arriving, silent)]
    time.sleep(1)
    more = [processes.switches(p.pid) - then for p, then in zip((arriving, silent), before, strict=True)]
    assert more[0] >= 10 and more[1] == 0


def test_its_numbers_are_those_of_another_reader(start: Start) -> None:
    psutil = pytest.importorskip("psutil", reason="another reader of /proc")
    program = start("block = bytearray(1 << 26); [i for i in range(10**6)]; import time; time.sleep(99)")
    eventually(lambda: processes.waits_in(program.pid), "sleeping")
    same, own, resident = psutil.Process(program.pid), processes.stat_of(program.pid), processes.resident(program.pid)
    times, memory = same.cpu_times(), same.memory_info()
    assert own.own_cpu_ns / 1e9 == pytest.approx(times.user + times.system)
    assert resident == (memory.rss, memory.shared) and memory.rss > 1 << 26
    age_s = processes.since_boot_s() - processes.started_s(processes.process_of(program.pid))
    assert age_s == pytest.approx(time.time() - same.create_time(), abs=1.5)  # psutil knows the boot to a second
    assert program.pid in {child.pid for child in psutil.Process().children()} & set(processes.descendants(os.getpid()))


def test_the_machines_numbers_are_those_of_another_reader() -> None:
    psutil = pytest.importorskip("psutil", reason="another reader of /proc")
    total, used = processes.memory_in_use()
    memory = psutil.virtual_memory()
    assert total == memory.total
    assert used == pytest.approx(memory.total - memory.available, abs=1 << 30)
    ticks, times = processes.core_ticks()["cpu"], psutil.cpu_times()
    per_s = os.sysconf("SC_CLK_TCK")
    assert [tick / per_s for tick in ticks[:5]] == pytest.approx(list(times)[:5], rel=0.01, abs=2)

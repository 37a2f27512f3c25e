"""What /proc and cgroups tell of real processes: whether they compute, what they wait in, who was killed for memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.common.system import processes
from tests.common.cgroups import V1, V2, Cgroup, cgroup
from tests.waiting import limit_s, wait_until

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


def comes_to(pid: int, wait: str) -> None:
    """Returns once the process waits in this."""
    wait_until(lambda: processes.waits_in(pid).startswith(wait), wait, lambda: processes.waits_in(pid))


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
    comes_to(program.pid, wanted)


def test_a_fifo_is_named_while_it_is_opened_and_while_it_is_read(start: Start, tmp_path: Path) -> None:
    fifo = tmp_path / "a fifo"
    os.mkfifo(fifo)
    opens = start(f"open({str(fifo)!r})")
    comes_to(opens.pid, f"opening the FIFO {fifo}")
    reads = start(f"import os; a = os.open({str(fifo)!r}, os.O_RDWR); os.read(a, 1)")
    comes_to(reads.pid, f"reading the FIFO {fifo}")


def test_who_computes_who_is_stopped_and_who_is_below_whom(start: Start) -> None:
    busy = start("while True: pass")
    stopped = start("import time; time.sleep(99)")
    os.kill(stopped.pid, signal.SIGSTOP)
    before = processes.usage(busy.pid).cpu_ns
    wait_until(lambda: processes.usage(busy.pid).cpu_ns - before > 100_000_000, "100 ms of work")
    wait_until(lambda: getattr(processes.stat_of(stopped.pid), "state", "") == "T", "the state T")
    parent = start("import os; os.spawnlp(os.P_WAIT, 'sleep', 'sleep', '99')")
    wait_until(lambda: len(processes.below(parent.pid)) == 1, "a process below")
    wait_until(lambda: not processes.usage(parent.pid).below_runs, "a child that waits")
    waits = start(f"import subprocess; subprocess.run([{sys.executable!r}, '-S', '-c', 'while True: pass'])")
    wait_until(lambda: processes.usage(waits.pid).below_runs, "a child that computes")
    assert processes.lives(busy.pid)


def test_a_process_that_has_ended_is_told_as_such() -> None:
    program = subprocess.Popen(["true"])
    wait_until(lambda: not processes.lives(program.pid), "its end")  # a zombie does not live
    program.wait(limit_s())
    assert processes.stat_of(program.pid) is None
    assert processes.waits_in(program.pid) == ""
    assert processes.usage(program.pid) == (0, 0, 0, False)
    assert processes.below(program.pid) == []


def test_a_thread_goes_on_as_often_as_bytes_arrive(start: Start) -> None:
    arriving = start(
        "import socket, threading, time\na, b = socket.socketpair()\n"
        "threading.Thread(target=lambda: [(time.sleep(.02), b.send(b'x')) for _ in range(5000)], daemon=True).start()\n"
        "while a.recv(1): pass"
    )
    silent = start("import socket; a, b = socket.socketpair(); a.recv(1)")
    for program in (arriving, silent):
        comes_to(program.pid, "receiving from a socket")
    before, before_silent = (processes.switches(program.pid) for program in (arriving, silent))
    wait_until(lambda: processes.switches(arriving.pid) >= before + 10, "ten bytes")
    assert processes.switches(silent.pid) == before_silent


def test_its_numbers_are_those_of_another_reader(start: Start) -> None:
    psutil = pytest.importorskip("psutil", reason="another reader of /proc")
    program = start("block = bytearray(1 << 26); [i for i in range(10**6)]; import time; time.sleep(99)")
    comes_to(program.pid, "sleeping")
    same, own, resident = psutil.Process(program.pid), processes.stat_of(program.pid), processes.resident(program.pid)
    times, memory = same.cpu_times(), same.memory_info()
    assert own.own_cpu_ns / 1e9 == pytest.approx(times.user + times.system)
    assert resident == (memory.rss, memory.shared) and memory.rss > 1 << 26
    boot_s = psutil.boot_time()  # to a second
    assert processes.started_s(processes.process_of(program.pid)) == pytest.approx(same.create_time() - boot_s, abs=1.5)
    before_s, since_boot_s, after_s = time.time(), processes.since_boot_s(), time.time()
    assert before_s - boot_s - 1.5 <= since_boot_s <= after_s - boot_s + 1.5
    assert program.pid in {child.pid for child in psutil.Process().children()} & set(processes.descendants(os.getpid()))


def test_a_signal_is_handled_while_a_child_is_waited_for() -> None:
    before = signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGCHLD)
    child = subprocess.Popen(["sleep", "600"])
    signal.signal(signal.SIGUSR1, lambda *_: child.kill())
    try:
        subprocess.Popen(["sh", "-c", f"kill -USR1 {os.getpid()}"]).wait(timeout=limit_s())
        assert processes.wait(child) == -signal.SIGKILL
    finally:
        child.kill()
        signal.signal(signal.SIGUSR1, before[0])
    assert (signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGCHLD)) == before
    assert processes.wait(subprocess.Popen(["sh", "-c", "exit 3"])) == 3


# ---- In real cgroups: whom the kernel killed because its cgroup allows no more memory


SLEEPS = "import time; time.sleep(99)"
# At most 512 MB, should nothing limit it.
EATS = "held = [bytearray(b'x' * (8 << 20)) for _ in range(64)]"
LIMIT = 48 << 20


@pytest.fixture(params=[V1, V2])
def memory(request: pytest.FixtureRequest) -> Iterator[Cgroup]:
    with cgroup(request.param) as made:
        yield made


def started_in(group: Cgroup, text: str, stdout: int | None = None) -> subprocess.Popen[bytes]:
    """A program of Python that waits for a byte, is in the cgroup, and then begins."""
    waits = f"import sys; sys.stdin.read(1)\n{text}"
    program = subprocess.Popen([sys.executable, "-S", "-c", waits], stdin=subprocess.PIPE, stdout=stdout)
    group.add(program.pid)
    return program


def begin(program: subprocess.Popen[bytes]) -> None:
    assert program.stdin is not None
    program.stdin.write(b"x")
    program.stdin.close()


@pytest.mark.parametrize("where", ["its own", "one above"])
def test_the_kernel_s_count_rises_when_the_limit_kills(memory: Cgroup, where: str) -> None:
    memory.limit(LIMIT)
    program = started_in(memory if where == "its own" else memory.below("inner"), EATS)
    file, before = processes.killed_for_memory(program.pid)
    assert file is not None
    begin(program)
    assert program.wait(limit_s()) == -9
    after = processes.counted(file)
    assert (after.cgroup - before.cgroup, after.machine > before.machine) == (1, True)


def test_what_is_under_a_limit_is_known_when_a_process_of_it_has_ended(memory: Cgroup) -> None:
    memory.limit(LIMIT)
    held = f"held = b'x' * ({LIMIT} // 4); print(flush=True); {SLEEPS}"
    first, second = (started_in(memory.below(name), held, stdout=subprocess.PIPE) for name in ("a", "b"))
    file = processes.limiting_file(first.pid)
    for program in (first, second):
        begin(program)
        assert program.stdout is not None
        program.stdout.readline()
    both = processes.memory_below(file)
    first.kill()
    first.wait(limit_s())
    assert (file, processes.memory_limit(second.pid)) == (processes.limiting_file(second.pid), LIMIT)
    assert both >= LIMIT // 2 > processes.memory_below(file) >= LIMIT // 4
    assert processes.memory_below(None) >= both, "the machine's"


def test_a_process_that_is_killed_by_somebody_does_not_count(memory: Cgroup) -> None:
    program = started_in(memory, SLEEPS)
    file, before = processes.killed_for_memory(program.pid)
    program.kill()
    program.wait(limit_s())
    assert processes.counted(file).cgroup == before.cgroup


@pytest.fixture
def pretended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of which a test writes the files."""
    monkeypatch.setattr(processes, "PROC", tmp_path / "proc")
    monkeypatch.setattr(processes, "CGROUPS", tmp_path / "cgroup")
    return tmp_path


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_in_the_new_hierarchy_the_nearest_cgroup_that_is_accounted_for_has_the_count(pretended: Path) -> None:
    job = "system.slice/slurmstepd.scope/job_7"
    write(pretended / "proc" / "7" / "cgroup", f"0::/{job}/step_0/user/task_0\n")
    outer = write(pretended / "cgroup" / job / "memory.events", "low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert processes.killed_for_memory(7) == (outer, (2, 0))
    inner = write(pretended / "cgroup" / job / "step_0/user/task_0/memory.events", "oom 1\noom_kill 1\n")
    assert processes.killed_for_memory(7) == (inner, (1, 0))


def test_both_hierarchies_beside_each_other_are_looked_at(pretended: Path) -> None:
    write(pretended / "proc" / "7" / "cgroup", "4:cpu,memory:/b\n1:name=systemd:/\n0::/c\n")
    count = write(pretended / "cgroup" / "memory" / "b" / "memory.oom_control", "under_oom 0\noom_kill 5\n")
    assert processes.killed_for_memory(7) == (count, (5, 0))
    count.unlink()
    beside = write(pretended / "cgroup" / "unified" / "c" / "memory.events", "oom 1\noom_kill 1\n")
    assert processes.killed_for_memory(7) == (beside, (1, 0))


def test_in_the_new_hierarchy_the_least_limit_may_be_further_up(pretended: Path) -> None:
    write(pretended / "proc" / "meminfo", "MemTotal: 4096 kB\nMemFree: 3072 kB\nMemAvailable: 3072 kB\n")
    write(pretended / "proc" / "7" / "cgroup", "0::/job_7/step_0\n")
    write(pretended / "cgroup" / "job_7" / "step_0" / "memory.max", "max\n")
    assert (processes.limiting_file(7), processes.memory_limit(7), processes.memory_below(None)) == (
        None,
        4 << 20,
        1 << 20,
    )
    limit = write(pretended / "cgroup" / "job_7" / "memory.max", "2097152\n")
    write(limit.parent / "memory.stat", "anon 1000\nfile 5000\nkernel 7\nshmem 300\n")
    assert (processes.limiting_file(7), processes.memory_limit(7), processes.memory_below(limit)) == (
        limit,
        2 << 20,
        1300,
    )

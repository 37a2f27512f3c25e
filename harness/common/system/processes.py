"""What Linux knows of a process: whether it lives, computes, reads or writes, and which call of the system it waits in.

Reads /proc; a value that it does not give is None, 0 or empty.
"""

from __future__ import annotations

import math
import os
import select
import signal
import stat
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path, PurePath
from typing import NamedTuple

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
# Calls that block: their name, which argument is a number of a file ("fd"), a path or a process ("pid"; None: the call
# says it all), and their numbers on x86_64 and aarch64.
_BLOCKING: tuple[tuple[str, str | None, tuple[int, ...], tuple[int, ...]], ...] = (
    ("reading", "fd", (0, 17, 19), (63, 65, 67)),
    ("writing", "fd", (1, 18, 20), (64, 66, 68)),
    ("sending to", "fd", (44, 46), (206, 211)),
    ("receiving from", "fd", (45, 47), (207, 212)),
    ("locking", "fd", (72, 73), (25, 32)),
    ("flushing", "fd", (74, 75), (82, 83)),
    ("accepting on", "fd", (43, 288), (202, 242)),
    ("connecting to", "fd", (42,), (203,)),
    ("polling", None, (7, 23, 232, 270, 271, 281), (22, 72, 73)),
    ("sleeping", None, (35, 230), (101, 115)),
    ("opening", "path0", (2,), ()),
    ("opening", "path1", (257,), (56,)),
    ("waiting for a lock", None, (202,), (98,)),
    ("waiting for a child", "pid", (61,), (260,)),
    ("waiting for a child", None, (247,), (95,)),
)
_CALLS = {
    number: (name, about)
    for name, about, x86, arm in _BLOCKING
    for number in (arm if os.uname().machine == "aarch64" else x86)
}
_LONGEST_PATH = 4096
_COUNTED = 8  # columns of ticks in /proc/stat: what comes after them is in these too


class Usage(NamedTuple):
    """Of a process and those below it: CPU time in ns, bytes read and written, resident bytes of itself. below_runs:
    whether one of those below runs or is ready to."""

    cpu_ns: int
    io_bytes: int
    memory_bytes: int
    below_runs: bool


class RunningProcess(NamedTuple):
    """A process, which a later one with its number is not. started: ticks since the machine's start."""

    pid: int
    started: int


class Stat(NamedTuple):
    """Of /proc/<pid>/stat or of a thread's: state is one letter. cpu_ns: also of children that it has waited for;
    own_cpu_ns: without them. started: ticks since the machine's start."""

    name: str
    state: str
    parent: int
    session: int
    cpu_ns: int
    own_cpu_ns: int
    memory_bytes: int
    started: int


def stat_of(pid: int, tid: int | None = None) -> Stat | None:
    """None: there is no such process."""
    try:
        text = (PROC / str(pid) / ("stat" if tid is None else f"task/{tid}/stat")).read_text(errors="replace")
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    words = rest.split()
    own, of_children = int(words[11]) + int(words[12]), int(words[13]) + int(words[14])
    cpu_ns, memory_bytes = (own + of_children) * TICK_NS, int(words[21]) * PAGE
    return Stat(
        name, words[0], int(words[1]), int(words[3]), cpu_ns, own * TICK_NS, memory_bytes, started=int(words[19])
    )


def process_of(pid: int) -> RunningProcess | None:
    """The process that has this number now; None: there is none."""
    now = stat_of(pid)
    return None if now is None else RunningProcess(pid, now.started)


def started_s(process: RunningProcess) -> float:
    """When it was started, in seconds since the machine's start."""
    return process.started * TICK_NS / 1e9


def since_boot_s() -> float:
    """Now, in seconds since the machine's start."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def lives(pid: int) -> bool:
    found = stat_of(pid)
    return found is not None and found.state not in "ZX"


def below(pid: int) -> list[int]:
    """The processes below one, its children first."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        for task in _numbers(PROC / str(waiting.pop()) / "task"):
            with suppress(OSError, ValueError):
                children = [int(word) for word in (task / "children").read_text().split()]
                found += children
                waiting += children
    return found


def pids() -> list[int]:
    """Of all processes of this machine that can be seen."""
    return [int(folder.name) for folder in _numbers(PROC)]


def everyone() -> dict[int, Stat]:
    """All processes of this machine, by number."""
    return {pid: now for pid in pids() if (now := stat_of(pid)) is not None}


def descendants(pid: int, stats: dict[int, Stat] | None = None) -> list[int]:
    """As `below`, by everyone's parent: the list of a process's children may miss one while processes come and go.
    stats: of `everyone`, if that is already read."""
    children: dict[int, list[int]] = {}
    for each, now in (everyone() if stats is None else stats).items():
        children.setdefault(now.parent, []).append(each)
    found_below = [pid]
    for parent in found_below:  # grows as it is read
        found_below += children.get(parent, [])
    return found_below[1:]


def environment(pid: int) -> list[bytes]:
    """The variables with which a process was started, as NAME=VALUE; empty: it has ended, or is another user's."""
    with suppress(OSError):
        return (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    return []


def exists(pid: int) -> bool:
    """Whether there is a process with this number, also one that has ended and nobody has waited for."""
    return (PROC / str(pid)).exists()


def resident(pid: int) -> tuple[int, int] | None:
    """Bytes of a process's memory, and of these the pages of files and of shared memory; None: there is no such
    process."""
    try:
        words = (PROC / str(pid) / "statm").read_text().split()
        return int(words[1]) * PAGE, int(words[2]) * PAGE
    except (OSError, ValueError, IndexError):
        return None


def core_ticks() -> dict[str, list[int]]:
    """Ticks of all cores (`cpu`) and of each (`cpu0`, …) since the machine's start: user, nice, system, idle, waiting
    for a disk, two kinds of interrupts, used by other virtual machines. Empty: not known."""
    rows = (line.split() for line in _text(PROC / "stat").splitlines() if line.startswith("cpu"))
    return {name: [int(tick) for tick in ticks[:_COUNTED]] for name, *ticks in rows}


def memory_in_use() -> tuple[int, int]:
    """The machine's memory and, of it, what is not available to a program that starts now, bytes."""
    lines = (line.split() for line in _text(PROC / "meminfo").splitlines())
    known = {line[0]: int(line[1]) * 1024 for line in lines if len(line) > 1}
    total = known.get("MemTotal:", 0)
    free = known.get("MemFree:", 0)
    available = known.get("MemAvailable:", free)
    # In some containers, more is available than there is.
    return total, total - (free if available > total else available)


def was_started_with(pid: int, path: Path) -> bool:
    """True when process `pid` lives and has an argument that ends like `path`, whose start may be a link."""
    end = "/".join(("", *path.parts[-2:])).encode()
    words = words_of(pid)
    # A zombie has no words, nor has one that is so new that they are not there yet, or a thread of the kernel.
    if words == [b""]:
        try:
            return lives(pid) and bool((PROC / str(pid) / "exe").readlink())
        except OSError:
            return False
    return any(word.endswith(end) for word in words)


def words_of(pid: int) -> list[bytes]:
    """The command line of a process; empty: it has ended."""
    with suppress(OSError):
        return (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    return []


def wait(child: subprocess.Popen[bytes]) -> int:
    """The exit status of a child, once it has ended; for the main thread, whose handlers of signals run meanwhile.

    Popen.wait misses a signal that comes just before it: its handler runs only when the child has ended by itself. Each
    signal writes into a pipe, which this function waits for.
    """
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    pipe_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    handler_before = signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        while (code := child.poll()) is None:
            select.select([reader], [], [])
            os.read(reader, 4096)
        return code
    finally:
        signal.signal(signal.SIGCHLD, handler_before or signal.SIG_DFL)
        signal.set_wakeup_fd(pipe_before)
        os.close(reader)
        os.close(writer)


def end_session(session: int, last_s: float) -> None:
    """End what is left of a session whose first process has ended: asked first, killed after so many seconds."""
    left = [pid for pid, now in everyone().items() if now.session == session and now.state not in "ZX"]
    left += [child for pid in left for child in descendants(pid)]
    signal_all(left, signal.SIGTERM)
    end_s = time.monotonic() + last_s
    while any(map(lives, left)) and time.monotonic() < end_s:
        time.sleep(0.1)
    signal_all([pid for pid in left if lives(pid)], signal.SIGKILL)


def signal_all(pids: Iterable[int], number: int) -> None:
    """Signal those that still are there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _numbers(folder: Path) -> Iterator[Path]:
    with suppress(OSError):
        yield from [each for each in folder.iterdir() if each.name.isdigit()]


def usage(pid: int) -> Usage:
    """Of the process and of those below it."""
    found = {each: now for each in (pid, *below(pid)) if (now := stat_of(each)) is not None}
    cpu_ns, moved = sum(each.cpu_ns for each in found.values()), sum(map(_moved, found))
    own = found.pop(pid, None)
    return Usage(cpu_ns, moved, own.memory_bytes if own else 0, any(each.state == "R" for each in found.values()))


def _moved(pid: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        lines = (PROC / str(pid) / "io").read_text().splitlines()
        return int(lines[0].split()[1]) + int(lines[1].split()[1])
    return 0


def switches(pid: int, tid: int | None = None) -> int:
    """How often a thread has waited for something and went on; 0: not known."""
    lines = _text(PROC / str(pid) / "task" / str(pid if tid is None else tid) / "status").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches:")), 0)


def waits_in(pid: int, tid: int | None = None) -> str:
    """The call of the system that a thread waits in and what it is about; empty: it runs, or nobody may ask.

    For example "reading the FIFO /tmp/x", "waiting for a child, sleep (pid 7)", "sleeping".
    """
    thread = PROC / str(pid) / "task" / str(pid if tid is None else tid)
    try:
        words = (thread / "syscall").read_text().split()
        name, about = _CALLS[int(words[0])]
    except (OSError, ValueError, IndexError, KeyError):
        return _kernel_function(thread)
    if about is None:
        return name
    if about.startswith("path"):
        return f"{name} {_path_at(pid, int(words[1 + int(about[-1])], 16))}"
    value = int(words[1], 16)
    if about == "pid":
        found = stat_of(value) if 0 < value < 1 << 31 else None
        return f"{name}, {found.name} (pid {value})" if found else name
    return f"{name} {_file(pid, value)}"


def _kernel_function(folder: Path) -> str:
    with suppress(OSError):
        name = (folder / "wchan").read_text().strip("\0\n ")
        return "" if name in ("", "0") else f"the kernel's {name}"
    return ""


def _path_at(pid: int, address: int) -> str:
    with suppress(OSError, ValueError, OverflowError), (PROC / str(pid) / "mem").open("rb", buffering=0) as memory:
        memory.seek(address)
        name = os.fsdecode(memory.read(_LONGEST_PATH).split(b"\0", 1)[0])
        return f"{_kind_of(Path(name))} {name}".strip()
    return "a file"


def _file(pid: int, number: int) -> str:
    link = PROC / str(pid) / "fd" / str(number)
    try:
        target = str(link.readlink())
    except OSError:
        return f"file {number}"
    if target.startswith("socket:"):
        return "a socket"
    if target.startswith("pipe:"):
        return "a pipe"
    return f"{_kind_of(link)} {target}".strip()


def _kind_of(path: Path) -> str:
    with suppress(OSError):
        mode = path.stat().st_mode
        return "the FIFO" if stat.S_ISFIFO(mode) else "the device" if stat.S_ISCHR(mode) else "the file"
    return "the file"


class OomKills(NamedTuple):
    """How many processes the kernel has killed because memory ran out: in a cgroup, and on the whole machine."""

    cgroup: int
    machine: int


def killed_for_memory(pid: int) -> tuple[Path | None, OomKills]:
    """The file in which the kernel counts those of the process's cgroup, and the counts now."""
    file = next((file for file in _counting_files(pid) if file.is_file()), None)
    return file, counted(file)


def _counting_files(pid: int) -> Iterator[Path]:
    """Where the count may be: in the old hierarchy in the cgroup itself, in the new one in the nearest whose memory is
    limited or counted, which has those below it too."""
    for controllers, path in _cgroups(pid):
        if "memory" in controllers:
            yield CGROUPS / "memory" / path / "memory.oom_control"
        elif not controllers:
            for root in (CGROUPS, CGROUPS / "unified"):  # alone, or beside the old ones
                for folder in (path, *path.parents):
                    yield root / folder / "memory.events"


def counted(cgroup: Path | None) -> OomKills:
    """The counts now; 0 where there are none."""
    return OomKills(0 if cgroup is None else _count(cgroup), _count(PROC / "vmstat"))


def memory_limit(pid: int) -> int | None:
    """What a process and those beside it may use, in bytes: the least limit of its cgroups, else the machine's memory.
    None: the system does not say it."""
    file, total = limiting_file(pid), memory_in_use()[0]
    return int(_text(file)) if file is not None else total or None


def limiting_file(pid: int) -> Path | None:
    """The file with the least limit of the process's cgroups; None: the machine's memory is less."""
    limits = ((_text(file).strip(), file) for file in _limiting_files(pid))
    total = memory_in_use()[0] or math.inf
    found = [(int(text), file) for text, file in limits if text.isdecimal() and int(text) < total]
    return min(found)[1] if found else None


def memory_below(limit: Path | None) -> int:
    """What all processes under a limit of memory use now, without the pages of files; None: those of the machine."""
    if limit is None:
        return memory_in_use()[1]
    known = dict(line.split() for line in _text(limit.parent / "memory.stat").splitlines() if line.count(" ") == 1)
    names = ("total_rss", "total_shmem") if "total_rss" in known else ("anon", "shmem")  # the old hierarchy's, the new
    return sum(int(known.get(name, 0)) for name in names)


def _limiting_files(pid: int) -> Iterator[Path]:
    """The limits of the process's cgroup and of those above it, in the old hierarchy and in the new one."""
    for controllers, path in _cgroups(pid):
        for folder in (path, *path.parents):
            if "memory" in controllers:
                yield CGROUPS / "memory" / folder / "memory.limit_in_bytes"
            elif not controllers:
                yield CGROUPS / folder / "memory.max"
                yield CGROUPS / "unified" / folder / "memory.max"


def _count(file: Path) -> int:
    lines = (line.split() for line in _text(file).splitlines())
    return next((int(line[1]) for line in lines if len(line) == 2 and line[0] == "oom_kill"), 0)


def _cgroups(pid: int) -> Iterator[tuple[list[str], PurePath]]:
    """Its cgroup in each hierarchy, relative to the hierarchy's folder, with the hierarchy's controllers; none: the new
    one."""
    for line in _text(PROC / str(pid) / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        yield list(filter(None, controllers.split(","))), PurePath(path.lstrip("/"))


def _text(file: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return file.read_text()
    return ""

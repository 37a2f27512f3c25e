"""What used up a rank's memory: growth, a peak, fragmentation, or other processes. By what PyTorch or the kernel says,
and by what the ranks recorded after their steps; only the readers of `metrics/` at the end know a run's folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from harness.common.display.format import amount
from harness.common.run_folder.run_files import METRICS
from harness.common.system.bounded_read import BoundedReadError
from harness.heartbeats.lines import DAMAGED, Step, Time, text_of_ends

Kind = Literal["growth", "peak", "fragmentation", "other processes", ""]
WORKER_KILLED = re.compile(r"DataLoader worker \(pid.*is killed by signal: Killed")
_SHARED = re.compile(r"DataLoader worker \(pid.*is killed by signal: Bus error|insufficient shared memory")
_SIZE = r"(\d+(?:\.\d+)?) (bytes|[KMGT]iB)"
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_ASKED = rf"[Tt]ried to allocate {_SIZE}|Unable to allocate {_SIZE}"
_TOTAL = rf"{_SIZE} total capacity|total capaci?ty of {_SIZE}"  # 2.1 has no i
_FREE = rf"{_SIZE} free;|of which {_SIZE} is free"
_ALLOWED = rf"{_SIZE} allowed;"  # torch.cuda.set_per_process_memory_fraction
_ALLOCATED = rf"{_SIZE} already allocated|memory {_SIZE} is allocated by PyTorch"
_RESERVED = rf"{_SIZE} reserved in total by PyTorch"  # up to 2.0
_UNUSED = rf"{_SIZE} is reserved by PyTorch but unallocated"
_OWN = rf"this process has {_SIZE} memory in use"
_PROCESS = rf"Process \d+ has {_SIZE} memory in use"
_CONF = re.compile(r"PYTORCH_\w*ALLOC_CONF")
_UNLISTED = 1 / 4  # of a device: its driver, and the context of a process, have less
_FOREIGN = 1 / 4  # of a host's limit: the launcher and the monitor have less
_NEARLY = 3 / 4  # of a host's limit: without the kernel's word, a process that had less was killed by somebody
_LEAST_POINTS = 4
_AS_BEFORE = 1 / 10  # of what came after the last recorded step, that the recorded growth has at least


class Point(NamedTuple):
    """Bytes after a step."""

    step: int
    size: int


class Growth(NamedTuple):
    """Bytes since the first steps, and in a step."""

    rise: int
    per_step: float


class Shortage(NamedTuple):
    """kind: empty: the numbers do not tell it. asked: what the error is, in place of its message; empty: as it was.
    said: what there was, the verdict, and, if the numbers tell it, what to change. of: whose memory."""

    kind: Kind
    asked: str
    said: str
    of: Literal["GPU", "host"] = "GPU"


class RankMemory(NamedTuple):
    """host_limit: of all processes beside it. on_host: with the processes that load its data."""

    host: str
    host_limit: int | None
    on_host: list[Point]
    on_device: list[Point]


def growth(points: Sequence[Point]) -> Growth | None:
    """None: some step of the last quarter is no larger than one of the first. The first step is left out: the
    optimizer's state is made in it."""
    points = points[1:]
    quarter = len(points) // 4
    first, last = points[:quarter], points[-quarter:]
    if len(points) < _LEAST_POINTS or min(each.size for each in last) <= max(each.size for each in first):
        return None
    begin, end = first[quarter // 2], last[-1]
    return Growth(end.size - begin.size, (end.size - begin.size) / max(1, end.step - begin.step))


def of_device(message: str, points: Sequence[Point]) -> Shortage | None:
    """By the error of PyTorch's allocator; None: it is none, or has not its numbers. points: of the rank's tensors."""
    asked, total, free = (_size(pattern, message) for pattern in (_ASKED, _TOTAL, _FREE))
    allocated, unused, reserved = (_size(pattern, message) for pattern in (_ALLOCATED, _UNUSED, _RESERVED))
    if reserved is not None and allocated is not None:
        unused = max(0, reserved - allocated)
    if asked is None or total is None or free is None or allocated is None or unused is None:
        return None  # of another device, or cut short
    allowed = _size(_ALLOWED, message)
    room = free if allowed is None else min(free, max(0, allowed - allocated - unused))
    others = _others(message, total - free, allocated + unused)
    said = f"; of {amount(total)}, {amount(room)} were free and {amount(unused)} reserved but unused: "
    asked_for = f"it asked for {amount(asked)} on its GPU"
    grew = growth(points)
    if room >= max(asked, total / 10):
        return Shortage("", asked_for, f"{said}they do not say why that was not enough")
    if unused >= asked:
        name = found[0] if (found := _CONF.search(message)) else "PYTORCH_ALLOC_CONF"
        setting = f"{name}=expandable_segments:True"
        if reserved is not None:  # 2.0 and those before it know no segments that can grow
            setting = "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:512"
        verdict = f"fragmentation, as the unused memory was not in one piece; try {setting}"
        return Shortage("fragmentation", asked_for, said + verdict)
    if others >= max(asked - room, 1):
        verdict = f"other processes had {amount(others)}; nvidia-smi shows whose they are, or request the whole node"
        return Shortage("other processes", asked_for, said + verdict)
    if grew is not None and grew.rise >= asked - room:
        return Shortage("growth", asked_for, f"{said}it would have fitted, but what its tensors hold {_grew(grew)}")
    return Shortage("peak", asked_for, f"{said}a peak that needed {amount(max(0, asked - room))} more")


def _others(message: str, used: int, reserved: int) -> int:
    """What other processes have on a device. PyTorch lists them; in a container, it takes itself for another one, and
    may see none of them."""
    listed = sorted(map(_bytes, re.findall(_PROCESS, message)))
    own = _size(_OWN, message)
    if own is None and (mine := next((size for size in listed if size >= reserved), None)) is not None:
        own = mine
        listed.remove(mine)
    unlisted = used - max(own or 0, reserved) - sum(listed)
    total = _size(_TOTAL, message) or 0
    return sum(listed) + (unlisted if unlisted > _UNLISTED * total else 0)


def of_host(
    limit: int | None,
    ranks: Sequence[Sequence[Point]],
    beside: int | None,
    message: str,
    *,
    certain: bool,
    last_bytes: int | None = None,
) -> Shortage | None:
    """Of a rank that was killed, or whose allocation failed; None: it is not known that memory was the reason.

    ranks: what those of its host had, its own first. beside: what the others had when it had ended, its own being
    free; None: not known. message: its error; empty: it told none. certain: the kernel says that memory ran out.
    last_bytes: what it had at its last sign of life; steps after the last recorded one had ended then, as writing to a
    file waits where memory is short.
    """
    if _SHARED.search(message):
        verdict = "; /dev/shm was full, through which its data loader's workers pass batches: use fewer, or enlarge it"
        return Shortage("", "", verdict, "host")
    ends = [(each[0].size, each[-1].size) for each in ranks if each]
    had, has, asked = sum(first for first, _ in ends), sum(last for _, last in ends), _size(_ASKED, message)
    if limit is None or not (certain or asked is not None or has >= _NEARLY * limit):
        return None
    found = [grew for each in ranks if (grew := growth(each)) is not None]
    own = growth(ranks[0])
    unwritten = max(0, (last_bytes or 0) - ranks[0][-1].size) if own is not None else 0
    if own is not None and own.rise < _AS_BEFORE * unwritten:
        unwritten = 0  # seen inside of a peak
    has, rise = has + unwritten, sum(grew.rise for grew in found) + unwritten
    known = beside is not None and all(ranks)  # before a step has ended, what other ranks have is not known
    foreign = (beside or 0) - sum(each[-1].size for each in ranks[1:]) if known else 0
    who, whose = ("the rank", "its") if len(ranks) == 1 else (f"its {len(ranks)} ranks", "their")
    had_then, when = f"{who} last had {amount(has)}", "inside a step"
    if not ranks[0]:
        had_then, when = "no step of it had ended", "before the end of the first step"
    said = f"; of {amount(limit)} on its host, {had_then}: "
    asked_for = "" if asked is None else f"it asked for {amount(asked)}"
    if foreign > max(_FOREIGN * limit, rise):
        return Shortage("other processes", asked_for, f"{said}other processes had {amount(foreign)}", "host")
    if rise >= (limit - had - max(0, foreign)) / 2:  # most of what was free at the start
        grew = Growth(rise, sum(each.per_step for each in found))
        return Shortage("growth", asked_for, f"{said}{whose} memory {_grew(grew)}", "host")
    if asked is not None and has + asked <= limit:
        return Shortage("", asked_for, f"{said}so another limit holds, as ulimit -v", "host")
    or_others = "" if known or asked is not None else ", or other processes,"
    return Shortage("peak", asked_for, f"{said}a peak {when}{or_others} took the rest", "host")


def _grew(grew: Growth) -> str:
    return f"grew by {amount(grew.per_step)} a step, and by {amount(grew.rise)} since the first steps"


def _size(pattern: str, message: str) -> int | None:
    found = re.search(pattern, message)
    return None if found is None else _bytes([group for group in found.groups() if group is not None])


def _bytes(number_and_unit: Sequence[str]) -> int:
    return round(float(number_and_unit[0]) * _UNITS[number_and_unit[1]])


class _Line(msgspec.Struct):
    """A line of `metrics/`: of the start or of a step."""

    event: str = ""
    step: Step | None = None
    host: str = ""
    host_limit_bytes: Time | None = None
    host_memory_bytes: Time | None = None
    workers_memory_bytes: Time | None = None
    device_memory_bytes: Time | None = None


_decoder = msgspec.json.Decoder(_Line)


def read_rank(path: Path) -> RankMemory:
    """What a rank recorded, at both ends of its file."""
    host, limit, workers = "", None, 0
    on_host, on_device = list[Point](), list[Point]()
    with suppress(OSError, BoundedReadError):
        for text in text_of_ends(path).split(b"\n"):
            with suppress(*DAMAGED):
                line = _decoder.decode(text)
                if line.event == "start":
                    host, limit = line.host, line.host_limit_bytes
                workers = workers if line.workers_memory_bytes is None else line.workers_memory_bytes
                if line.step is not None and line.host_memory_bytes is not None:
                    on_host.append(Point(line.step, line.host_memory_bytes + workers))
                if line.step is not None and line.device_memory_bytes is not None:
                    on_device.append(Point(line.step, line.device_memory_bytes))
    return RankMemory(host, limit, on_host, on_device)


def read_beside(run: Path, rank: int) -> tuple[RankMemory, list[list[Point]]]:
    """A rank, and the host memory of those of its host, its own first."""
    own = read_rank(METRICS.path(run, rank))
    others = [path for path in METRICS.paths(run) if path != METRICS.path(run, rank)]
    beside = [path for path in others if next(METRICS.known_objects(path), {}).get("host") == own.host]
    return own, [own.on_host, *(read_rank(path).on_host for path in beside)]


def said_of_fullest(run: Path) -> str:
    """What is said of the host whose ranks had most after their last steps, of a run that its batch system ended for
    lack of memory; empty: none is known."""
    found: dict[str, list[RankMemory]] = {}
    for rank in map(read_rank, METRICS.paths(run)):
        found.setdefault(rank.host, []).append(rank)
    hosts = [(rank.host_limit, [each.on_host for each in ranks]) for ranks in found.values() for rank in ranks[:1]]
    limit, points = max(hosts, key=lambda host: sum(each[-1].size for each in host[1] if each), default=(None, []))
    told = of_host(limit, points, None, "", certain=True)
    return told.said if told is not None else ""

"""NCCL's or RCCL's log of a run: its lines as data (formats of NCCL 2.18 to 2.28, as its source writes them), and what
they say. RCCL ends many lines with the communicator that they are about.

A line that is not known here is skipped: each release of NCCL has new ones.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TypeVar

from harness.analysis.summary import (
    Nccl,
    NcclConnection,
    NcclNetwork,
    NcclVariable,
    NcclWarning,
    Problem,
    problem_texts,
)
from harness.common.display.printable import printable
from harness.common.run_folder.run_files import NCCL_LOGS
from harness.common.run_folder.run_store import UnreadFileError

MOST_DIFFERENT = 1_000  # kept of anything that a log may have many of: that of a real process has some dozens
_MOST_READ = 8_192  # characters of a line: NCCL itself writes at most 1,024
_LONGEST = 300  # characters of a text that is kept

# NCCL_DEBUG_TIMESTAMP_LEVELS puts a time before it; a warning has one always, from 2.26 on.
_HEAD = re.compile(r"(?:\[[^\]]{1,40}\] )?([\w.-]{1,255}):(\d{1,10}):(\d{1,10}) \[-?\d{1,4}\] ")
_INFO, _WARN = "NCCL INFO ", "NCCL WARN "
_VERSION = re.compile(r"NCCL version (\d[\w.+-]{0,60})|RCCL version ?:? (\d[\w.+]{0,60})")  # RCCL's branch follows

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
_COMM = r"(?: comm (?P<comm>0x[0-9a-f]{1,16})\b.*)?\s*$"  # RCCL's end of a line

_SHAPES = [
    (what, re.compile(shape))
    for what, shape in (
        (
            "connection",
            r"Channel \d{1,4}(?:/\d{1,4})? ?: (\d{1,8})\[[0-9a-f]{1,16}\] -> (\d{1,8})\[[0-9a-f]{1,16}\]"
            rf"(?: \[(send|receive)\])? via (\S.{{0,200}}?){_COMM}",
        ),
        (
            "initialisation",
            r"(?:\w{1,40} )?comm (0x[0-9a-f]{1,16}) rank (\d{1,8}) nranks (\d{1,8}) cudaDev \d{1,4} "
            r"(?:nvmlDev \d{1,4} )?busId [0-9a-f]{1,16}(.{0,200}?) ?- Init (START|COMPLETE)",
        ),
        ("network", r"Using network (\S.{0,80})"),
        ("devices", r"NET/(\w{1,40}) : Using (\[.{1,4000})"),
        ("no device", r"NET/(\w{1,40}) : No device found"),
        ("variable", r"([NR]CCL_[A-Z0-9_]{1,80}) set (?:by environment )?to (.{1,1000})"),
    )
]
MOST_LINES = 200_000  # of one file: exercise 0, with a line for each message, writes some 20,000
_MOST_SHOWN = 100  # of warnings and variables, those with most lines
_LONGEST_LINE = 16 << 10  # bytes


@dataclass
class Communicator:
    """A communicator as one process sees it. key: the same in all of its processes, as far as NCCL says."""

    pointer: str
    rank: int
    size: int
    key: str


Link = tuple[str | None, int | None, int, str, bool | None]
"""To another rank: key and size of the communicator (None: not known), the rank, the transport, and its GDRDMA."""


@dataclass
class LoggedProcess:
    """What the log of one process said so far."""

    host: str | None = None
    pid: int = 0
    versions: set[str] = field(default_factory=set)
    communicators: list[Communicator] = field(default_factory=list)
    current: dict[str, Communicator] = field(default_factory=dict)  # of each thread, that which it makes
    links: Counter[Link] = field(default_factory=Counter)  # one for each channel
    networks: dict[str, None] = field(default_factory=dict)
    devices: dict[str, list[str]] = field(default_factory=dict)  # of each network
    variables: dict[str, str] = field(default_factory=dict)
    warnings: Counter[str] = field(default_factory=Counter)
    is_understood: bool = False  # at least one line of it

    def read(self, line: str) -> None:
        """Take in one line of the log."""
        self.is_understood |= self._read(line[:_MOST_READ])

    def _read(self, line: str) -> bool:
        head = _HEAD.match(line)
        if head is None:
            return _version(self, line)
        if self.host is None:
            self.host, self.pid = head[1], int(head[2])
        rest = line[head.end() :]
        if rest.startswith(_INFO):
            return self._told(rest[len(_INFO) :], head[3])
        _, warns, text = rest.partition(_WARN)
        if warns:
            _count(self.warnings, _kept(text))
        return bool(warns)

    def _told(self, text: str, thread: str) -> bool:
        for what, shape in _SHAPES:
            if found := shape.match(text):
                self._take(what, found, thread)
                return True
        return _version(self, text)

    def _take(self, what: str, match: re.Match[str], thread: str) -> None:
        match what:
            case "connection":
                _connected(self, match, thread)
            case "initialisation":
                _initialised(self, match, thread)
            case "network":
                _put(self.networks, _kept(match[1]), None)
            case "devices":
                _put(self.devices, _kept(match[1]), _device_names(match[2]))
            case "no device":
                _put(self.devices, _kept(match[1]), self.devices.get(_kept(match[1]), []))
            case "variable":
                text = _kept(match[2])
                is_number = re.fullmatch(r"-?\d+\.", text)  # which a full stop follows
                _put(self.variables, match[1], text[:-1] if is_number else text)

    def owner(self, thread: str, rank: int, peer: int, pointer: str | None) -> Communicator | None:
        """The communicator that a thread speaks of: the one at `pointer`, else the one it makes, else the last one, in
        which this has `rank` and there is a rank `peer`."""
        named = [each for each in self.communicators if each.pointer == pointer]
        mine = self.current.get(thread)
        known = [*reversed(named), *([mine] if mine else []), *reversed(self.communicators)]
        return next((c for c in known if c.rank == rank and peer < c.size), None)


def _kept(text: str) -> str:
    return printable(text[:_LONGEST]).strip()


def _put(table: dict[Key, Value], hashable: Key, value: Value) -> None:
    if hashable in table or len(table) < MOST_DIFFERENT:
        table[hashable] = value


def _count(counts: Counter[Key], hashable: Key) -> None:
    _put(counts, hashable, counts[hashable] + 1)


def _version(process: LoggedProcess, text: str) -> bool:
    found = _VERSION.match(text)
    if found and len(process.versions) < MOST_DIFFERENT:
        process.versions.add(found[1] or found[2])
    return found is not None


def _initialised(process: LoggedProcess, match: re.Match[str], thread: str) -> None:
    pointer, rank, size, rest, state = match.groups()
    known = [each for each in process.communicators if each.pointer == pointer]
    if state == "COMPLETE" and known:
        process.current[thread] = known[-1]
    elif len(process.communicators) < MOST_DIFFERENT:
        identity = re.search(r"commId (0x[0-9a-f]{1,16})", rest) or re.search(
            r"splitCount \d{1,9} color -?\d{1,10}", rest
        )
        key = identity[0] if identity else ""
        mine = Communicator(pointer, int(rank), int(size), f"{key} of {size}")
        process.communicators.append(mine)
        process.current[thread] = mine


def _connected(process: LoggedProcess, match: re.Match[str], thread: str) -> None:
    """A connection to a peer. Of one over a network both ends tell; the sender's word counts."""
    sender, receiver, end, path = int(match[1]), int(match[2]), match[3], match[4].strip()
    if end == "receive":
        return
    mine = process.owner(thread, sender, receiver, match["comm"])
    _count(process.links, (mine.key if mine else None, mine.size if mine else None, receiver, *_transport(path)))


def _transport(path: str) -> tuple[str, bool | None]:
    """The transport without the number of the device and of the intermediate rank; of a network whether it reads and
    writes the GPU's memory.

    >>> _transport("NET/IB/0(1)/GDRDMA"), _transport("P2P/CUMEM/read"), _transport("SHM/direct/direct")
    (('NET/IB', True), ('P2P/CUMEM', None), ('SHM/direct', None))
    """
    kind, _, rest = path.partition("/")
    name = _kept(re.match(r"[^/(]*", rest)[0])  # type: ignore[index]  # it matches nothing too
    shown = f"{kind}/{name}" if name and not name.isdigit() else kind
    return shown, "/GDRDMA" in path if kind == "NET" else None


def _device_names(listed: str) -> list[str]:
    """Of `[0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB …` or `[0]eth0:10.0.0.1<0>` the names, and no address."""
    names = re.findall(r"\] ?([\w.-]{1,64}):(?:\d{1,3}/(\w{1,16}))?", listed.partition(";")[0])
    return [f"{name} ({kind})" if kind else name for name, kind in names]


def read_nccl_logs(files: Iterable[Path]) -> tuple[Nccl | None, list[Problem]]:
    """What the logs say together, and a finding for each that cannot be read; None without any log."""
    processes: list[LoggedProcess] = []
    problems: list[Problem] = []
    for path in files:
        try:
            processes.append(read_nccl_log(path))
        except UnreadFileError as error:
            problems.append(Problem.doubt(problem_texts.NCCL_UNREADABLE, f"nccl/{path.name}: {error.reason}"))
    spoken = [each for each in processes if each.is_understood]
    return (_together(spoken) if spoken else None), problems


def read_nccl_log(path: Path) -> LoggedProcess:
    """The log of one process. Raises UnreadFileError."""
    process = LoggedProcess()
    for line in islice(NCCL_LOGS.lines(path, _LONGEST_LINE), MOST_LINES):
        process.read(line)
    return process


def _together(processes: Sequence[LoggedProcess]) -> Nccl:
    return Nccl(
        versions=sorted({version for each in processes for version in each.versions}),
        without_infiniband=any(each.devices.get("IB") == [] for each in processes),
        connections=_connections(processes),
        networks=_networks(processes),
        variables=_variables(processes),
        warnings=_warnings(processes),
        processes=len(processes),
    )


def _places(processes: Sequence[LoggedProcess]) -> dict[str, dict[int, str]]:
    """The host of each rank, by communicator."""
    found: defaultdict[str, dict[int, str]] = defaultdict(dict)
    for process in processes:
        for mine in process.communicators:
            found[mine.key][mine.rank] = process.host or ""
    return found


def _connections(processes: Sequence[LoggedProcess]) -> list[NcclConnection]:
    places = _places(processes)
    found: Counter[tuple[int | None, str, bool | None, bool | None]] = Counter()
    for process in processes:
        for (key, size, peer, transport, gdrdma), count in process.links.items():
            there = places.get(key or "", {}).get(peer)
            found[size, transport, gdrdma, None if there is None else there != process.host] += count
    rows = [
        NcclConnection(communicator_size=size, transport=transport, gdrdma=gdrdma, between_nodes=apart, count=count)
        for (size, transport, gdrdma, apart), count in found.items()
    ]
    return sorted(rows, key=lambda row: (-(row.communicator_size or 0), -row.count, row.transport))


def _networks(processes: Sequence[LoggedProcess]) -> list[NcclNetwork]:
    users = Counter(name for each in processes for name in each.networks)
    found = []
    for name, count in users.most_common(_MOST_SHOWN):
        using = [each for each in processes if name in each.networks]
        devices = {device for each in using for device in _devices_of(each.devices, name)}
        found.append(NcclNetwork(name=name, processes=count, network_devices=sorted(devices)[:_MOST_SHOWN]))
    return found


def _devices_of(names_by_plugin: Mapping[str, list[str]], name: str) -> list[str]:
    """A plugin such as IBext_v8 lists its devices under IB."""
    return names_by_plugin.get(name) or next(
        (names_by_plugin[each] for each in names_by_plugin if name.startswith(each)), []
    )


def _variables(processes: Sequence[LoggedProcess]) -> list[NcclVariable]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for process in processes:
        for name, text in process.variables.items():
            found[name].add(text)
    rows = [NcclVariable(name=name, values=sorted(found[name])[:_MOST_SHOWN]) for name in sorted(found)]
    return rows[:_MOST_SHOWN]


def _warnings(processes: Sequence[LoggedProcess]) -> list[NcclWarning]:
    total = sum((each.warnings for each in processes), Counter[str]())
    return [
        NcclWarning(text=text, host=next(each.host or "" for each in processes if text in each.warnings), count=count)
        for text, count in total.most_common(_MOST_SHOWN)
    ]

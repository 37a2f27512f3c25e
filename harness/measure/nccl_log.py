"""NCCL's logs of a run, a file for each process, as a part of its summary: see `--nccl-debug`. Reads no traces."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path

from harness.analysis.summary import (
    Nccl,
    NcclChoice,
    NcclCommunicator,
    NcclConnection,
    NcclNetwork,
    NcclRank,
    NcclVariable,
    NcclWarning,
    Problem,
    problem_texts,
)
from harness.common.bounded_read import BoundedReadError, read_lines, why_unread
from harness.measure.nccl_lines import Communicator, Process

MOST_LINES = 200_000  # of one file: exercise 0, with a line for each message, writes some 20,000
_MOST_SHOWN = 100  # of warnings, variables and message sizes, those with most lines
_LONGEST_LINE = 16 << 10  # bytes


def read_nccl_logs(files: Iterable[Path]) -> tuple[Nccl | None, list[Problem]]:
    """What the logs say together, and a finding for each that cannot be read; None without any log."""
    processes: list[Process] = []
    problems: list[Problem] = []
    for path in files:
        try:
            processes.append(read_nccl_log(path))
        except (OSError, BoundedReadError) as error:
            problems.append(
                Problem.doubt(problem_texts.NCCL_UNREADABLE, f"nccl/{path.name}: {why_unread(error)}")
            )
    spoken = [each for each in processes if each.understood]
    return (_together(spoken, processes) if spoken else None), problems


def read_nccl_log(path: Path) -> Process:
    """The log of one process. Raises OSError and SmallFileError as `read_lines`."""
    process = Process()
    for line in islice(read_lines(path, _LONGEST_LINE), MOST_LINES):
        process.read(line)
    return process


def _together(processes: Sequence[Process], read: Sequence[Process]) -> Nccl:
    nvls = {each.nvls for each in processes} - {None}
    return Nccl(
        versions=sorted({version for each in processes for version in each.versions}),
        nvls=None if not nvls else nvls == {True},
        without_infiniband=any(each.devices.get("IB") == [] for each in processes),
        ranks=_ranks(processes),
        communicators=_communicators(processes),
        connections=_connections(processes),
        networks=_networks(processes),
        variables=_variables(processes),
        choices=_choices(processes),
        warnings=_warnings(processes),
        processes=len(processes),
        understood_count=sum(each.understood for each in read),
        skipped_count=sum(each.skipped for each in read),
    )


def _largest(process: Process) -> Communicator | None:
    return max(process.communicators, key=lambda each: each.size, default=None)


def _ranks(processes: Sequence[Process]) -> list[NcclRank]:
    found = []
    for each in processes:
        mine = _largest(each)
        found.append(
            NcclRank(
                rank=mine.rank if mine else None,
                host=each.host or "",
                pid=each.pid,
                device=mine.device if mine else None,
                bus_id=mine.bus_id if mine else None,
                trees=mine.trees if mine else None,
            )
        )
    return sorted(found, key=lambda each: (each.rank is None, each.rank or 0, each.host, each.pid))


def _places(processes: Sequence[Process]) -> dict[str, dict[int, str]]:
    """The host of each rank, by communicator."""
    found: defaultdict[str, dict[int, str]] = defaultdict(dict)
    for process in processes:
        for mine in process.communicators:
            found[mine.key][mine.rank] = process.host or ""
    return found


def _communicators(processes: Sequence[Process]) -> list[NcclCommunicator]:
    """Those of more than one rank, the largest first."""
    places, members = _places(processes), defaultdict[str, list[Communicator]](list)
    for process in processes:
        for mine in process.communicators:
            members[mine.key].append(mine)
    found = [
        NcclCommunicator(
            size=each[0].size,
            ranks_seen=len(places[key]),
            hosts=len({*places[key].values()}),
            channel_count=next((c.channels for c in each if c.channels is not None), None),
            nvls_channel_count=next((c.nvls_channels for c in each if c.nvls_channels is not None), None),
            p2p_channel_count=next((c.p2p_channels for c in each if c.p2p_channels is not None), None),
            rings=next(([c.rings[n] for n in sorted(c.rings)] for c in each if c.rings), []),
        )
        for key, each in members.items()
        if each[0].size > 1
    ]
    return sorted(found, key=lambda each: -each.size)


def _connections(processes: Sequence[Process]) -> list[NcclConnection]:
    places = _places(processes)
    found: Counter[tuple[int | None, str, bool | None, bool | None]] = Counter()
    for process in processes:
        for link, count in process.links.items():
            there = places.get(link.key or "", {}).get(link.peer)
            apart = None if there is None else there != process.host
            found[link.size, link.transport, link.gdrdma, apart] += count
    rows = [
        NcclConnection(
            communicator_size=size, transport=transport, gdrdma=gdrdma, between_nodes=apart, count=count
        )
        for (size, transport, gdrdma, apart), count in found.items()
    ]
    return sorted(rows, key=lambda row: (-(row.communicator_size or 0), -row.count, row.transport))


def _networks(processes: Sequence[Process]) -> list[NcclNetwork]:
    users = Counter(name for each in processes for name in each.networks)
    found = []
    for name, count in users.most_common(_MOST_SHOWN):
        using = [each for each in processes if name in each.networks]
        can = [each.gpu_direct[name] for each in using if name in each.gpu_direct]
        devices = {device for each in using for device in _devices(each.devices, name)}
        found.append(
            NcclNetwork(
                name=name,
                processes=count,
                network_devices=sorted(devices)[:_MOST_SHOWN],
                gpu_direct_rdma=all(can) if can else None,
                plugin=next((each.plugin for each in using if each.plugin), None),
            )
        )
    return found


def _devices(devices: Mapping[str, list[str]], name: str) -> list[str]:
    """A plugin such as IBext_v8 lists its devices under IB."""
    return devices.get(name) or next((devices[each] for each in devices if name.startswith(each)), [])


def _variables(processes: Sequence[Process]) -> list[NcclVariable]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for process in processes:
        for name, text in process.variables.items():
            found[name].add(text)
    rows = [NcclVariable(name=name, values=sorted(found[name])[:_MOST_SHOWN]) for name in sorted(found)]
    return rows[:_MOST_SHOWN]


def _choices(processes: Sequence[Process]) -> list[NcclChoice]:
    total = sum((each.choices for each in processes), Counter[tuple[str, int, str, str]]())
    rows = [
        NcclChoice(collective=collective, bytes=size, algorithm=algorithm, protocol=protocol, count=count)
        for (collective, size, algorithm, protocol), count in total.most_common(_MOST_SHOWN)
    ]
    return sorted(rows, key=lambda row: (row.collective, row.bytes, row.algorithm, row.protocol))


def _warnings(processes: Sequence[Process]) -> list[NcclWarning]:
    total = sum((each.warnings for each in processes), Counter[str]())
    return [
        NcclWarning(
            text=text, host=next(each.host or "" for each in processes if text in each.warnings), count=count
        )
        for text, count in total.most_common(_MOST_SHOWN)
    ]

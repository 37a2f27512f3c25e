"""A file that the files of several ranks were merged into: which process launched the work of which device, and which
rank each process is. Knows columns only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.traces.columns import constant, distinct, launches, take
from harness.traces.kineto.gather import Gathered
from harness.traces.kineto.records import MessageArgs, integer
from harness.traces.trace import I64, Calls

_CAUSAL = 0.99  # of a device's work must begin after its launch; a record may be wrong
_APART = 0.01  # of the work, by which the right process of each device is better than any other
_MOST_TRIED = 6  # devices whose every order is tried: 720 orders
BY_ORDER = (
    "the file holds {count} processes with a device each; which process launched on which device is not recorded, so "
    "they are taken in the order of their numbers"
)


@dataclass(frozen=True)
class MergedRanks:
    """process: of each device. ranks: of each process. note: what is uncertain about it, or empty."""

    process: dict[int, int]
    ranks: dict[int, int]
    note: str = ""

    def of(self, device: NDArray[np.integer[Any]]) -> I64:
        """The process of each event, by its device."""
        found: I64 = np.full(len(device), -1, np.int64)
        for number, pid in self.process.items():
            found[device == number] = pid
        return found


def merged_ranks(gathered: Gathered, device: Mapping[str, NDArray[Any]], calls: Calls) -> MergedRanks | None:
    """The ranks of a file with as many processes that launch work as devices, which share no thread; None: it is no
    such file, or its work cannot be told apart. device: the columns of the devices' work."""
    pids, devices = distinct(calls.process), distinct(device["device"])
    if len(pids) < 2 or pids[0] < 0 or len(pids) != len(devices) or not _share_no_thread(calls, pids):
        return None
    ranks = _ranks((message.process, message.args) for message in gathered.host_messages)
    told = {*ranks} == {*pids} and len({*ranks.values()}) == len(pids)
    of_devices = _ranks((int(device["device"][row]), args) for row, args in gathered.device_messages.items())
    order, note = _by_launches(device, calls, pids, devices), ""
    if order is None and told and {*of_devices} == {*devices} and {*of_devices.values()} == {*ranks.values()}:
        of_rank = {rank: pid for pid, rank in ranks.items()}
        order = [of_rank[of_devices[number]] for number in devices]
    if order is None:
        order, note = pids, BY_ORDER.format(count=len(pids))
        if min(_causal(device, calls, pid, number) for pid, number in zip(pids, devices, strict=True)) < _CAUSAL:
            return None
    process = dict(zip(devices, order, strict=True))
    return MergedRanks(process, ranks if told else {pid: number for number, pid in process.items()}, note)


def _share_no_thread(calls: Calls, pids: Sequence[int]) -> bool:
    threads = [{*distinct(calls.thread[calls.process == pid])} for pid in pids]
    return sum(map(len, threads)) == len(set().union(*threads))


def _causal(device: Mapping[str, NDArray[Any]], calls: Calls, pid: int, number: int) -> float:
    """The share of a device's work that began after a call of this process with its number."""
    mine = np.flatnonzero((device["device"] == number) & (device["correlation"] > 0))
    own = take(calls, np.flatnonzero(calls.process == pid))
    launch, _ = launches(device["correlation"][mine], constant(pid, len(mine)), own)
    return float(((launch >= 0) & (launch <= device["start_ns"][mine])).mean()) if len(mine) else 0.0


def _by_launches(
    device: Mapping[str, NDArray[Any]], calls: Calls, pids: Sequence[int], devices: Sequence[int]
) -> list[int] | None:
    """The process of each device where one order alone has all work begin after its launch."""
    if len(devices) > _MOST_TRIED:
        return None
    share = [[_causal(device, calls, pid, number) for pid in pids] for number in devices]
    orders = sorted(
        ((min(share[i][j] for i, j in enumerate(order)), order) for order in permutations(range(len(pids)))),
        reverse=True,
    )
    (best, order), (second, _) = orders[:2]
    return [pids[j] for j in order] if best >= _CAUSAL and best - second >= _APART else None


def _ranks(messages: Iterable[tuple[int, MessageArgs]]) -> dict[int, int]:
    """The rank of each owner of messages, as those of its largest group say."""
    votes: dict[int, Counter[tuple[int, int]]] = {}
    for owner, args in messages:
        rank = _rank(args)
        if rank is not None:
            votes.setdefault(owner, Counter())[rank] += 1
    # the largest group is the world, in which a rank has its own number
    return {owner: max(counts, key=lambda each: (each[0], counts[each]))[1] for owner, counts in votes.items()}


def _rank(args: MessageArgs) -> tuple[int, int] | None:
    """The size of a message's group and the rank in it."""
    rank, size = integer(args.rank), integer(args.group_size)
    return (size, rank) if rank >= 0 and size > rank else None

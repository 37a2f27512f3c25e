"""Files that are one job by their names, or by those of their folders, where they do not record it themselves."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from math import prod
from pathlib import PurePath

from harness.analysis.process.part import RankPart, collectives_of, used_a_gpu, with_rank

_NUMBER = re.compile(r"(\d+)")
_LONG = re.compile(r"\d{5,}")  # times and jobs

Numbered = list[tuple[tuple[int, ...], RankPart]]  # parts with the numbers in their names


def numbered_jobs(parts: Sequence[RankPart]) -> list[list[RankPart]]:
    """The jobs, each part with its rank and world size, whose ranks all have a report of one process in one folder.
    The reports' names differ in a number (`report.0`, `report.1` …), which counts up from 0, and the reports, if their
    clocks are known, are of the same time."""
    on_gpus = {PurePath(part.source.path).parent for part in parts if used_a_gpu(part)}
    processes = Counter(part.source.path for part in parts)
    alike: dict[tuple[object, ...], Numbered] = defaultdict(list)
    for part in parts:
        path, is_alone = PurePath(part.source.path), processes[part.source.path] == 1
        is_launcher = path.parent in on_gpus and not used_a_gpu(part)
        of_nsys = part.run is None and part.source.tool == "nsys" and part.source.world_size is None
        if of_nsys and is_alone and not is_launcher:
            words = _NUMBER.split(path.name)
            alike[path.parent, tuple(words[::2])].append((tuple(map(int, words[1::2])), part))
    jobs = [job for each in alike.values() if len(each) > 1 for job in _numbered_alike(each, len(each))]
    return [_ranked(job) for job in jobs if all(part.source.rank in (None, rank) for rank, part in enumerate(job))]


def jobs_in_folders(parts: Sequence[RankPart]) -> list[list[RankPart]]:
    """The jobs, each part with its rank and world size, of one trace per folder, where the traces know no rank and the
    folders' names number them (`rank_0`, `rank_1`, or `node0-gpu0` to `node1-gpu3`): there are as many as the largest
    group that their collectives name has ranks."""
    folders: dict[PurePath, list[RankPart]] = defaultdict(list)
    for part in parts:
        folders[PurePath(part.source.path).parent].append(part)
    alike: dict[tuple[tuple[str, ...], int], Numbered] = defaultdict(list)
    for folder, (part, *others) in folders.items():
        if part.run is None and part.source.rank is None and part.source.world_size is None and not others:
            words = _NUMBER.split(_LONG.sub("#", str(folder)))
            alike[tuple(words[::2]), largest_group(part)].append((tuple(map(int, words[1::2])), part))
    found = [job for (_, size), numbered in alike.items() if size > 1 for job in _numbered_alike(numbered, size)]
    return list(map(_ranked, found))


def _ranked(job: Sequence[RankPart]) -> list[RankPart]:
    return [with_rank(part, rank, len(job)) for rank, part in enumerate(job)]


def largest_group(part: RankPart) -> int:
    """The ranks of the largest group that a part's collectives name; 0: they name none."""
    return max((key.group_size or 0 for key in collectives_of(part).keys), default=0)


def _numbered_alike(numbered: Numbered, size: int) -> list[list[RankPart]]:
    """The jobs of this size, by the numbers in the names: of each number that differs all values occur with all of the
    others', and the last one counts from 0 on."""
    columns = [sorted(set(column)) for column in zip(*(numbers for numbers, _ in numbered), strict=True)]
    differ = [place for place, values in enumerate(columns) if len(values) > 1]
    if len(numbered) > size and differ:
        split = [[each for each in numbered if each[0][differ[0]] == value] for value in columns[differ[0]]]
        return [job for each in split for job in _numbered_alike(each, size)]
    is_whole = len(numbered) == size == prod(map(len, columns))
    counts_up = is_whole and columns[differ[-1]] == [*range(len(columns[differ[-1]]))]
    job = [part for _, part in sorted(numbered, key=_numbers)]
    return [job] if counts_up and _at_one_time(job) else []


def _numbers(numbered: tuple[tuple[int, ...], RankPart]) -> tuple[int, ...]:
    return numbered[0]


def _at_one_time(parts: Sequence[RankPart]) -> bool:
    times = [(p.epoch_ns + p.window_start_ns, p.epoch_ns + p.window_end_ns) for p in parts if p.epoch_ns is not None]
    return len(times) < len(parts) or max(start for start, _ in times) <= min(end for _, end in times)

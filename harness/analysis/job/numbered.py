"""Files that are one job by their names, or by those of their folders, where they do not record it themselves."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import prod
from pathlib import PurePath

from harness.analysis.process.part import RankPart, collectives_of, used_a_gpu, with_rank

_NUMBER = re.compile(r"(\d+)")
_LONG = re.compile(r"\d{5,}")  # times and jobs

Ranked = list[tuple[int, RankPart]]


def numbered_jobs(parts: Iterable[RankPart]) -> list[list[RankPart]]:
    """The jobs, each part with its rank and world size, whose ranks all have a report of one process in one folder.
    The reports' names differ in one number alone (`report.0`, `report.1` …), which counts up from 0, and the reports,
    if their clocks are known, are of the same time."""
    folders: dict[PurePath, dict[str, list[RankPart]]] = defaultdict(lambda: defaultdict(list))
    parts = list(parts)
    on_gpus = {PurePath(part.source.path).parent for part in parts if used_a_gpu(part)}
    for part in parts:
        if PurePath(part.source.path).parent in on_gpus and not used_a_gpu(part):
            continue  # a launcher is no rank
        if part.run is None and part.source.tool == "nsys" and part.source.world_size is None:
            path = PurePath(part.source.path)
            folders[path.parent][path.name].append(part)
    found = [job for files in folders.values() for job in _by_name(files) if _is_job(job)]
    return [[with_rank(part, rank, len(job)) for rank, part in sorted(job, key=_first)] for job in found]


def jobs_in_folders(parts: Iterable[RankPart]) -> list[list[RankPart]]:
    """The jobs, each part with its rank and world size, of one trace per folder, where the traces know no rank and the
    folders' names number them (`rank_0`, `rank_1`, or `node0-gpu0` to `node1-gpu3`): there are as many as the largest
    group that their collectives name has ranks."""
    folders: dict[PurePath, list[RankPart]] = defaultdict(list)
    for part in parts:
        folders[PurePath(part.source.path).parent].append(part)
    alike: dict[tuple[tuple[str, ...], int], list[tuple[tuple[int, ...], RankPart]]] = defaultdict(list)
    for folder, (part, *others) in folders.items():
        if part.run is None and part.source.rank is None and part.source.world_size is None and not others:
            words = _NUMBER.split(_LONG.sub("#", str(folder)))
            alike[tuple(words[::2]), largest_group(part)].append((tuple(map(int, words[1::2])), part))
    found = [job for (_, size), numbered in alike.items() if size > 1 for job in _numbered_alike(numbered, size)]
    return [[with_rank(part, rank, len(job)) for rank, part in enumerate(job)] for job in found]


def largest_group(part: RankPart) -> int:
    """The ranks of the largest group that a part's collectives name; 0: they name none."""
    return max((key.group_size or 0 for key in collectives_of(part).keys), default=0)


def _numbered_alike(numbered: list[tuple[tuple[int, ...], RankPart]], size: int) -> list[list[RankPart]]:
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


def _first(ranked: tuple[int, RankPart]) -> int:
    return ranked[0]


def _is_job(ranked: Ranked) -> bool:
    is_whole = len(ranked) > 1 and {rank for rank, _ in ranked} == set(range(len(ranked)))
    return is_whole and _at_one_time([part for _, part in ranked])


def _by_name(files: dict[str, list[RankPart]]) -> list[Ranked]:
    """Of the reports whose names differ in one number: this number and their process."""
    alike: dict[tuple[str, ...], list[tuple[list[int], RankPart]]] = defaultdict(list)
    for name, parts in files.items():
        if len(parts) == 1:
            words = _NUMBER.split(name)
            alike[tuple(words[::2])].append((list(map(int, words[1::2])), parts[0]))
    found = []
    for each in alike.values():
        columns = zip(*(numbers for numbers, _ in each), strict=True)
        differ = [place for place, column in enumerate(columns) if len(set(column)) > 1]
        ranked = [(numbers[differ[0]], part) for numbers, part in each] if len(differ) == 1 else []
        if all(part.source.rank in (None, rank) for rank, part in ranked):
            found.append(ranked)
    return found


def _at_one_time(parts: Sequence[RankPart]) -> bool:
    times = [(p.epoch_ns + p.window_start_ns, p.epoch_ns + p.window_end_ns) for p in parts if p.epoch_ns is not None]
    return len(times) < len(parts) or max(start for start, _ in times) <= min(end for _, end in times)

"""The rank in a name: of a range, as our training scripts write it, or of a trace's file."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path

# No rank has ten digits.
_IN_RANGE = re.compile(r"\brank[ :=-]?(\d{1,9})\b", re.IGNORECASE)
_WHOLE = re.compile(r"(rank|worker)[-_]?\d+\.", re.IGNORECASE)  # a name that is nothing but a rank
_FIRST = re.compile(r"rank[-_]?\d", re.IGNORECASE)
_IN_FILE = re.compile(r"(?:rank|worker)[-_]?(\d{1,9})(?!\d)", re.IGNORECASE)
_LONG = re.compile(r"\d{5,}")  # times and process ids, by which the files of one job differ too
_LEAST_SHARE = 0.5  # of the numbers from 0 up to the largest, which a set of ranks has
_MOST_FILES = 100_000  # of a folder that are looked at


def rank_in_range(name: str) -> int | None:
    """The rank in a range's name.

    >>> rank_in_range("epoch_0-rank_3"), rank_in_range("rank=3"), rank_in_range("DataLoader worker 3")
    (3, 3, None)
    """
    found = _IN_RANGE.search(name.replace("_", " "))
    return int(found.group(1)) if found else None


def rank_in_file(path: Path) -> int | None:
    """The rank in a file's name: the names in its folder that differ in this number count up from 0; or the name is
    nothing but the rank (`rank3.json`); or it begins with the rank, and no other name does. Else the number may be a
    LoRA's rank, or a host's."""
    found = _IN_FILE.search(path.name)
    if found is None:
        return None
    form = _form(path.name, found)
    by_form, by_end = _numbers(path.parent)
    own, every = by_form.get(form, []), by_end.get(form[1], [])
    alone = _WHOLE.match(path.name) or (len(own) < 2 and _FIRST.match(path.name))
    return int(found.group(1)) if alone or counts_up({*own}) or counts_up_once(every) else None


def counts_up(numbers: Collection[int]) -> bool:
    """Whether these are numbers from 0 on, of which some may be missing.

    >>> counts_up({0, 1, 3}), counts_up({8, 16}), counts_up({0})
    (True, False, False)
    """
    return len(numbers) > 1 and min(numbers) == 0 and len(numbers) >= _LEAST_SHARE * (max(numbers) + 1)


def counts_up_once(numbers: Sequence[int]) -> bool:
    return len({*numbers}) == len(numbers) and counts_up(numbers)


Form = tuple[str, str]  # what stands before and after a number


def _form(name: str, match: re.Match[str]) -> Form:
    """The name without its number, and without those that differ between the files of a job anyway."""
    return _LONG.sub("#", name[: match.start(1)]), _LONG.sub("#", name[match.end(1) :])


def _numbers(folder: Path) -> tuple[dict[Form, list[int]], dict[str, list[int]]]:
    """The numbers in the names of a folder's files: by the rest of the name, and by its end, of all hosts."""
    try:
        return _numbers_of(folder, folder.stat().st_mtime_ns)
    except OSError:
        return {}, {}


@lru_cache(maxsize=64)
def _numbers_of(folder: Path, changed_ns: int) -> tuple[dict[Form, list[int]], dict[str, list[int]]]:
    del changed_ns  # a folder that was changed is read again
    by_form, by_end = dict[Form, list[int]](), dict[str, list[int]]()
    with os.scandir(folder) as entries:
        for _, entry in zip(range(_MOST_FILES), entries, strict=False):
            if match := _IN_FILE.search(entry.name):
                form = _form(entry.name, match)
                by_form.setdefault(form, []).append(int(match.group(1)))
                by_end.setdefault(form[1], []).append(int(match.group(1)))
    return by_form, by_end

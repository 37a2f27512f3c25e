"""The rank in a name: of a range, as our training scripts write it, or of a trace's file."""

from __future__ import annotations

import re

# No rank has ten digits.
_IN_RANGE = re.compile(r"\brank[ :=-]?(\d{1,9})\b", re.IGNORECASE)
_IN_FILE = re.compile(r"(?:rank|worker)[-_]?(\d{1,9})(?!\d)", re.IGNORECASE)


def rank_in_range(name: str) -> int | None:
    """The rank in a range's name.

    >>> rank_in_range("epoch_0-rank_3"), rank_in_range("rank=3"), rank_in_range("DataLoader worker 3")
    (3, 3, None)
    """
    found = _IN_RANGE.search(name.replace("_", " "))
    return int(found.group(1)) if found else None


def rank_in_file(name: str) -> int | None:
    """The rank in a file's name.

    >>> rank_in_file("profile_rank12.nsys-rep"), rank_in_file("num_workers_4.json")
    (12, None)
    """
    found = _IN_FILE.search(name)
    return int(found.group(1)) if found else None

"""How Slurm writes what it is asked and what it says: fields, lists, time limits, dates, ids of jobs and tasks."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from datetime import datetime

_NUMBER = re.compile(r"(\d+)(?:_\[?([\d,:-]+))?")
_TASKS = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::([1-9]\d{0,8}))?)?")


def words_of(lines: Iterable[str]) -> list[str]:
    """The words of these #SBATCH lines, split and unquoted as sbatch reads them in a script."""
    return [word for line in lines for word in shlex.split(line, comments=True)]


def fields_of(line: str) -> dict[str, str]:
    """The fields of one line of `scontrol --oneliner show`.

    >>> fields_of("PartitionName=gpu State=UP MaxTime=1-00:00:00 Users=(null)")
    {'PartitionName': 'gpu', 'State': 'UP', 'MaxTime': '1-00:00:00', 'Users': '(null)'}
    """
    return dict(part.split("=", 1) for part in line.split() if "=" in part)


def seconds_of(clock: str) -> int | None:
    """A time limit in seconds; None for UNLIMITED, or what is no time.

    >>> seconds_of("1-00:30:00"), seconds_of("00:10:00"), seconds_of("UNLIMITED")
    (88200, 600, None)
    """
    days, _, rest = clock.rpartition("-")
    parts = rest.split(":")
    if len(parts) != 3 or not all(part.isdigit() for part in [*parts, days or "0"]):
        return None
    hours, minutes, seconds = map(int, parts)
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def clock_text(seconds: int) -> str:
    """Seconds as --time, a site file and sbatch take a time limit.

    >>> clock_text(600), clock_text(88200)
    ('00:10:00', '1-00:30:00')
    """
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


def moment_of(text: str) -> datetime | None:
    """A date, 2026-11-25T06:33:20, in the site's own time; None for what is none, as N/A."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def unix_ns(text: str) -> int | None:
    """The same in nanoseconds since 1970."""
    moment = moment_of(text)
    try:
        return int(moment.timestamp()) * 1_000_000_000 if moment else None
    except (ValueError, OverflowError, OSError):
        return None


def job_and_tasks(number: str) -> tuple[int, tuple[range, ...]]:
    """A job's number, and the tasks if it is an array; -1 for what is no number.

    >>> job_and_tasks("4711"), job_and_tasks("4711_3"), job_and_tasks("4711_[0-3,8-12:2%4]")
    ((4711, ()), (4711, (range(3, 4),)), (4711, (range(0, 4), range(8, 13, 2))))
    """
    found = _NUMBER.match(number)
    if found is None:
        return -1, ()
    tasks = (_TASKS.match(part) for part in (found[2] or "").split(","))
    return int(found[1]), tuple(
        range(int(each[1]), int(each[2] or each[1]) + 1, int(each[3] or 1)) for each in tasks if each
    )

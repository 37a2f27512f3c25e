"""How Slurm writes what it is asked and what it says: fields, lists, time limits, dates."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from datetime import datetime


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

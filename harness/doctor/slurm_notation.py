"""Slurm's own notations: `Name=value` lines, times, dates. Pure."""

from __future__ import annotations

from datetime import datetime


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


def moment_of(text: str) -> datetime | None:
    """A date of scontrol, in the site's own time; None for what is none."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def names_of(text: str) -> list[str]:
    """The names of a list; none for `(null)`.

    >>> names_of("anna,-bert"), names_of("(null)")
    (['anna', '-bert'], [])
    """
    return [] if text in ("", "(null)") else text.split(",")


def gpus_of(tres: str) -> int | None:
    """The GPUs in a limit of sacctmgr, whatever their type; None if it does not limit them.

    >>> gpus_of("cpu=32,gres/gpu=8,node=2"), gpus_of("node=2")
    (8, None)
    """
    found = [part.partition("=")[2] for part in tres.split(",") if part.startswith("gres/gpu=")]
    return int(found[0]) if found and found[0].isdigit() else None

"""The space that the course will need, beside the space and the quota that there are. Deletes nothing."""

from __future__ import annotations

import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from harness.common.walk import Walk
from harness.doctor.files import existing
from harness.doctor.result import Result, ok, problem, unseen, warning
from harness.doctor.surroundings import Course, Surroundings
from harness.format.format import amount
from harness.run import Run, all_runs

# Per run where none was measured: an nsys report of a node with its sqlite export; torch.profiler's of a CPU run.
USUAL_GPU_BYTES, USUAL_CPU_BYTES = 1_000_000_000, 50_000_000
NEWEST = 20  # runs whose sizes are looked at
QUOTA_S = 10.0
_FULL = 0.9


class RunSize(NamedTuple):
    """How large a run is, and how that is known."""

    bytes_per_run: int
    source: str


class Quota(NamedTuple):
    """One's own limit on a file system; 0: no limit."""

    used_bytes: int
    limit_bytes: int
    files: int = 0
    limit_files: int = 0


def disk(around: Surroundings) -> Iterator[Result]:
    """Free space for all students' runs."""
    size = size_of_runs(all_runs(around.runs), around.uses_gpus)
    place = existing(around.runs)
    usage = shutil.disk_usage(place)
    if usage.total:  # the kernel's own folders have none, and nothing can be written there
        yield disk_verdict(place, usage.free, size, around.course)


def size_of_runs(runs: list[Run], on_gpus: bool) -> RunSize:
    """The median size of the newest runs that recorded something, else a default."""
    sizes = [_size(run.path) for run in runs[-NEWEST:] if run.traces()]
    if sizes:
        return RunSize(int(median(sizes)), f"median of the newest {len(sizes)} here")
    usual = USUAL_GPU_BYTES if on_gpus else USUAL_CPU_BYTES
    return RunSize(usual, "an estimate, because no run was recorded here yet")


def _size(folder: Path) -> int:
    return sum(map(_size_of_file, Walk(folder).files()))


def _size_of_file(path: Path) -> int:
    try:
        there = path.stat()
    except OSError:  # it vanished
        return 0
    return there.st_size if stat.S_ISREG(there.st_mode) else 0


def needed(size: RunSize, course: Course) -> tuple[int, str]:
    """The bytes that the course will write, and the sum in words."""
    whole = course.students * course.variants * size.bytes_per_run
    students = f"{course.students} student{'s' * (course.students > 1)}"
    words = f"{students} × {course.variants} runs × {amount(size.bytes_per_run)} ({size.source}) = {amount(whole)}"
    return whole, words


def disk_verdict(place: Path, free_bytes: int, size: RunSize, course: Course) -> Result:
    """Whether the file system has room for the course."""
    whole, words = needed(size, course)
    what, found = f"space on {place}", f"{amount(free_bytes)} are free; {words}"
    remedy = (
        f"du -xh --max-depth=2 {place} | sort -h | tail   # free some, or export HARNESS_RUNS=$SCRATCH/runs"
    )
    if free_bytes < whole:
        return problem(what, f"{found}: too little", remedy)
    return warning(what, f"{found}: scarce", remedy) if free_bytes < 2 * whole else ok(what, found)


def quota(around: Surroundings) -> Iterator[Result]:
    """One's own quota there: of what one student writes."""
    place = existing(around.runs)
    found = _lustre_quota(around, place) or _usual_quota(around, place)
    if found is None:
        yield unseen("quota", "neither quota nor lfs reports one here: ask the site how much you may write")
        return
    size = size_of_runs(all_runs(around.runs), around.uses_gpus)
    yield quota_verdict(place, found, size, around.course)


def _lustre_quota(around: Surroundings, place: Path) -> Quota | None:
    if around.which("lfs") is None:
        return None
    answer = around.ask("lfs", "quota", "-q", "-u", around.user, str(place), limit_s=QUOTA_S)
    return None if answer.code else quota_of_lfs(answer.out)


def _usual_quota(around: Surroundings, place: Path) -> Quota | None:
    if around.which("quota") is None:
        return None
    answer = around.ask("quota", "-w", "--hide-device", "--show-mntpoint", limit_s=QUOTA_S)
    return quota_of_quota(answer.out, place)  # its status is 1 when a quota is exceeded


def quota_of_lfs(printed: str) -> Quota | None:
    """From `lfs quota -q -u USER PATH`: a long path has its numbers on the next line.

    >>> quota_of_lfs("/scratch 1000* 0 2000 - 7 0 0 -")
    Quota(used_bytes=1024000, limit_bytes=2048000, files=7, limit_files=0)
    """
    numbers = _numbers(printed.split()[1:])
    return _quota(numbers) if len(numbers) >= 6 else None


def quota_of_quota(printed: str, place: Path) -> Quota | None:
    """From `quota -w`: the line of the file system that holds `place`, by its mount point.

    >>> quota_of_quota("Disk quotas for user x (uid 7):\\n /home 10 20 30 5 0 0\\n / 1 2 3 4 5 6", Path("/home/x"))
    Quota(used_bytes=10240, limit_bytes=30720, files=5, limit_files=0)
    """
    found: dict[Path, Quota] = {}
    for line in printed.splitlines():
        name, *words = line.split() or [""]
        numbers = _numbers(words)
        if name.startswith("/") and len(numbers) >= 6 and place.is_relative_to(name):
            found[Path(name)] = _quota(numbers)
    return found[max(found, key=lambda path: len(path.parts))] if found else None


def _numbers(words: list[str]) -> list[int]:
    """The amounts of a line; a * marks one that is exceeded, grace times are left out."""
    return [int(word.rstrip("*")) for word in words if re.fullmatch(r"\d+\*?", word)]


def _quota(numbers: list[int]) -> Quota:
    """Of: used, soft and hard limit in KiB, then the same in files. The soft limit counts if there is no other."""
    used, soft, hard, files, soft_files, hard_files = numbers[:6]
    return Quota(used * 1024, (hard or soft) * 1024, files, hard_files or soft_files)


def quota_verdict(place: Path, quota: Quota, size: RunSize, course: Course) -> Result:
    """Whether one student's runs fit into one's own quota."""
    whole, words = needed(size, Course(1, course.variants))
    left = quota.limit_bytes - quota.used_bytes
    what = f"quota on {place}"
    remedy = "du -xh --max-depth=1 $HOME | sort -h | tail   # free some, or export HARNESS_RUNS=$SCRATCH/runs"
    if quota.limit_files and quota.files >= _FULL * quota.limit_files:
        return problem(what, f"{quota.files} files of {quota.limit_files} are used", remedy)
    if not quota.limit_bytes:
        return ok(what, f"{amount(quota.used_bytes)} are used, and there is no limit")
    found = f"{amount(max(0, left))} of {amount(quota.limit_bytes)} are left; {words}"
    return problem(what, f"{found}: too little", remedy) if left < whole else ok(what, found)

"""What a run reads and where it writes: data, checkpoints, space, quotas; and the variables that spoil it."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import NamedTuple

from harness.common.bounded_read import BoundedReadError, open_regular, why_unread
from harness.common.format import amount
from harness.common.paths import COMMAND
from harness.common.printable import printable
from harness.common.walk import Walk
from harness.doctor.surroundings import CheckResult, Place, Surroundings, ok, problem, unseen, warning
from harness.launch.argv import Word, from_site, read_here
from harness.launch.container import of_registry
from harness.launch.disturbing_variables import DISTURBING_VARIABLES
from harness.launch.job import Job
from harness.launch.lookup import Wanted, why_missing
from harness.run import Run, all_runs
from harness.site.site import Site

LITTLE_TEMPORARY_BYTES = 1 << 30
NEWEST = 20  # runs whose sizes are looked at
QUOTA_S = 10.0
_FULL = 0.9


def files(around: Surroundings) -> Iterator[CheckResult]:
    """What a launch found on the login node, read from this node as the training will."""
    lost = {path: _lost(path) for path in around.paths}
    for what, (word, wanted) in _named(around).items():
        found = read_here(word, around.environ).text
        kinds: tuple[Wanted, ...] = ("folder", "weights") if wanted == "weights" else (wanted,)
        missing = (why_missing(word, around.environ, kind) for kind in kinds)
        lost[f"{what} {found}"] = next(filter(None, missing), "") or _unreadable(Path(found), wanted)
    for what, why in lost.items():
        if why:
            yield problem(printable(what), why, "df -h   # which folders do all nodes share?")
    if lost and not any(lost.values()):
        yield ok("files", f"{', '.join(map(printable, lost))} can be read")


def _named(around: Surroundings) -> dict[str, tuple[Word, Wanted]]:
    """The container's image, and the data and checkpoints of the exercises."""
    found: dict[str, tuple[Word, Wanted]] = {}
    for job in around.jobs:
        if job.image is not None and not of_registry(around.site, job.image):
            found["container image"] = (job.image, "file" if around.site.in_srun else "image")
        if job.data is not None:
            found["data"] = (job.data, "file")
        if job.checkpoint is not None:
            found[f"checkpoint of exercise {job.experiment.exercise}"] = (job.checkpoint, "weights")
    if around.training is None and around.site.megatron_data is not None:
        found["megatron_data"] = (from_site(around.site.megatron_data), "prefix")
    return found


def _lost(path: str) -> str:
    """Why a training of the user's own does not find what is there on the login node; empty when it does."""
    if not os.access(path, os.F_OK):
        return "is not seen here, and is there on the login node"
    return "" if os.access(path, os.R_OK) else "cannot be read"


def _unreadable(path: Path, wanted: Wanted) -> str:
    """Why the first bytes cannot be read; empty when they can."""
    parts = {
        "image": [path] * path.is_file(),  # a sandbox is a folder
        "weights": sorted(path.glob("*.safetensors")) + sorted(path.glob("*.json")),
        "prefix": [Path(f"{path}.bin"), Path(f"{path}.idx")],
    }.get(wanted, [path])
    for file in parts:
        try:
            with open_regular(file) as opened:
                if not opened.read(1):
                    return f"{file} is empty"
        except (OSError, BoundedReadError) as error:
            return f"{file} cannot be read ({why_unread(error)})"
    return ""


def existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(path for path in (folder, *folder.parents) if path.is_dir())


def temporary(around: Surroundings) -> CheckResult:
    """Whether there is room for temporary files, which nsys writes while it records."""
    folder = Path(around.environ.get("TMPDIR") or "/tmp")
    try:
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        return problem(f"TMPDIR {folder}", f"cannot be used ({error.strerror})", "export TMPDIR=/tmp")
    found = f"{amount(free_bytes)} are free"
    if free_bytes < LITTLE_TEMPORARY_BYTES:
        return warning(f"TMPDIR {folder}", f"{found}: nsys may lose its report", f"du -xsh {folder}/* | sort -h | tail")
    return ok(f"TMPDIR {folder}", found)


# Per run where none was measured: an nsys report of a node with its sqlite export; torch.profiler's of a CPU run.
USUAL_GPU_BYTES, USUAL_CPU_BYTES = 1_000_000_000, 50_000_000


class RunSize(NamedTuple):
    bytes_per_run: int
    source: str


class Quota(NamedTuple):
    """One's own limit on a file system; 0: no limit."""

    used_bytes: int
    limit_bytes: int
    files: int = 0
    limit_files: int = 0


def disk(around: Surroundings) -> CheckResult | None:
    """Whether the file system has room for all students' runs."""
    place = existing(around.runs)
    usage = shutil.disk_usage(place)
    if not usage.total:  # the kernel's own folders have none, and nothing can be written there
        return None
    whole, words = needed(around, around.course.students)
    what, found = f"space on {place}", f"{amount(usage.free)} are free; {words}"
    remedy = f"du -xh --max-depth=2 {place} | sort -h | tail   # free some, or export HARNESS_RUNS=$SCRATCH/runs"
    if usage.free < whole:
        return problem(what, f"{found}: too little", remedy)
    return warning(what, f"{found}: scarce", remedy) if usage.free < 2 * whole else ok(what, found)


def size_of_runs(runs: list[Run], site: str, on_gpus: bool) -> RunSize:
    """The median size of the newest runs of this site and kind of device that recorded something, else a default."""
    device = "cuda" if on_gpus else "cpu"
    alike = [
        run
        for run in runs
        if (record := run.known_record) and (record.site.name, record.job.get("device")) == (site, device)
    ]
    sizes = [sum(map(_size_of_file, Walk(run.path).files())) for run in alike[-NEWEST:] if run.traces()]
    where = f"at {site} on {'GPUs' if on_gpus else 'CPUs'}"
    if sizes:
        return RunSize(int(median(sizes)), f"median of the newest {len(sizes)} {where}")
    usual = USUAL_GPU_BYTES if on_gpus else USUAL_CPU_BYTES
    return RunSize(usual, f"an estimate, because no run was recorded {where} yet")


def _size_of_file(path: Path) -> int:
    try:
        there = path.stat()
    except OSError:  # it vanished
        return 0
    return there.st_size if stat.S_ISREG(there.st_mode) else 0


def needed(around: Surroundings, students: int) -> tuple[int, str]:
    """The bytes that so many students will write, and the sum in words."""
    size = size_of_runs(all_runs(around.runs), around.site.name, around.uses_gpus)
    runs = around.course.variants
    whole = students * runs * size.bytes_per_run
    each = f"{runs} runs × {amount(size.bytes_per_run)} ({size.source})"
    return whole, f"{students} student{'s' * (students > 1)} × {each} = {amount(whole)}"


def quota(around: Surroundings) -> CheckResult:
    """Whether one student's runs fit into one's own quota there."""
    place = existing(around.runs)
    found = _quota_on(place, around)
    if found is None:
        return unseen("quota", "neither quota nor lfs reports one here: ask the site how much you may write")
    whole, words = needed(around, students=1)
    left = found.limit_bytes - found.used_bytes
    what = f"quota on {place}"
    remedy = "du -xh --max-depth=1 $HOME | sort -h | tail   # free some, or export HARNESS_RUNS=$SCRATCH/runs"
    if found.limit_files and found.files >= _FULL * found.limit_files:
        return problem(what, f"{found.files} files of {found.limit_files} are used", remedy)
    if not found.limit_bytes:
        return ok(what, f"{amount(found.used_bytes)} are used, and there is no limit")
    room = f"{amount(max(0, left))} of {amount(found.limit_bytes)} are left; {words}"
    return problem(what, f"{room}: too little", remedy) if left < whole else ok(what, room)


def _quota_on(path: Path, around: Surroundings) -> Quota | None:
    if around.which("lfs") is not None:
        answer = around.ask("lfs", "quota", "-q", "-u", around.user, str(path), limit_s=QUOTA_S)
        if not answer.code and (found := quota_of_lfs(answer.out)):
            return found
    if around.which("quota") is not None:
        answer = around.ask("quota", "-w", "--hide-device", "--show-mntpoint", limit_s=QUOTA_S)
        return quota_of_quota(answer.out, path)  # its status is 1 when a quota is exceeded
    return None


def quota_of_lfs(printed: str) -> Quota | None:
    """From `lfs quota -q -u USER PATH`: a long path has its numbers on the next line.

    >>> quota_of_lfs("/scratch 1000* 0 2000 - 7 0 0 -")
    Quota(used_bytes=1024000, limit_bytes=2048000, files=7, limit_files=0)
    """
    numbers = _numbers(printed.split()[1:])
    return _quota(numbers) if len(numbers) >= 6 else None


def quota_of_quota(printed: str, folder: Path) -> Quota | None:
    """From `quota -w`: the line of the file system that holds `folder`, by its mount point.

    >>> quota_of_quota("Disk quotas for user x (uid 7):\\n /home 10 20 30 5 0 0\\n / 1 2 3 4 5 6", Path("/home/x"))
    Quota(used_bytes=10240, limit_bytes=30720, files=5, limit_files=0)
    """
    found: dict[Path, Quota] = {}
    for line in printed.splitlines():
        name, *words = line.split() or [""]
        numbers = _numbers(words)
        if name.startswith("/") and len(numbers) >= 6 and folder.is_relative_to(name):
            found[Path(name)] = _quota(numbers)
    return found[max(found, key=lambda path: len(path.parts))] if found else None


def _numbers(words: list[str]) -> list[int]:
    """The amounts of a line; a * marks one that is exceeded, grace times are left out."""
    return [int(word.rstrip("*")) for word in words if re.fullmatch(r"\d+\*?", word)]


def _quota(numbers: list[int]) -> Quota:
    """Of: used, soft and hard limit in KiB, then the same in files. The soft limit counts if there is no other."""
    used, soft, hard, files, soft_files, hard_files = numbers[:6]
    return Quota(used * 1024, (hard or soft) * 1024, files, hard_files or soft_files)


def variables(around: Surroundings) -> Iterator[CheckResult]:
    """The environment that a training would have: this one, and the site's above it."""
    found = [*spoilt(around.environ, around.site, around.node_kind)]
    # A user's own PYTHONPATH does not reach the training: the job sets it. The site's does.
    if path := around.site.env.get("PYTHONPATH"):
        why = "packages there hide those of the container or of the harness"
        look = f"{COMMAND} sites {around.site.name}   # check that it is intended: it is in env:"
        found.append(warning(f"PYTHONPATH={path}", why, look))
    found += _threads(around.job, around.environ)
    yield from found or [
        ok("environment", f"no variable that disturbs measurements is set ({len(DISTURBING_VARIABLES)} checked)")
    ]


def spoilt(environ: Mapping[str, str], site: Site, place: Place = "login") -> Iterator[CheckResult]:
    """A result for each variable of the environment, or of the site's `env`, that disturbs."""
    for variable in DISTURBING_VARIABLES:
        name, value = variable.name, site.env.get(variable.name, environ.get(variable.name, ""))
        if variable.disturbs(value):
            remedy = f"unset {name}"
            if name in site.env:
                remedy = f"{COMMAND} sites {site.name}   # take it out of env:"
            elif place == "node":
                remedy += "   # in your shell, or in a line or module of the site file"
            yield (problem if variable.breaks else warning)(f"{name}={value}", variable.why, remedy)


def _threads(job: Job, environ: Mapping[str, str]) -> Iterator[CheckResult]:
    """A warning if the threads of a node's ranks have not a CPU each."""
    threads = read_here(job.env["OMP_NUM_THREADS"], environ).text
    ranks, cpus = job.experiment.gpus_per_node or 1, job.cpus_per_task
    if cpus and threads.isdigit() and int(threads) * ranks > max(cpus, ranks):
        why = f"{ranks} ranks × {int(threads)} threads share {cpus} CPUs: they wait for each other"
        unset = "unset OMP_NUM_THREADS   # or take it out of env: of the site file"
        yield warning(f"OMP_NUM_THREADS={int(threads)}", why, unset)

"""What a run reads and where it writes: data, checkpoints, space; and the variables that spoil it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness.common.display.format import amount
from harness.common.display.printable import printable
from harness.common.paths import COMMAND
from harness.common.system.bounded_read import BoundedReadError, open_regular, why_unread
from harness.doctor.surroundings import CheckResult, Place, Surroundings, ok, problem, warning
from harness.launch.argv import Word, from_site, read_here
from harness.launch.before.disturbing_variables import DISTURBING_VARIABLES
from harness.launch.before.lookup import Wanted, why_missing
from harness.launch.container import of_registry
from harness.site.site import Site


def files(around: Surroundings) -> Iterator[CheckResult]:
    """What a launch found on the login node, read from this node as the training will."""
    lost: dict[str, str] = {}
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
    if around.site.megatron_data is not None:
        found["megatron_data"] = (from_site(around.site.megatron_data), "prefix")
    return found


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


# Of one run: an nsys report of a node with its sqlite export; torch.profiler's of a CPU run.
USUAL_GPU_BYTES, USUAL_CPU_BYTES = 1_000_000_000, 50_000_000


def disk(around: Surroundings) -> CheckResult:
    """Whether the file system has room for all students' runs."""
    place = existing(around.runs)
    usage = shutil.disk_usage(place)
    students, runs = around.course.students, around.course.variants
    each = USUAL_GPU_BYTES if around.uses_gpus else USUAL_CPU_BYTES
    whole = students * runs * each
    words = f"{students} student{'s' * (students > 1)} × {runs} runs × about {amount(each)} = {amount(whole)}"
    what, found = f"space on {place}", f"{amount(usage.free)} are free; {words}"
    remedy = f"du -xh --max-depth=2 {place} | sort -h | tail   # free some, or export HARNESS_RUNS=$SCRATCH/runs"
    if usage.free < whole:
        return problem(what, f"{found}: too little", remedy)
    return warning(what, f"{found}: scarce", remedy) if usage.free < 2 * whole else ok(what, found)


def variables(around: Surroundings) -> Iterator[CheckResult]:
    """The environment that a training would have: this one, and the site's above it."""
    found = [*spoilt(around.environ, around.site, around.node_kind)]
    # A user's own PYTHONPATH does not reach the training: the job sets it. The site's does.
    if path := around.site.env.get("PYTHONPATH"):
        why = "packages there hide those of the container or of the harness"
        look = f"{COMMAND} sites {around.site.name}   # check that it is intended: it is in env:"
        found.append(warning(f"PYTHONPATH={path}", why, look))
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

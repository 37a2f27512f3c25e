"""Where a run writes, and the variables that spoil it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness.common.display.format import amount
from harness.common.paths import COMMAND
from harness.doctor.surroundings import CheckResult, Surroundings, ok, problem, warning
from harness.launch.before.disturbing_variables import DISTURBING_VARIABLES
from harness.site.site import Site


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
    found = [*spoilt(around.environ, around.site)]
    # A user's own PYTHONPATH does not reach the training: the job sets it. The site's does.
    if path := around.site.env.get("PYTHONPATH"):
        why = "packages there hide those of the container or of the harness"
        look = f"{COMMAND} sites {around.site.name}   # check that it is intended: it is in env:"
        found.append(warning(f"PYTHONPATH={path}", why, look))
    yield from found or [
        ok("environment", f"no variable that disturbs measurements is set ({len(DISTURBING_VARIABLES)} checked)")
    ]


def spoilt(environ: Mapping[str, str], site: Site) -> Iterator[CheckResult]:
    """A result for each variable of the environment, or of the site's `env`, that disturbs."""
    for variable in DISTURBING_VARIABLES:
        name, value = variable.name, site.env.get(variable.name, environ.get(variable.name, ""))
        if variable.disturbs(value):
            remedy = f"unset {name}"
            if name in site.env:
                remedy = f"{COMMAND} sites {site.name}   # take it out of env:"
            yield (problem if variable.breaks else warning)(f"{name}={value}", variable.why, remedy)

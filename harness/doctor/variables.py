"""Variables that spoil measurements or change the job behind a student's back. Reads the environment only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from harness.doctor.result import Level, Result, ok, warning
from harness.doctor.surroundings import Place, Surroundings
from harness.launch.argv import read_here
from harness.launch.backends.slurm import SBATCH_VARIABLES
from harness.launch.job import Job
from harness.site.site import Site
from harness.site.slurm_commands import MISLEADING


def _on(text: str) -> bool:
    return text.strip().lower() not in ("", "0", "false", "no", "off")


def _is(*words: str) -> Callable[[str], bool]:
    return lambda text: text.strip().upper() in words


class Rule(NamedTuple):
    """A variable, the values that spoil, and what they do."""

    name: str
    spoils: Callable[[str], bool]
    why: str
    level: Level = Level.WARNING


RULES = (
    Rule(
        "CUDA_LAUNCH_BLOCKING", _on, "each kernel waits for the one before: step times are not representative"
    ),
    Rule("NCCL_DEBUG", _is("TRACE"), "NCCL writes a line for each call: slow, and gigabytes of log"),
    Rule("TORCH_DISTRIBUTED_DEBUG", _is("DETAIL"), "each collective is checked by a second one"),
    Rule("NCCL_P2P_DISABLE", _on, "the GPUs of a node exchange data through host memory, not NVLink"),
    Rule("NCCL_SHM_DISABLE", _on, "the ranks of a node exchange data through the network"),
    Rule("NCCL_IB_DISABLE", _on, "the nodes exchange data by TCP, not InfiniBand"),
    Rule("NCCL_ALGO", _on, "NCCL does not choose the algorithm by itself"),
    Rule("NCCL_PROTO", _on, "NCCL does not choose the protocol by itself"),
    Rule("TORCH_NCCL_BLOCKING_WAIT", _on, "the CPU waits in each collective, and no overlap is left"),
    Rule("LD_PRELOAD", _on, "another library intercepts calls of every program, also of nsys"),
    Rule(
        "PYTHONHOME",
        _on,
        "every Python looks there for its standard library, and may not start",
        Level.PROBLEM,
    ),
)


def variables(around: Surroundings) -> Iterator[Result]:
    """The environment that a training would have: this one, and the site's above it."""
    found = [*spoilt(around.environ, around.site, around.place), *_sites_python_path(around.site)]
    if around.uses_slurm and around.place == "login":
        found += overruled(around.environ, around.site)
    if around.job is not None:
        found += _threads(around.job, around.environ)
    yield from found or [
        ok("environment", f"no variable that disturbs measurements is set ({len(RULES)} checked)")
    ]


def spoilt(environ: Mapping[str, str], site: Site, place: Place = "login") -> Iterator[Result]:
    """A result for each rule that the environment, or the site's `env`, breaks."""
    for rule in RULES:
        value = site.env.get(rule.name, environ.get(rule.name, ""))
        if rule.spoils(value):
            remedy = f"unset {rule.name}"
            if rule.name in site.env:
                remedy = f"bash slurm.sh sites {site.name}   # take it out of env:"
            elif place == "node":
                remedy += "   # in your shell, or in a line or module of the site file"
            yield Result(rule.level, f"{rule.name}={value}", rule.why, remedy)


def _sites_python_path(site: Site) -> Iterator[Result]:
    """A user's own PYTHONPATH does not reach the training: the job sets it. The site's does."""
    if path := site.env.get("PYTHONPATH"):
        why = "packages there hide those of the container or of .venv"
        yield warning(
            f"PYTHONPATH={path}",
            why,
            f"bash slurm.sh sites {site.name}   # check that it is intended: it is in env:",
        )


def overruled(environ: Mapping[str, str], site: Site) -> Iterator[Result]:
    """What sbatch reads from the environment: not used if the site sets it, else added to every job."""
    fields = {variable: name for name, variable in SBATCH_VARIABLES.items()}
    for name in sorted(name for name in environ if name.startswith("SBATCH_") and name not in MISLEADING):
        what, remedy = f"{name}={environ[name]}", f"unset {name}"
        field = fields.get(name)
        if field is None:
            yield warning(what, "sbatch adds it to every job, but run.json does not record it", remedy)
        elif getattr(site, field) not in (None, environ[name]):
            yield warning(what, f"is not used: the site asks for {field} {getattr(site, field)}", remedy)


def _threads(job: Job, environ: Mapping[str, str]) -> Iterator[Result]:
    text = read_here(job.env["OMP_NUM_THREADS"], environ).text
    ranks, cpus = job.experiment.gpus_per_node or 1, job.cpus_per_task
    if cpus and text.isdigit() and (result := threads_verdict(int(text), ranks, cpus)):
        yield result


def threads_verdict(threads: int, ranks: int, cpus: int) -> Result | None:
    """Whether the ranks' threads have a CPU each; None when they have. Threads of a rank, ranks and CPUs of a node."""
    if threads * ranks <= max(cpus, ranks):
        return None
    why = f"{ranks} ranks × {threads} threads share {cpus} CPUs: they wait for each other"
    return warning(
        f"OMP_NUM_THREADS={threads}", why, "unset OMP_NUM_THREADS   # or take it out of env: of the site file"
    )

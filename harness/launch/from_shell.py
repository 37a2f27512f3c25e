"""What a job gets from the shell that launches it: variables of its environment, and those that sbatch reads."""

from __future__ import annotations

from collections.abc import Mapping

from harness.common.submission import for_sbatch, passed_on, variables_in_words
from harness.launch.backends.registry import backend_of
from harness.launch.exercises.base import launch_of
from harness.launch.job import Job

MOST_NAMED = 4  # of the variables of a Slurm job


def shell_variables(environ: Mapping[str, str], job: Job) -> dict[str, str]:
    """The variables of a shell, by name, that the job inherits from it and that change how its training communicates or
    computes: without secrets, and without those that the job or its backend sets."""
    return passed_on(environ, job.env)


def sbatch_variables(environ: Mapping[str, str], job: Job) -> dict[str, str]:
    """The variables of a shell, by name, by which sbatch changes the job, since no option of the job overrules them."""
    return for_sbatch(environ, job.directives) if job.site.scheduler == "slurm" else {}


def what_the_shell_brings(environ: Mapping[str, str], *jobs: Job) -> list[str]:
    """A line for each way in which the shell or the user's own files change the jobs."""
    return list(dict.fromkeys(line for job in jobs for line in _what_it_brings(environ, job)))


def _what_it_brings(environ: Mapping[str, str], job: Job) -> list[str]:
    lines = []
    if variables := shell_variables(environ, job):
        lines.append(f"from your shell: {variables_in_words(variables)}")
    if variables := sbatch_variables(environ, job):
        lines.append(f"from your shell, for sbatch: {variables_in_words(variables)}")
    if backend_of(job.site).RUNS_HERE and (outer := sorted(name for name in environ if name.startswith("SLURM_"))):
        more = f" and {len(outer) - MOST_NAMED} more" if len(outer) > MOST_NAMED else ""
        lines.append(f"not passed to the job, as they are of another one: {', '.join(outer[:MOST_NAMED])}{more}")
    return [*lines, *launch_of(job.experiment).notes(job.experiment, job.device)]

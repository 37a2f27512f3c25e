"""What a job gets from the shell that launches it: variables of its environment, and those that sbatch reads."""

from __future__ import annotations

from collections.abc import Mapping

from harness.common.run_folder.submission import for_sbatch, passed_on, variables_in_words
from harness.launch.exercises.base import launch_of
from harness.launch.job import Job


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
    return [*lines, *launch_of(job.experiment).notes(job.experiment)]

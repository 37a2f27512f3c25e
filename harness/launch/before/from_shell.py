"""What a job gets from the shell that launches it: variables of its environment,
its limits, and what sbatch reads."""

from __future__ import annotations

from collections.abc import Mapping

from harness.common.paths import expanded
from harness.common.run_folder.submission import for_sbatch, passed_on, variables_in_words
from harness.common.system.inherited import own_limits, unusual
from harness.experiment.own import OwnTraining
from harness.launch.argv import shown
from harness.launch.backends.registry import backend_of
from harness.launch.exercises.base import launch_of
from harness.launch.job import Job


def shell_variables(environ: Mapping[str, str], job: Job) -> dict[str, str]:
    """The variables of a shell, by name, that the job inherits from it and that change how its training communicates or
    computes: without secrets, and without those that the job or its backend sets."""
    return passed_on(environ, _set_by(job))


def _set_by(job: Job) -> list[str]:
    """The variables that the job sets itself, whatever the shell has."""
    return [name for name, word in job.env.items() if f"${name}" not in shown(word)]


def not_used(environ: Mapping[str, str], job: Job) -> dict[str, str]:
    """The variables of a shell that the job replaces by another value; its own search path is always another."""
    of_job = {name: shown(job.env[name]) for name in _set_by(job) if name != "PYTHONPATH"}
    return {name: text for name, text in passed_on(environ, ()).items() if of_job.get(name, text) != text}


def _has_user_packages() -> bool:
    return any(expanded("~/.local/lib").glob("python3*/site-packages/*"))


def shell_limits(job: Job) -> dict[str, str]:
    """The umask and the limits of this process, which the job has too: Slurm passes all but the niceness on."""
    found = own_limits()
    return {name: text for name, text in found.items() if name != "nice" or backend_of(job.site).RUNS_HERE}


def sbatch_variables(environ: Mapping[str, str], job: Job) -> dict[str, str]:
    """The variables of a shell, by name, by which sbatch changes the job, since no option of the job overrules them."""
    return for_sbatch(environ, job.directives) if job.site.scheduler == "slurm" else {}


def what_the_shell_brings(environ: Mapping[str, str], *jobs: Job) -> list[str]:
    """A line for each way in which the shell or the user's own files change the jobs."""
    return list(dict.fromkeys(line for job in jobs for line in _what_it_brings(environ, job)))


def _what_it_brings(environ: Mapping[str, str], job: Job) -> list[str]:
    lines = []
    if variables := shell_variables(environ, job) | unusual(shell_limits(job)):
        lines.append(f"from your shell: {variables_in_words(variables)}")
    lines += filter(None, [job.which_python])
    if job.env.get("PYTHONNOUSERSITE") == "1" and isinstance(job.experiment, OwnTraining) and _has_user_packages():
        lines.append('~/.local is not seen in the container: PYTHONNOUSERSITE: "" in env: of the site file shows it')
    if variables := not_used(environ, job):
        lines.append(f"from your shell, not used because the job sets its own: {variables_in_words(variables)}")
    if variables := sbatch_variables(environ, job):
        lines.append(f"from your shell, for sbatch: {variables_in_words(variables)}")
    return [*lines, *launch_of(job.experiment).notes(job.experiment)]

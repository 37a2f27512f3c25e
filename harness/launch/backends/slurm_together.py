"""Many runs in one submission to Slurm: as the tasks of an array, or one after the other in one allocation.

Part of the Slurm backend, which has its functions under their names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.common.errors import WorkError
from harness.common.paths import TEMPLATES
from harness.launch.backends.protocol import Joint, Submission, Together
from harness.launch.backends.slurm_options import options_of
from harness.run import Run, Stage, disk_error
from harness.site.site import Site
from harness.site.slurm_commands import max_array_size, sbatch, scancel

BETWEEN_S = 30  # of an allocation's limit, for what lies between two of its runs
MOST_IN_SERIES = 1000


def joint(way: Together, site: Site, lines: list[str], runs: int, at_once: int | None) -> Joint:
    """An array of tasks, or an allocation for the sum of the runs' time limits."""
    kept = [line for line in lines if not line.startswith(("--output=", "--time="))]
    if way == "array":
        most = f"%{at_once}" if at_once else ""
        own = [f"--time={site.time}", f"--array=0-{runs - 1}{most}", "--output=logs/slurm-%A_%a.out"]
        return Joint(TEMPLATES / "slurm_array.j2", kept + own, lambda job, number: f"{job}_{number}")
    own = [f"--time={_clock(runs * (site.time_s + BETWEEN_S))}", "--output=logs/slurm-%j.out"]
    return Joint(TEMPLATES / "slurm_series.j2", kept + own, lambda job, number: f"{job}-{number}")


def _clock(seconds: int) -> str:
    """A time limit as sbatch reads it, rounded up to minutes."""
    minutes = -(-seconds // 60)
    return f"{minutes // 1440}-{minutes // 60 % 24:02}:{minutes % 60:02}:00"


def submit_together(asked: Sequence[Submission], joint: Joint, script: Path) -> list[Run]:
    """Submit the script that starts all the staged runs; returns them.

    Raises:
        WorkError: sbatch refused; or a run could not be written, and the job was cancelled again.
    """
    log = joint.directives[-1].removeprefix("--output=logs/")
    job = sbatch(*options_of(asked[0].stage.output_dir, joint.directives, log), str(script))
    made: list[tuple[Stage, Run]] = []
    try:
        for number, each in enumerate(asked):
            job_id, stage = joint.job_id(job.number, number), each.stage
            Run(stage.path).write_record(
                each.record.model_copy(update={"job_id": job_id, "cluster": job.cluster})
            )
            made.append((stage, stage.publish(each.name_for(job_id), job_id)))
    except (OSError, WorkError) as error:
        scancel(job)
        for stage, run in made:
            stage.withdraw(run)
        why = error if isinstance(error, WorkError) else disk_error(asked[0].stage.output_dir, error)
        raise WorkError(f"job {job.number} was cancelled again: {why}") from None
    return [run for _, run in made]


def most_together(way: Together) -> int:
    """Slurm's own limit of an array's size; an allocation has none."""
    return max_array_size() if way == "array" else MOST_IN_SERIES

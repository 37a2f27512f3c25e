"""Inside an allocation (`salloc`) on a real two-node Slurm: a launch uses it, without a job of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.slurm.slurm_sh import REPOSITORY, SlurmSh

pytestmark = pytest.mark.slurm

# The shell of the second allocation is a step that has all CPUs of its node: `srun --pty bash` as many sites advise.
SHELLS = {"on the login node": "", "in a step": "srun --nodes=1 --ntasks=1 --cpus-per-task=4 "}


def inside(slurm_sh: SlurmSh, folder: Path, shell: str, *lines: str) -> subprocess.CompletedProcess[str]:
    """Lines of a shell in an allocation of two nodes, where `slurm.sh` is the command."""
    script = folder / "typed.sh"
    script.write_text("\n".join([f'slurm.sh() {{ bash {REPOSITORY}/slurm.sh "$@"; }}', *lines]))
    salloc = ("salloc", "--partition=gpu", "--nodes=2", "--cpus-per-task=4", "bash", "-c", f"{shell}bash {script}")
    return slurm_sh.slurm.run(*salloc, check=False, seconds=300, env=slurm_sh.env, cwd=folder)


@pytest.mark.parametrize(
    "shell",
    [  # in a step it is long: the same commands with another shell before them
        pytest.param(shell, id=name, marks=pytest.mark.long if shell else ()) for name, shell in SHELLS.items()
    ],
)
def test_runs_use_the_allocation_one_after_the_other_and_leave_it(
    slurm_sh: SlurmSh, tmp_path: Path, shell: str
) -> None:
    site = slurm_sh.site("salloc")
    launch = f"slurm.sh run -n 2 -g 1 --site '{site}' --json"
    done = inside(
        slurm_sh,
        tmp_path,
        shell,
        f"{launch} -- hostname >first.json",
        f"{launch} -- sleep 3600 >second.json & second=$!",
        "until slurm.sh status last | grep -q running; do kill -0 $second || exit 9; sleep 0.3; done",
        "slurm.sh cancel last",
        "wait",
        'squeue --noheader --format=%T --jobs="$SLURM_JOB_ID" >allocation.txt',
        "squeue --noheader --format=%i >jobs.txt",
        f"slurm.sh run -n 3 -g 1 --site '{site}' --dry-run -- hostname >/dev/null 2>larger.txt",
    )
    assert (tmp_path / "second.json").read_text(), done.stdout + done.stderr
    first, second = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("first", "second"))
    assert (first["state"], second["state"]) == ("completed", "cancelled"), done.stderr
    job = first["job_id"].removesuffix("-0")
    assert second["job_id"] == f"{job}-1"
    hosts = (Path(first["path"]).parents[1] / "logs" / first["job_id"] / "log.out").read_text().split()
    assert {"node1", "node2"} <= set(hosts)
    assert (tmp_path / "allocation.txt").read_text().split() == ["RUNNING"]
    assert (tmp_path / "jobs.txt").read_text().split() == [job], "no job was submitted"
    assert f"runs in allocation {job} (2 nodes), without sbatch" in done.stderr
    larger = (tmp_path / "larger.txt").read_text()
    assert f"not in allocation {job} of this shell, because it has 2 nodes, and -n asks for 3" in larger
    # Elsewhere, and after the allocation's end.
    slurm_sh.slurm.wait(job)
    assert slurm_sh.status(first["job_id"])["state"] == "completed"
    record = json.loads((Path(first["path"]) / "run.json").read_text())
    assert (record["backend"], record["site"]["scheduler"]) == ("allocation", "slurm"), "a rerun is a job of its own"

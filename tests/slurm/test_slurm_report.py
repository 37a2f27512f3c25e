"""`report --executor slurm` measures ranks in a real job array and gives what measuring them here gives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.analysis.test_silent_errors import kernel, timed, write_decimals
from tests.slurm.slurm_cluster import Slurm
from tests.waiting import limit_s, wait_until

pytestmark = pytest.mark.slurm
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    """A folder of four ranks' traces, its name as awkward as a user's."""
    folder = tmp_path / "my traces; $HOME"
    for rank in range(4):
        own = tmp_path / str(rank)
        own.mkdir()
        events = [timed("ProfilerStep#1", "user_annotation", 0, 1000), kernel(10, 100 * (rank + 1), 1)]
        folder.mkdir(exist_ok=True)
        write_decimals(own, events).rename(folder / f"rank{rank}.json")
    return folder


def report(
    slurm: Slurm, where: Path, *arguments: str | Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    code = f"import os, sys; os.chdir({str(where)!r}); sys.path.insert(0, {str(ROOT)!r}); "
    code += "from harness.cli.main import main; sys.exit(main(sys.argv[1:]))"
    return slurm.run(sys.executable, "-c", code, "report", *arguments, check=False, env=env)


# Long: sacct's part in it; its words are read in other tests with accounting.
@pytest.mark.parametrize("cluster", ["slurm", pytest.param("slurm_accounting", marks=pytest.mark.long)])
def test_an_array_gives_the_report_of_one_process(
    cluster: str, ranks: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    slurm = request.getfixturevalue(cluster)
    array = ("--executor", "slurm", "--workers", "2")
    there = report(slurm, tmp_path, ranks, "--json", *array, env={"SBATCH_PARTITION": "gpu"})
    here = report(slurm, tmp_path, ranks, "--json")
    assert there.returncode == 0, there.stderr
    assert json.loads(there.stdout) == json.loads(here.stdout)
    assert list(tmp_path.glob("report-*")) == [], "an array that went well leaves nothing behind"


def task_of(folder: Path, number: int) -> Iterator[int]:
    """The process that measures, of the array's task with this number, while there is one."""
    mark = f"SLURM_ARRAY_TASK_ID={number}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            is_task = b"submitit.core._submit" in words and str(folder).encode() in b" ".join(words)
            if is_task and mark in (process / "environ").read_bytes().split(b"\0"):
                yield int(process.name)
        except OSError:  # it has ended
            continue


def held(folder: Path, number: int) -> dict[str, str]:
    """The variables with which an array's task of this number begins and never comes to its work."""
    # It must not come to its work before it is killed.
    wait = f"import os, time\nif os.environ.get('SLURM_ARRAY_TASK_ID') == '{number}':\n    time.sleep(3600)\n"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(wait)
    return {"PYTHONPATH": str(folder)}


@pytest.mark.long
def test_an_array_of_which_a_task_is_killed_says_what_it_lacks_and_keeps_the_logs(
    slurm_accounting: Slurm, ranks: Path, tmp_path: Path
) -> None:
    array = ("--executor", "slurm", "--workers", "4", "--json")
    with ThreadPoolExecutor(1) as pool:
        held_back = held(tmp_path / "held", 2)
        reported = pool.submit(report, slurm_accounting, tmp_path, ranks, *array, env=held_back)
        wait_until(lambda: any(task_of(tmp_path, 2)) or reported.done(), "the task at work")
        assert not reported.done(), reported.result(timeout=0)
        os.kill(next(task_of(tmp_path, 2)), signal.SIGKILL)
        lacking = reported.result(timeout=limit_s())
    assert lacking.returncode == 0, lacking.stderr
    missing = {
        finding["evidence"].partition(": ")[0]
        for summary in json.loads(lacking.stdout)
        for finding in summary["quality"]["problems"]
        if finding["what"] == "a trace was not measured"
    }
    assert len(missing) == 1 and str(ranks) in missing.pop()
    (folder,) = tmp_path.glob("report-*")
    assert f"the failed tasks' logs are in {folder}" in lacking.stderr


def test_a_partition_that_is_not_there_is_one_sentence(slurm: Slurm, ranks: Path, tmp_path: Path) -> None:
    refused = report(slurm, tmp_path, ranks, "--executor", "slurm", env={"SBATCH_PARTITION": "nowhere"})
    assert refused.returncode == 1
    assert "not submitted" in refused.stderr
    assert "Traceback" not in refused.stderr

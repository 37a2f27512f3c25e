"""A real nsys on the real cluster: each node records its own training, and a report survives whatever ends the run.

Without a GPU nsys records ranges and calls into the operating system; the options for CUDA are not tested here.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from harness.common.run_folder.captures import folder_of
from tests.real_nsys import EACH_NSYS_AT_LENGTH, FIRST_ON_THE_NODE, checked, kept, ranges
from tests.slurm.slurm_sh import ENDLESS, REPOSITORY, SHORT, TWO_NODES, SlurmSh, Submitted, submitted
from tests.slurm.test_slurm_runs import wait_for_active_steps

pytestmark = [pytest.mark.slurm, EACH_NSYS_AT_LENGTH]

NODES = (0, 1)
NSYS = (*TWO_NODES, "--profiler", "nsys", "--json")
BEGUN = """
import os, pathlib, sys
if any("accelerate" in word for word in sys.orig_argv[1:3]) and "launch" in sys.orig_argv[2:4]:
    pathlib.Path(__file__).with_name(os.environ["SLURM_JOB_ID"]).touch()
"""


@pytest.fixture(scope="module")
def path(nsys_folder: Path, slurm_sh: SlurmSh) -> dict[str, str]:
    """An environment with nsys."""
    return {"PATH": f"{nsys_folder}{os.pathsep}{slurm_sh.slurm.env['PATH']}"}


@pytest.fixture(scope="module")
def site(slurm_sh: SlurmSh, path: dict[str, str]) -> Path:
    """A site where both nodes record with nsys."""
    # Both nodes are this machine, where two nsys that start in the same moment may lose their agents: the second one
    # waits until the first has started the launcher of its training.
    begun = slurm_sh.runs.parent / "begun-below-nsys"
    begun.mkdir(exist_ok=True)
    (begun / "sitecustomize.py").write_text(BEGUN)
    apart = [f'until [ "$SLURM_NODEID" = 0 ] || [ -e \'{begun}\'/"$SLURM_JOB_ID" ]; do sleep 0.1; done']
    python_path = f"{begun}:{REPOSITORY}"
    env = {**path, "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": python_path}
    return slurm_sh.site("with-nsys", env=env, node_setup=[FIRST_ON_THE_NODE, *apart])


@pytest.fixture(scope="module")
def recorded(slurm_sh: SlurmSh, nsys_folder: Path, path: dict[str, str], site: Path) -> Submitted:
    """A run over both nodes that nsys recorded to its end."""

    def launched() -> Submitted:
        done = slurm_sh(*NSYS, "--site", site, "--wait", "--", *SHORT, env=path)
        checked(done.returncode, done.stderr + slurm_sh.newest_log())
        return submitted(done.stdout)

    return kept(launched, lambda run: all(ranges_of(run, nsys_folder)))


def ranges_of(run: Submitted, nsys: Path) -> list[Counter[str]]:
    """The ranges of each node's report."""
    return [ranges(run.path / f"nsys/profile_node{node}.nsys-rep", nsys) for node in NODES]


# Long, as the next: a cancelled run below leaves the same two reports, and test_container_slides.py has one to the end.
@pytest.mark.long
def test_each_node_leaves_the_report_of_its_own_ranks(recorded: Submitted, nsys_folder: Path) -> None:
    for found in ranges_of(recorded, nsys_folder):
        assert found["forward"] == found["optimizer_step"] == 3, "three profiled steps of one rank"
        assert {f"batch_{i}" for i in (3, 4, 5)} <= set(found)
        assert "batch_2" not in found, "the warm-up is not in the report"


@pytest.mark.long
def test_what_nsys_recorded_is_reported_for_what_it_is(
    slurm_sh: SlurmSh, path: dict[str, str], recorded: Submitted
) -> None:
    done = slurm_sh("report", recorded.job_id, "--full", env=path)
    assert done.returncode == 0, done.stderr
    assert "2 traces (nsys) · world size 2" in done.stdout
    assert "recorded without a GPU" in done.stdout
    assert "Do not build on these numbers" not in done.stdout


def test_cancelled_the_reports_are_kept_and_open(
    slurm_sh: SlurmSh, path: dict[str, str], site: Path, nsys_folder: Path
) -> None:
    def cancelled() -> list[Counter[str]]:
        run = slurm_sh.run(*NSYS, "--site", site, "--", *ENDLESS, env=path)
        try:
            wait_for_active_steps(slurm_sh, run)
        except AssertionError:  # it ended before
            checked(1, (run.logs / "log.err").read_text())
        assert slurm_sh("cancel", run.job_id).returncode == 0
        assert slurm_sh.slurm.wait(run.job_id) == "CANCELLED"
        return ranges_of(run, nsys_folder)

    for found in kept(cancelled, all):
        assert found["forward"] >= 2


@pytest.mark.train
@pytest.mark.long
def test_both_nodes_record_the_same_steps_again_when_they_are_asked(
    slurm_sh: SlurmSh, path: dict[str, str], site: Path, nsys_folder: Path, tmp_path: Path
) -> None:
    # Where a path has a quotation mark, nsys 2022.4 ends the training after its report ("File has not been created").
    env = {**path, "HARNESS_RUNS": str(tmp_path / "a student's runs")}
    run = slurm_sh.run(*NSYS, "--site", site, "--", *SHORT, "--steps", "99999", env=env)
    wait_for_active_steps(slurm_sh, run)
    try:
        for number in (1, 2):
            done = slurm_sh("capture", "start", run.job_id, "--steps", "3", env=env)
            assert done.returncode == 0, done.stderr
            folder = folder_of(run.path, number)
            found = [ranges(folder / f"profile_node{n}.nsys-rep", nsys_folder) for n in NODES]
            steps = [{name for name in count if name.startswith("batch_")} for count in found]
            assert len(steps[0] & steps[1]) == 3, "three steps of both"
    finally:
        assert slurm_sh("cancel", run.job_id, env=env).returncode == 0
    assert slurm_sh.slurm.wait(run.job_id) == "CANCELLED"

"""The slides' commands in real containers on a real Slurm of two nodes: training inside, monitor and nsys outside."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.container.images import container
from tests.real_nsys import FIRST_ON_THE_NODE, checked, kept, ranges
from tests.slurm.slurm_sh import SHORT, SlurmSh, Submitted, submitted
from tests.slurm.test_slurm_slides import DEFAULTS
from tests.waiting import limit_s

pytestmark = [pytest.mark.slurm, pytest.mark.train]

SLIDES = {"-e 0": 2, "-e 1": 1, "-e 2 -n 2 -- --ds-no-overlap": 1, "-e 3 -n 2": 2}  # ranks per node
LONG = ("-e 0", "-e 1", "-e 3 -n 2")  # exercise 1 is recorded by nsys below
INSIDE = "/opt/packages/"  # where PyTorch is only inside


def site_of(slurm_sh: SlurmSh, name: str, ranks: int, **changes: object) -> Path:
    """A site whose trainings are in the container."""
    given = changes.pop("container", None) or container()
    return slurm_sh.site(
        f"boxed-{name}", container=given, partition="gpu", gpus={"per_node": 4, "request": "gres"}, cpus_per_node=16,
        defaults=DEFAULTS | {"gpus_per_node": ranks}, **changes,
    )  # fmt: skip


@pytest.fixture(scope="module")
def runs(slurm_sh: SlurmSh, request: pytest.FixtureRequest) -> dict[str, Submitted]:
    """All slides, submitted at once."""
    found = {}
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    mine = [item for item in items if item.originalname == test_a_slide_runs_to_its_end_inside.__name__]
    chosen = {item.callspec.params["command"] for item in mine}
    for command, ranks in SLIDES.items():
        if command in LONG and command not in chosen:
            continue
        site = site_of(slurm_sh, f"slides{ranks}", ranks)
        found[command] = slurm_sh.run("--json", *command.split(), env={"HARNESS_SITE": str(site)})
    return found


def finished(slurm_sh: SlurmSh, run: Submitted) -> Submitted:
    """The run, at its end."""
    state = slurm_sh.slurm.wait(run.job_id)
    assert state == "COMPLETED", f"{slurm_sh.slurm.job(run.job_id)}\n{(run.logs / 'log.err').read_text()[-3000:]}"
    said = slurm_sh.status(run.job_id)
    assert (said["state"], said["missing"]) == ("completed", [])
    assert set(run.node_exits().values()) == {0}
    return run


@pytest.mark.parametrize(
    "command", [pytest.param(each, marks=pytest.mark.long if each in LONG else ()) for each in SLIDES]
)
def test_a_slide_runs_to_its_end_inside(slurm_sh: SlurmSh, runs: dict[str, Submitted], command: str) -> None:
    run = finished(slurm_sh, runs[command])
    if command == "-e 0":
        assert run.read("comm/collectives.json")["results"]
        return
    assert INSIDE in (run.path / "lines" / "rank0.jsonl").read_text(), "it trained outside"
    hosts = {file.parent.name for file in run.path.glob("gpus-monitor/*/samples.csv")}
    assert hosts == set(run.node_exits())
    report = slurm_sh("report", run.job_id, "--json")
    assert report.returncode == 0, report.stderr
    world = json.loads(report.stdout)["world_size"]
    assert world == {"-e 1": 1, "-e 3 -n 2": 4}.get(command, 2)
    paraver = slurm_sh("export", "paraver", run.job_id)
    assert paraver.returncode == 0, paraver.stderr
    assert list(run.path.rglob("*.prv"))


@pytest.fixture(scope="module")
def hidden_nsys(nsys_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """nsys in a folder that the container does not show by itself."""
    folder = tmp_path_factory.mktemp("apps") / "nsys"
    if subprocess.run(
        ["cp", "-al", nsys_folder, folder], capture_output=True, check=False, timeout=limit_s()
    ).returncode:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(nsys_folder, folder, symlinks=True)  # another file system
    return folder


def test_nsys_outside_records_what_runs_inside(slurm_sh: SlurmSh, hidden_nsys: Path, nsys_folder: Path) -> None:
    def found_ranges() -> Counter[str]:
        run = recorded(slurm_sh, hidden_nsys)
        return ranges(run.path / "nsys/profile_node0.nsys-rep", nsys_folder)

    found = kept(found_ranges, bool)
    assert found["forward"] == found["optimizer_step"] == 6, "three profiled steps of both ranks"


@pytest.mark.long
def test_an_nsys_for_each_rank_runs_inside_and_its_recording_becomes_a_report_outside(
    slurm_sh: SlurmSh, hidden_nsys: Path, nsys_folder: Path
) -> None:
    """One rank: two nsys 2022.4 that begin together on this machine may lose what they recorded."""
    run = recorded(slurm_sh, hidden_nsys, "--nsys-per", "rank", "-g", "1")
    (report,) = (run.path / "nsys").glob("*.nsys-rep")
    assert ranges(report, nsys_folder)["forward"] == 3
    said = (run.logs / "log.err").read_text()
    assert "profile_node0_rank0.qdstrm, which nsys itself could not import, became" in said, (
        "the image has no libpfm, which Debian's importer needs"
    )
    assert list((run.path / "nsys").glob("*.qdstrm")) == []


def recorded(slurm_sh: SlurmSh, nsys: Path, *words: str) -> Submitted:
    """A run of two ranks that nsys recorded to its end."""
    env = {"PATH": f"{nsys}{os.pathsep}{slurm_sh.slurm.env['PATH']}"}
    # Of /tmp, where nsys is, only what was bound is there.
    hiding = container(arguments=["exec", "--nv", "--no-mount", "tmp"])
    given = {"env": {**env, "TOKENIZERS_PARALLELISM": "false"}, "node_setup": [FIRST_ON_THE_NODE]}
    site = site_of(slurm_sh, "nsys", 2, container=hiding, **given)
    done = slurm_sh("-e", "1", "--profiler", "nsys", *words, "--site", site, "--wait", "--json", *SHORT, env=env)
    checked(done.returncode, done.stderr + slurm_sh.newest_log())
    return submitted(done.stdout)

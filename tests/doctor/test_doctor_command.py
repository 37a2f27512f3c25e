"""`slurm.sh doctor` as it is typed: one line each, the remedy below, an exit status that says the worst."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from harness.cli.main import main
from harness.doctor.checks import CHECKS
from tests.doctor.healthy import Cluster, inside
from tests.launch.launch_shared import ROOT

Printed = pytest.CaptureFixture[str]


def local_site(cluster: Cluster) -> str:
    """A site of this machine alone, with the stand-in for the container."""
    container = f"{{command: apptainer, image: {cluster.folder}/training.sif}}"
    text = f"name: here\ndescription: x\nscheduler: local\ndevice: cpu\ncontainer: {container}\n"
    return str(cluster.file("here.yaml", text))


def test_each_line_has_a_level_a_check_and_what_was_found_and_problems_their_remedy_below(
    cluster: Cluster, capsys: Printed
) -> None:
    """On a machine without a queue it is the compute node, too; nothing is left behind."""
    cluster.plant(variables={"CUDA_LAUNCH_BLOCKING": "1"})
    site = local_site(cluster)
    before = sorted(cluster.folder.rglob("*"))
    assert main(["doctor", "--site", site]) == 0, "a warning is no failure"
    assert sorted(cluster.folder.rglob("*")) == before
    lines = capsys.readouterr().out.splitlines()
    assert not any("submission" in line for line in lines)
    assert any(re.match(r"ok +launch +\S", line) for line in lines)
    (index,) = (i for i, line in enumerate(lines) if re.match(r"warning +variables +CUDA_LAUNCH_BLOCKING=1", line))
    assert "→ unset CUDA_LAUNCH_BLOCKING" in "\n".join(lines[index : index + 3])
    assert re.search(r"^\d+ warnings?, (\d+ not checked, )?\d+ ok$", lines[-1])


def test_a_problem_is_exit_status_1_and_json_has_it_whole(cluster: Cluster, capsys: Printed) -> None:
    site = local_site(cluster)
    cluster.plant({"apptainer": inside(modules={"torch": {"error": "OSError: no libcudart"}})})
    assert main(["doctor", "--json", "--site", site]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["site"], said["worst"]) == ("here", "problem")
    (found,) = (line for line in said["lines"] if line["level"] == "problem")
    assert found["check"] == "packages"
    assert "no libcudart" in found["found"]
    assert found["remedy"].startswith("apptainer build")


def test_what_only_nodes_see_is_said(cluster: Cluster, capsys: Printed) -> None:
    site = str(cluster.file("site.yaml", yaml.safe_dump(cluster.site)))
    main(["doctor", "--json", "--site", site])
    rows = json.loads(capsys.readouterr().out)["lines"]
    names = [row["check"] for row in rows if row["found"].startswith("cannot be seen from the login node")]
    assert names == ["torch"]
    main(["doctor", "--site", site])
    said = " ".join(capsys.readouterr().out.split())
    assert "not checked torch cannot be seen from the login node" in said


def test_every_check_stands_in_the_documents_table() -> None:
    page = (ROOT / "docs" / "course.md").read_text(encoding="utf-8")
    assert [check.name for check in CHECKS if f"`{check.name}`" not in page] == []

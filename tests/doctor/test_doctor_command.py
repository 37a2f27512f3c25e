"""`slurm.sh doctor` as it is typed: one line each, the remedy below, an exit status that says the worst."""

from __future__ import annotations

import json
import re
from pathlib import Path
from threading import Thread

import pytest
import yaml

from harness.cli.main import main
from harness.doctor.checks import CHECKS
from harness.doctor.in_job import Report, collected, merged, report_file
from harness.doctor.machine import connect, reached_verdict, serve
from harness.doctor.surroundings import CheckLine, Level, ok, warning
from harness.launch.backends.local import free_port
from harness.site.slurm_commands import JobId
from tests.doctor.healthy import Cluster, inside
from tests.launch.launch_shared import ROOT
from tests.waiting import limit_s

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
    assert main(["doctor", "--in-job", "--site", site]) == 0, "a warning is no failure"
    assert sorted(cluster.folder.rglob("*")) == before
    lines = capsys.readouterr().out.splitlines()
    assert any("this machine is the compute node" in line for line in lines)
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


def test_what_only_nodes_see_is_one_line_and_json_has_each(cluster: Cluster, capsys: Printed) -> None:
    site = str(cluster.file("site.yaml", yaml.safe_dump(cluster.site)))
    main(["doctor", "--json", "--site", site])
    rows = json.loads(capsys.readouterr().out)["lines"]
    names = [row["check"] for row in rows if row["found"].startswith("cannot be seen from the login node")]
    assert {"meeting", "files", "torch"} <= set(names)
    main(["doctor", "--site", site])
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("cannot be seen from the login node") == 1
    assert f"not checked on nodes {', '.join(names)}: cannot be seen from the login node" in said


def test_nodes_meet_or_it_is_said() -> None:
    port = free_port()
    assert serve(port, 1, 0.05) == 0
    with pytest.raises(OSError, match="refused"):
        connect("127.0.0.1", port, 0)
    came: list[int] = []
    server = Thread(target=lambda: came.append(serve(port, 1, limit_s())))
    server.start()
    connect("127.0.0.1", port, limit_s())
    server.join(limit_s())
    assert came == [1]
    assert [reached_verdict("node1:20000", came, 1).level for came in (1, 0)] == [Level.OK, Level.PROBLEM]


def test_a_node_without_an_answer_is_counted_and_the_jobs_log_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "look"
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "slurm-7.out").write_text("slurmstepd: error: *** DUE TO TIME LIMIT ***\n")
    line = CheckLine("cores", ok("cores", "8"))
    report_file(folder, 0).write_text(Report(node=0, host="node1", lines=[line]).model_dump_json())
    job, cores = collected(JobId("7"), folder, 2, "it left the queue")
    assert (job.result.level, cores.hosts) == (Level.PROBLEM, ("node1",))
    assert job.result.found == "1 of 2 nodes answered: it left the queue"
    assert job.result.remedy == f"cat {folder}/logs/slurm-7.out"
    assert folder.exists(), "the log is still needed"


def test_every_check_stands_in_the_documents_table() -> None:
    page = (ROOT / "docs" / "course.md").read_text(encoding="utf-8")
    assert [check.name for check in CHECKS if f"`{check.name}`" not in page] == []


def test_what_several_nodes_say_alike_stands_once_with_their_names() -> None:
    both, second = CheckLine("cores", ok("cores", "8")), CheckLine("variables", warning("LD_PRELOAD", "x", "unset"))
    lines = merged([Report(node=0, host="a", lines=[both]), Report(node=1, host="b", lines=[both, second])])
    assert [(line.check, line.hosts) for line in lines] == [("cores", ("a", "b")), ("variables", ("b",))]
    back = Report.model_validate_json(Report(node=0, host="a", lines=[second]).model_dump_json())
    assert back.lines == [second]

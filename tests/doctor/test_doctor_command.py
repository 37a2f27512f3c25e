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
from harness.doctor.files import quota_of_lfs, size_of_runs
from harness.doctor.in_job import Report, collected, draft_file, merged, report_file
from harness.doctor.machine import connect, reached_verdict, serve
from harness.doctor.surroundings import CheckLine, Level, ok, warning
from harness.launch.backends.local import free_port
from harness.run import Run
from harness.site.site import load_site
from harness.site.slurm_commands import JobId
from harness.study.lessons import course_experiments
from tests.doctor.healthy import Cluster, inside
from tests.launch.launch_shared import ROOT, a_run
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
    cluster.variables(CUDA_LAUNCH_BLOCKING="1")
    assert main(["doctor", "--site", local_site(cluster)]) == 0, "a warning is no failure"
    lines = capsys.readouterr().out.splitlines()
    assert any(re.match(r"ok +launch +\S", line) for line in lines)
    (index,) = (i for i, line in enumerate(lines) if re.match(r"warning +variables +CUDA_LAUNCH_BLOCKING=1", line))
    assert "→ unset CUDA_LAUNCH_BLOCKING" in "\n".join(lines[index : index + 3])
    assert re.search(r"^\d+ warnings?, (\d+ not checked, )?\d+ ok$", lines[-1])


def test_a_problem_is_exit_status_1_and_json_has_it_whole(cluster: Cluster, capsys: Printed) -> None:
    site = local_site(cluster)
    cluster.program("apptainer", inside(modules={"torch": {"error": "OSError: no libcudart"}}))
    assert main(["doctor", "--json", "--site", site]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["site"], said["worst"]) == ("here", "problem")
    (found,) = (line for line in said["lines"] if line["level"] == "problem")
    assert found["check"] == "packages"
    assert "no libcudart" in found["found"]
    assert found["remedy"].startswith("apptainer build")


def test_on_a_machine_without_a_queue_the_compute_node_is_this_one(cluster: Cluster, capsys: Printed) -> None:
    assert main(["doctor", "--in-job", "--site", local_site(cluster)]) == 0
    said = capsys.readouterr().out
    assert "this machine is the compute node" in said
    assert "submission" not in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--students", "0"], "--students: got '0', takes a whole number ≥ 1"),
        (["--nodes", "2"], "only with --in-job"),
        (["--site", "leonado"], "did you mean leonardo?"),
        (["--site", "slurm", "-p", "a b"], "-p/--partition"),
        (["--sites"], "--sites"),
    ],
)
def test_a_wrong_request_is_one_sentence_and_exit_status_2(words: list[str], sentence: str, capsys: Printed) -> None:
    assert main(["doctor", *words]) == 2
    complaint = capsys.readouterr().err
    assert sentence in complaint
    assert "Traceback" not in complaint


def test_nothing_is_left_behind(cluster: Cluster) -> None:
    site = local_site(cluster)
    before = sorted(path for path in cluster.folder.rglob("*"))
    main(["doctor", "--site", site])
    assert sorted(path for path in cluster.folder.rglob("*")) == before


def test_the_space_is_that_of_the_runs_of_this_site_and_kind_of_device(tmp_path: Path) -> None:
    runs = []
    for number, size in enumerate((1_000_000, 2_000_000, 9_000_000, 40_000_000, 50_000_000)):
        run = a_run(tmp_path, f"local-{number}")
        site = "leonardo" if number == 3 else "local"
        job = run.record.job | {"device": "cpu" if number == 4 else "cuda"}
        run.write_record(run.record.model_copy(update={"site": load_site(site), "job": job}))
        (run.path / "torch").mkdir()
        (run.path / "torch" / "rank0.json.gz").write_bytes(bytes(size))
        runs.append(Run(run.path))
    measured = size_of_runs(runs, "local", on_gpus=True)
    assert 2_000_000 < measured.bytes_per_run < 2_100_000
    assert measured.source == "median of the newest 3 at local on GPUs"
    estimate = size_of_runs(runs, "leonardo", on_gpus=False)
    assert estimate == (50_000_000, "an estimate, because no run was recorded at leonardo on CPUs yet")


def test_what_only_nodes_see_is_one_line_and_json_has_each(cluster: Cluster, capsys: Printed) -> None:
    site = str(cluster.file("site.yaml", yaml.safe_dump(cluster.site)))
    main(["doctor", "--json", "--site", site])
    rows = json.loads(capsys.readouterr().out)["lines"]
    names = [row["check"] for row in rows if row["found"].startswith("cannot be seen from the login node")]
    assert len(names) > 5
    main(["doctor", "--site", site])
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("cannot be seen from the login node") == 1
    assert f"not checked on nodes {', '.join(names)}: cannot be seen from the login node" in said


def test_a_course_is_every_lessons_experiments_once() -> None:
    experiments = course_experiments()
    assert len(experiments) >= 10
    assert all(experiments.count(each) == 1 for each in experiments)


@pytest.mark.parametrize(
    ("printed", "limit_bytes"),
    [
        ("/a/very/long/folder\n      5 0 20 - 1 0 0 -", 20480),
        ("/scratch 25* 10 20 6d 1 0 0 -", 20480),
        ("/scratch 5 10 0 - 1 0 0 -", 10240),
        ("/scratch 5 0 0 - 1 0 0 -", 0),
    ],
)
def test_lustres_quota_is_read_with_a_long_path_a_grace_time_and_a_soft_limit(printed: str, limit_bytes: int) -> None:
    assert quota_of_lfs(printed).limit_bytes == limit_bytes
    assert quota_of_lfs("error: cannot resolve") is None


def test_nodes_meet() -> None:
    port = free_port()
    came: list[int] = []
    server = Thread(target=lambda: came.append(serve(port, 1, limit_s())))
    server.start()
    connect("127.0.0.1", port, limit_s())
    server.join(limit_s())
    assert came == [1]
    assert reached_verdict("node1:20000", 1, 1).level is Level.OK


def test_nodes_that_do_not_meet_are_said() -> None:
    port = free_port()
    assert serve(port, 1, 0.05) == 0
    with pytest.raises(OSError, match="refused"):
        connect("127.0.0.1", port, 0)
    assert reached_verdict("node1:20000", 0, 1).level is Level.PROBLEM


def test_a_node_that_hangs_in_a_check_is_named_with_what_it_had_found(tmp_path: Path) -> None:
    folder = tmp_path / "look"
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "slurm-7.out").write_text("slurmstepd: error: *** DUE TO TIME LIMIT ***\n")
    line = CheckLine("cores", ok("cores", "8"))
    first = Report(node=0, host="node1", lines=[line])
    report_file(folder, 0).write_text(first.model_dump_json())
    second = Report(node=1, host="node2", lines=[line], looking_at="packages")
    draft_file(folder, 1).write_text(second.model_dump_json())
    job, cores = collected(JobId("7"), folder, 2, "it left the queue")
    assert job.result.level is Level.PROBLEM
    assert "1 of 2 nodes answered" in job.result.found
    assert "node2 did not finish the check packages" in job.result.found
    assert "TIME LIMIT" in job.result.found
    assert cores.hosts == ("node1", "node2")
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

"""Exercise 1 through `slurm.sh` on a real two-node Slurm: what a run leaves, and how runs end."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.monitor.samples import read
from harness.run import Run
from tests.exercises.launching import trace_events
from tests.launch.stand_ins import executable
from tests.slurm.slurm_sh import ENDLESS, REPOSITORY, SHORT, TWO_NODES, SlurmSh, Submitted, submitted
from tests.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.train]

NODES = ("node1", "node2")
# Every rank waits for the other, then exits with 7, so that no rank is ended because the other failed first.
EXIT_7 = """
import os, pathlib, time
from tests.faults.light_train import at

def exit_7(rank):
    met = pathlib.Path(os.environ["RUN_DIR"], "met")
    met.mkdir(exist_ok=True)
    (met / str(rank)).touch()
    while len(list(met.iterdir())) < 2:
        time.sleep(0.05)
    os._exit(7)

at("window", exit_7)
"""
WAITS_FOR_MONITORS = """
import os, pathlib, sys, time
if "LOCAL_RANK" in os.environ and any(word.endswith("train.py") for word in sys.orig_argv):
    while not pathlib.Path(os.environ["RUN_DIR"], "go").exists():
        time.sleep(0.05)
"""
# One rank exits in the middle of its work; the other loses its neighbour and fails too, two seconds later.
EXIT_7_ON_RANK_1 = """
import atexit, os, pathlib, sys, threading, time
def leave():
    metrics = pathlib.Path(os.environ["RUN_DIR"], "metrics", "rank1.jsonl")
    while not (metrics.exists() and metrics.read_text().count('"event": "step"') >= 3):
        time.sleep(0.05)
    os._exit(7)
if os.environ.get("RANK") == "1" and any(word.endswith("train.py") for word in sys.orig_argv):
    threading.Thread(target=leave, daemon=True).start()
elif os.environ.get("RANK") == "0":
    atexit.register(time.sleep, 2)
"""


def steps_in(trace: Path) -> int:
    """Profiled steps of a Kineto file, which must be whole."""
    events = trace_events(trace)
    return len({event["name"] for event in events if str(event.get("name", "")).startswith("ProfilerStep#")})


def wait_for_active_steps(slurm_sh: SlurmSh, run: Submitted) -> None:
    """Returns when the profiler is at work on both nodes. Fails at once when the job has ended before."""
    slurm_sh.wait_while_it_runs(run, lambda: min(map(run.active_steps, range(2))) >= 2, "profiled steps on both nodes")


def monitors_of(slurm_sh: SlurmSh, run: Submitted) -> list[int]:
    """The monitors' process ids, as soon as both nodes' have taken a sample."""
    folders = [run.path / "gpus-monitor" / node for node in NODES]

    def have_sampled() -> bool:
        files = [folder / "samples.csv" for folder in folders]
        return all(file.exists() and file.read_text().count("\n") > 1 for file in files)

    slurm_sh.wait_while_it_runs(run, have_sampled, "a sample of both monitors")
    return [json.loads((folder / "meta.json").read_text())["monitor_pid"] for folder in folders]


# --- a run that ends well ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Waited(Submitted):
    """A run whose end `slurm.sh --wait` waited for, and what that printed."""

    printed: subprocess.CompletedProcess[str]


@pytest.fixture(scope="session")
def completed(slurm_sh: SlurmSh) -> Waited:
    printed = slurm_sh(*TWO_NODES, "--site", slurm_sh.site("plain"), "--wait", *SHORT)
    said = slurm_sh.status("last")
    return Waited(said["job_id"], Path(said["path"]), printed)


def test_waiting_for_it_ends_with_its_answer_and_exit_0(completed: Waited) -> None:
    assert completed.printed.returncode == 0, completed.printed.stderr
    assert f"submitted {completed.job_id}: {completed.path}" in completed.printed.stderr
    assert " · 2 ranks · " in completed.printed.stdout and "\n  a step  " in completed.printed.stdout
    assert completed.read("summary.json")
    assert "Traceback" not in completed.printed.stderr


def test_it_trains_over_two_nodes(completed: Submitted) -> None:
    starts = [completed.events(rank)[0] for rank in range(2)]
    assert {start["host"] for start in starts} == set(NODES)
    assert [start["world_size"] for start in starts] == [2, 2]
    assert completed.node_exits() == {"node1": 0, "node2": 0}
    for rank in range(2):
        last = completed.events(rank)[-1]
        assert (last["event"], last["status"]) == ("end", "completed")
        assert completed.active_steps(rank) == 3


def test_every_node_records_the_switch_above_it(completed: Submitted) -> None:
    nodes = Run(completed.path).nodes()
    assert {node.host: node.switch for node in nodes} == {"node1": "leaf1", "node2": "leaf2"}


def test_it_leaves_logs_and_profiler_folders_as_on_the_slides(completed: Submitted, slurm_sh: SlurmSh) -> None:
    exercise = slurm_sh.runs / "exercise_1_DDP"
    assert completed.path.parent == exercise / "profiler"
    assert completed.path.name == f"tiny-llama-{completed.job_id}-n2-g1-mbs2-gas1-mixed0-actckpt0"
    assert {path.name for path in (exercise / "logs" / completed.job_id).iterdir()} == {"log.out", "log.err"}
    expected = {"run.json", "job.sbatch", "status.json", "gpus-monitor", "torch", "metrics", "node-status"}
    assert expected <= {path.name for path in completed.path.iterdir()}
    assert not list(completed.path.rglob(".*")), "temporary files are left"


def test_every_rank_has_a_whole_trace_of_the_window(completed: Submitted) -> None:
    assert [steps_in(completed.path / "torch" / f"rank{rank}.json.gz") for rank in range(2)] == [3, 3]


def test_every_node_was_watched_and_plotted(completed: Submitted) -> None:
    for node in NODES:
        folder = completed.path / "gpus-monitor" / node
        assert {"samples.csv", "memory.png", "utilization.png", "power.png"} <= {p.name for p in folder.iterdir()}
        peak = json.loads((folder / "summary.json").read_text())["devices"][0]["peak_memory_bytes"]
        assert peak > 400 * 2**20, "the monitor saw the launcher only, not the training"


def test_run_json_records_what_ran_where_and_how_it_ended(completed: Submitted) -> None:
    record = completed.read("run.json")
    assert record["job_id"] == completed.job_id
    assert record["experiment"]["nodes"] == 2
    assert record["status"]["state"] == "completed"
    assert sorted(node["host"] for node in record["nodes"]) == list(NODES)
    assert record["status"]["missing"] == []


@pytest.mark.parametrize("word", ["id", "name", "path", "last"])
def test_commands_find_a_run_by_id_name_path_or_last(completed: Submitted, slurm_sh: SlurmSh, word: str) -> None:
    token = {"id": completed.job_id, "name": completed.path.name, "path": str(completed.path), "last": "last"}[word]
    if word == "last":
        others = [path for path in completed.path.parent.iterdir() if path != completed.path]
        token = "last" if not others else completed.job_id
    said = slurm_sh.status(token)
    assert (said["state"], said["exit_code"]) == ("completed", 0)
    assert sorted((node["host"], node["exit"]) for node in said["nodes"]) == [("node1", 0), ("node2", 0)]
    printed = slurm_sh("logs", token, "-f")
    assert printed.returncode == 0
    assert printed.stdout + printed.stderr != ""


def test_ls_lists_it_and_cancelling_it_now_changes_nothing(completed: Submitted, slurm_sh: SlurmSh) -> None:
    rows = json.loads(slurm_sh("ls", "--json").stdout)
    assert [row["state"] for row in rows if row["job_id"] == completed.job_id] == ["completed"]
    assert f"{completed.job_id} has already ended: completed" in slurm_sh("cancel", completed.job_id).stdout
    assert slurm_sh.status(completed.job_id)["state"] == "completed"


def test_a_job_that_slurm_has_forgotten_has_its_own_status(completed: Submitted, slurm_sh: SlurmSh) -> None:
    """squeue, sacct and scontrol do not know job 99999; only its own files do."""
    forgotten = slurm_sh.runs / "exercise_1_DDP" / "profiler" / "forgotten-99999"
    shutil.copytree(completed.path, forgotten)
    try:
        record = json.loads((forgotten / "run.json").read_text())
        (forgotten / "run.json").write_text(json.dumps({**record, "job_id": "99999"}))
        assert slurm_sh.status(str(forgotten))["state"] == "completed"
        (forgotten / "status.json").unlink()
        assert slurm_sh.status(str(forgotten))["state"] == "completed", "run.json has the end too"
        (forgotten / "run.json").write_text(json.dumps({**record, "job_id": "99999", "status": None}))
        assert slurm_sh.status(str(forgotten))["state"] == "unknown"
    finally:
        shutil.rmtree(forgotten)


# Long: test_slurm_pyxis.py has it measure between the nodes, too.
@pytest.mark.long
def test_exercise_0_measures_between_the_nodes(slurm_sh: SlurmSh) -> None:
    """Exercises 2 and 3 cross the network in test_slurm_slides.py."""
    words = ("-e", "0", "-n", "2", "--site", slurm_sh.site("plain"), "--wait", "--json", "--max-bytes", "65536")
    waited = slurm_sh(*words)
    assert waited.returncode == 0, waited.stderr
    run = submitted(waited.stdout)
    assert run.node_exits() == {"node1": 0, "node2": 0}
    scopes = {result["scope"] for result in run.read("comm/collectives.json")["results"]}
    assert "inter" in scopes


# --- runs that end otherwise -------------------------------------------------------------------------------------


def test_a_cancelled_run_keeps_its_results_and_its_status_is_cancelled(slurm_sh: SlurmSh) -> None:
    """Without PyTorch: test_slurm_nsys.py cancels a real training."""
    run = slurm_sh.submit_words(*slurm_sh.light("endless"), "--active-steps", "9999")
    assert slurm_sh.status(run.job_id)["state"] in {"queued", "running"}
    slurm_sh.slurm.wait_running(run.job_id)
    assert slurm_sh.status(run.job_id)["state"] == "running"
    wait_for_active_steps(slurm_sh, run)
    assert slurm_sh("cancel", run.job_id).returncode == 0
    assert slurm_sh.slurm.wait(run.job_id) == "CANCELLED"
    assert slurm_sh.status(run.job_id)["state"] == "cancelled"
    wait_until(
        lambda: run.read("status.json")["state"] == "cancelled",
        "the job's final status",
        lambda: slurm_sh.slurm.about(run.job_id),
    )
    assert min(steps_in(run.path / "torch" / f"rank{rank}.json.gz") for rank in range(2)) >= 2
    assert run.events(0)[-1]["status"] == "stopped"


# Long: the fault `warned` of tests/faults ends a light training so, and a cancelled one closes its traces above.
@pytest.mark.long
def test_warned_of_its_time_limit_it_closes_its_traces_and_ends_by_itself(slurm_sh: SlurmSh) -> None:
    """The test sends the warning: Slurm checks time limits only every 30 seconds.

    The site's own line is a step too, so that the training is not the job's first. One node writes its status slowly:
    srun, which asks all to end as soon as the other has, must not interrupt it.
    """
    slow = slurm_sh.runs.parent / "slow"
    slow.mkdir()
    (slow / "mv").write_text('#!/bin/bash\n[ "$SLURM_NODEID" = 1 ] || sleep 2\nexec /usr/bin/mv "$@"\n')
    (slow / "mv").chmod(0o755)
    lines = ["srun true", f"export PATH={slow}:$PATH"]
    run = slurm_sh.submit(slurm_sh.site("own-step", setup=lines), *ENDLESS)
    wait_for_active_steps(slurm_sh, run)
    slurm_sh.slurm.run("scancel", "--batch", "--signal=USR1", run.job_id)
    assert slurm_sh.slurm.wait(run.job_id) == "FAILED"  # a stopped job is no success for `afterok`
    assert slurm_sh.status(run.job_id)["state"] == "timeout"
    assert min(steps_in(run.path / "torch" / f"rank{rank}.json.gz") for rank in range(2)) >= 2
    assert run.node_exits() == {"node1": 143, "node2": 143}
    for node in NODES:
        assert (run.path / "gpus-monitor" / node / "summary.json").is_file()


def sabotaged(slurm_sh: SlurmSh, name: str, code: str) -> Path:
    """A site whose trainings run `code` first."""
    folder = slurm_sh.runs.parent / name
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code)
    environment = {"PYTHONPATH": f"{folder}:{REPOSITORY}"}
    return slurm_sh.site(name, env=environment, setup=[f"env >'{folder}/job-environment'"])


@pytest.fixture(scope="session")
def failed_inside(slurm_sh: SlurmSh) -> Submitted:
    """A training that exits with 7, submitted from inside another job's allocation."""
    lines = [f"env >'{slurm_sh.runs.parent}/job-environment'"]
    light = slurm_sh.light("exit-7", fault=EXIT_7, setup=lines)
    words = shlex.join(map(str, (*TWO_NODES, *light, "--json", "--active-steps", "3")))
    said = slurm_sh.runs.parent / "said"
    outer = slurm_sh.runs.parent / "outer.sh"
    outer.write_text(f"#!/bin/bash\nbash '{REPOSITORY}/slurm.sh' {words} >'{said}'\n")
    environment = {**slurm_sh.env, "SLURM_CANARY": "leaked"}
    argv = ("sbatch", "--parsable", "--cpus-per-task=3", "--mem-per-cpu=150", "--chdir=/tmp", "--output=/dev/null")
    job_id = slurm_sh.slurm.run(*argv, outer, env=environment).stdout.strip()
    assert slurm_sh.slurm.wait(job_id) == "COMPLETED"
    run = submitted(said.read_text())
    assert slurm_sh.slurm.wait(run.job_id) == "FAILED"
    return run


def test_a_training_that_exits_7_is_a_failed_run_with_7_on_each_node(
    failed_inside: Submitted, slurm_sh: SlurmSh
) -> None:
    said = slurm_sh.status(failed_inside.job_id)
    assert (said["state"], said["exit_code"]) == ("failed", 7)
    assert failed_inside.node_exits() == {"node1": 7, "node2": 7}
    assert slurm_sh.slurm.job(failed_inside.job_id)["ExitCode"] == "7:0"


@pytest.mark.long
def test_the_exit_status_is_that_of_the_node_that_failed_first(slurm_sh: SlurmSh) -> None:
    site = sabotaged(slurm_sh, "exit-7-on-rank-1", EXIT_7_ON_RANK_1)
    waited = slurm_sh(*TWO_NODES, "--site", site, "--wait", "--json", *ENDLESS)
    assert waited.returncode == 1
    run = submitted(waited.stdout)
    assert slurm_sh.slurm.state(run.job_id) == "FAILED"
    assert run.node_exits()["node2"] == 7
    assert run.node_exits()["node1"] != 0
    said = slurm_sh.status(run.job_id)
    assert (said["state"], said["exit_code"]) == ("failed", 7)


def test_missing_reports_of_a_failed_run_are_named(failed_inside: Submitted, slurm_sh: SlurmSh) -> None:
    assert slurm_sh.status(failed_inside.job_id)["missing"] == ["torch/rank0.json.gz", "torch/rank1.json.gz"]
    printed = slurm_sh("logs", failed_inside.job_id)
    assert "expected report is missing or empty" in printed.stderr


def test_submitting_from_inside_an_allocation_leaks_nothing_of_it(failed_inside: Submitted, slurm_sh: SlurmSh) -> None:
    lines = (slurm_sh.runs.parent / "job-environment").read_text().splitlines()
    environment = dict(line.split("=", 1) for line in lines if "=" in line)
    assert environment["SLURM_JOB_ID"] == failed_inside.job_id
    assert environment["SLURM_NNODES"] == "2"
    assert not {"SLURM_CANARY", "SLURM_CPUS_PER_TASK"} & set(environment)
    assert environment["SLURM_MEM_PER_CPU"] == "100"  # the cluster's own, not the outer job's 150


# --- monitors and nodes that die ----------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def with_killed_monitors(slurm_sh: SlurmSh) -> Submitted:
    """A run whose monitors were killed on both nodes: its ranks wait until they have sampled again."""
    site = sabotaged(slurm_sh, "monitors-first", WAITS_FOR_MONITORS)
    flags = ("--slow-dataloading", *SHORT, "--", "--mixed-precision", "--gradient-accumulation-steps", "2")
    run = slurm_sh.submit(site, *flags)
    for pid in monitors_of(slurm_sh, run):
        os.kill(pid, signal.SIGKILL)

    def have_sampled_again() -> bool:
        recordings = [read(run.path / "gpus-monitor" / node) for node in NODES]
        return all(len(each.starts) == 2 and each.gaps and each.gaps[0][1] >= each.starts[1] for each in recordings)

    slurm_sh.wait_while_it_runs(run, have_sampled_again, "samples of both monitors after their second start")
    (run.path / "go").touch()
    assert slurm_sh.slurm.wait(run.job_id) == "COMPLETED", slurm_sh.slurm.about(run.job_id)
    return run


# Long: tests/faults kills the monitor of a run on this machine.
@pytest.mark.long
def test_a_killed_monitor_is_started_again_and_changes_nothing_else(with_killed_monitors: Submitted) -> None:
    run = with_killed_monitors
    assert run.read("status.json")["state"] == "completed"
    assert run.node_exits() == {"node1": 0, "node2": 0}
    assert [steps_in(run.path / "torch" / f"rank{rank}.json.gz") for rank in range(2)] == [3, 3]
    for node in NODES:
        recording = read(run.path / "gpus-monitor" / node)
        assert len(recording.starts) == 2 and not recording.died
        assert recording.gaps[0][1] >= recording.starts[1], "no sample after the second start"
        assert (run.path / "gpus-monitor" / node / "memory.png").is_file()
    said = (run.logs / "log.err").read_text()
    assert said.count("the monitor ended with status 137") == said.count("; it is started again once") == 2


def test_a_node_that_dies_is_not_taken_for_a_training_that_fails(slurm_sh: SlurmSh) -> None:
    slurm = slurm_sh.slurm
    run = slurm_sh.submit_words(*slurm_sh.light("on-a-node-that-dies"), "--active-steps", "9999")
    try:
        slurm.wait_running(run.job_id)
        slurm_sh.wait_while_it_runs(run, (run.path / "gpus-monitor" / "node2").exists, "node2 at work")
        slurm.run("scontrol", "update", "nodename=node2", "state=down", "reason=test")
        assert slurm.wait(run.job_id) == "NODE_FAIL"
        assert slurm_sh.status(run.job_id)["state"] == "node_fail"
    finally:
        slurm.run("scontrol", "update", "nodename=node2", "state=resume", check=False)  # it may be up again


# --- a cluster with accounting ------------------------------------------------------------------------------------


@pytest.mark.parametrize("silent", [("squeue", "scontrol"), ("squeue", "sacct")])
def test_with_accounting_the_state_comes_from_the_slurm_command_that_still_knows_it(
    slurm_sh_accounting: SlurmSh, tmp_path: Path, silent: tuple[str, str]
) -> None:
    """status.json is taken away, so that only the remaining command can know the state."""
    words = ("-n", "1", "-g", "1", "--site", slurm_sh_accounting.site("at-once", account="demo"), "--json")
    launched = slurm_sh_accounting("run", *words, "--", "true")
    assert launched.returncode == 0, launched.stderr
    run = submitted(launched.stdout)
    assert slurm_sh_accounting.slurm.wait(run.job_id) == "COMPLETED"
    (run.path / "status.json").unlink(missing_ok=True)
    for name in silent:
        (tmp_path / name).write_text("#!/bin/sh\necho slurm_load_jobs error >&2\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def said() -> str:
        return slurm_sh_accounting("status", run.job_id, "--json", env=environment).stdout

    wait_until(
        lambda: json.loads(said())["state"] == "completed", "the one command that knows; sacct lags behind", said
    )


def test_with_accounting_a_refusal_is_sbatchs_own_message_and_leaves_nothing(slurm_sh_accounting: SlurmSh) -> None:
    before = sorted(slurm_sh_accounting.runs.rglob("*"))
    refused = slurm_sh_accounting(*TWO_NODES, "--site", slurm_sh_accounting.site("nobody"), "-a", "nobody", *SHORT)
    assert refused.returncode == 1
    assert "Invalid account or account/partition combination specified" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert "submitted" not in refused.stdout + refused.stderr
    assert sorted(slurm_sh_accounting.runs.rglob("*")) == before


def test_with_accounting_a_qos_limit_is_a_queued_run_whose_reason_is_slurms(slurm_sh_accounting: SlurmSh) -> None:
    site = slurm_sh_accounting.site("debug", account="demo")
    run = slurm_sh_accounting.submit(site, *SHORT, "-q", "debug", "--time", "01:00:00")
    try:
        assert slurm_sh_accounting.status(run.job_id)["state"] == "queued"
        job = slurm_sh_accounting.slurm.job(run.job_id)
        assert (job["JobState"], job["Reason"]) == ("PENDING", "QOSMaxWallDurationPerJobLimit")
    finally:
        slurm_sh_accounting("cancel", run.job_id)
    assert slurm_sh_accounting.status(run.job_id)["state"] == "cancelled"


@pytest.mark.long
def test_with_accounting_a_job_of_a_named_cluster_is_cancelled_there(slurm_sh_accounting: SlurmSh) -> None:
    """The cluster's commands take the name and print it."""
    site = slurm_sh_accounting.site("named", account="demo", sbatch=["--clusters=testcluster"])
    run = slurm_sh_accounting.submit(site, *ENDLESS)
    assert run.read("run.json")["cluster"] == "testcluster"
    slurm_sh_accounting.slurm.wait_running(run.job_id)
    assert slurm_sh_accounting.status(run.job_id)["state"] == "running"
    assert slurm_sh_accounting("cancel", run.job_id).returncode == 0
    assert slurm_sh_accounting.status(run.job_id)["state"] == "cancelled"


@pytest.mark.long
def test_a_paraver_trace_can_be_a_job_of_its_own_that_waits_for_the_run(slurm_sh: SlurmSh) -> None:
    run = slurm_sh.submit(slurm_sh.site("plain"), *SHORT)
    said = slurm_sh("export", "paraver", run.job_id, "--submit", "--json")
    assert said.returncode == 0, said.stderr
    follower = json.loads(said.stdout)
    assert slurm_sh.slurm.state(follower["job_id"]) == "PENDING"
    assert slurm_sh.slurm.wait(run.job_id) == "COMPLETED"
    assert slurm_sh.slurm.wait(follower["job_id"]) == "COMPLETED", Path(follower["output"]).read_text()
    assert list(run.path.rglob("*.prv"))


def test_a_job_whose_number_a_sites_sbatch_does_not_tell_is_found_in_the_queue(
    slurm_sh: SlurmSh, tmp_path: Path
) -> None:
    """Another job of the same name waits there, too."""
    quiet = executable(
        tmp_path / "bin" / "sbatch", '#!/bin/sh\nPATH=${PATH#*:}\nsbatch "$@" >/dev/null && echo Thank you.\n'
    )
    words = (*TWO_NODES, "--json", *slurm_sh.light("held", sbatch=["--hold"]))
    first = slurm_sh.run(*words)
    second = slurm_sh.run(*words, env={"PATH": f"{quiet.parent}:{slurm_sh.slurm.env['PATH']}"})
    assert slurm_sh.slurm.job(second.job_id)["Command"].startswith("/") and first.job_id != second.job_id
    assert {slurm_sh.status(run.job_id)["state"] for run in (first, second)} == {"queued"}
    assert all(slurm_sh("cancel", run.job_id).returncode == 0 for run in (first, second))

"""What is submitted, by the words that a stand-in for sbatch gets: refusals, leaks, what overrules what; many runs in
one submission; and whether a launch uses the allocation of its shell.

tests/slurm has a real Slurm; here is what a real controller does not do on demand.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.common.errors import RequestError, WorkError
from harness.common.run_folder.submission import for_sbatch, option_of_variable
from harness.experiment.exercises import DDP
from harness.launch.backends import allocation, slurm
from harness.launch.backends.allocation import allocation_of, placed
from harness.launch.backends.protocol import Together
from harness.launch.before.from_shell import sbatch_variables
from harness.launch.job import Machine, resolve
from harness.launch.on_node import supervise
from harness.launch.render import BELOW, script_of
from harness.launch.submit import Start, go_together, prepare, submit, submit_together
from harness.run import Run, Stage
from harness.run.record import SeriesPart
from harness.site import slurm_commands
from harness.site.site import Site, load_site
from tests.launch.launch_shared import Harness, site_file
from tests.launch.stand_ins import FORGOTTEN, UNREACHED, Programs, of_slurm
from tests.waiting import limit_s, wait_until


def test_a_submission_is_a_run_with_its_script_and_record(programs: Programs, cluster: str, harness: Harness) -> None:
    said = json.loads(harness("-e", "1", "--site", cluster, "--json").stdout)
    run = Run(Path(said["path"]))
    assert said["job_id"] == run.job_id == "4711" and run.log_dir.is_dir()
    printed = harness("-e", "1", "--site", cluster, "--dry-run").stdout
    assert run.script.read_text() == printed.partition(f"\n{BELOW}")[0]


def test_a_job_of_another_cluster_is_looked_for_and_cancelled_there(
    programs: Programs, cluster: str, harness: Harness
) -> None:
    """The default cluster may have another job with the same number."""
    programs.say(sbatch="echo '4711;mpp3'")
    run = Run(Path(json.loads(harness("-e", "1", "--site", cluster, "--json").stdout)["path"]))
    assert run.job_id == "4711"
    there = 'case "$*" in *--clusters=mpp3*4711*)'
    for name, here, other, state in (
        ("sacct", "echo COMPLETED", "echo FAILED", "completed"),
        ("scontrol", "echo JobState=NODE_FAIL", "echo JobState=RUNNING", "node_fail"),
        ("squeue", "echo CLUSTER: mpp3; echo 'PENDING|Priority'", "echo RUNNING", "queued"),  # the real one names it
    ):
        programs.say(**{name: f"{there} {here};; *) {other};; esac"})
        assert slurm.poll(run).state == state
    slurm.cancel(run)
    assert programs.calls("scancel") == [["--clusters=mpp3", "4711"]]
    programs.say(sbatch="echo '4712;mpp3'")
    assert slurm.submit_after(run, ["true"], over=False) == "4712"
    assert "--clusters=mpp3" in programs.calls("sbatch")[-1]


def test_an_enclosing_jobs_variables_do_not_leak(programs: Programs, cluster: str, harness: Harness) -> None:
    programs.say(sbatch="env >$0.env; echo 4711")
    kept = {"SBATCH_ACCOUNT": "mine", "SLURM_CONF": "/etc/s.conf"}
    lost = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "7", "SRUN_CPUS_PER_TASK": "3"}
    lost |= {"SBATCH_WAIT": "1", "SBATCH_ARRAY_INX": "0-1"}  # the job's run would never begin
    harness("-e", "1", "--site", cluster, **kept, **lost)
    seen = {line.partition("=")[0] for line in (programs.folder / "sbatch.env").read_text().splitlines()}
    assert set(kept) <= seen and not seen & set(lost)


def test_directives_of_the_script_cannot_be_overruled_from_outside(
    programs: Programs, tmp_path: Path, harness: Harness
) -> None:
    """sbatch reads SBATCH_ variables after the script and before its command line, where it neither splits nor unquotes
    what a script's directives have."""
    lines = ["--reservation my_res", '--comment="two words"', "--constraint=a100   # note"]
    site = site_file(tmp_path, device="cpu", gpus={"per_node": 1, "request": "none"}, sbatch=lines)
    done = harness("-e", "1", "--site", site, "-a", "mine", "-p", "gpu", "-q", "q", "--time", "0:10:00",
                   SBATCH_ACCOUNT="theirs", SBATCH_TIMELIMIT="1:00:00",
                   HARNESS_RUNS=str(tmp_path / "50% %j"))  # fmt: skip
    (argv,) = programs.calls("sbatch")
    assert {"--account=mine", "--partition=gpu", "--qos=q", "--time=0:10:00"} <= set(argv)
    at = argv.index("--reservation")
    assert argv[at : at + 4] == ["--reservation", "my_res", "--comment=two words", "--constraint=a100"]
    outputs = [word for word in argv if word.startswith("--output=")]
    assert outputs[-1] == f"--output={tmp_path}/50%% %%j/exercise_1_DDP/logs/slurm-%j.out"
    assert argv[-2].endswith("job.sbatch")
    assert argv[-1] == "submitted", "the job waits for its run's directory, and makes none"
    assert "SBATCH_ACCOUNT=theirs is not used: the job asks for mine" in done.stderr
    assert "SBATCH_TIMELIMIT=1:00:00 is not used" in done.stderr


def test_what_follows_a_run_goes_where_the_site_says_and_takes_none_of_its_gpus(
    programs: Programs, tmp_path: Path
) -> None:
    lines = ["--reservation my_res", "--exclude=node1 # broken", "--gres=gpu:4", "--gres=tmpdir:10g", "--nodes=2",
             "--ntasks-per-socket=1", "--mem=0", "--exclusive", "--gpus-per-task 1"]  # fmt: skip
    run = of_slurm(tmp_path)
    run.write_record(run.record.model_copy(update={"site": load_site(site_file(tmp_path, sbatch=lines))}))
    slurm.submit_after(run, ["true"], over=False)
    (argv,) = programs.calls("sbatch")
    assert argv[1:5] == ["--reservation", "my_res", "--exclude=node1", "--gres=tmpdir:10g"]
    sizes = [w for w in argv[5:] if w.startswith(("--nodes", "--ntasks", "--mem", "--gpus", "--excl"))]
    assert sizes == ["--nodes=1", "--ntasks=1"]


def test_runs_where_slurm_would_write_no_log_are_refused(
    programs: Programs, cluster: str, harness: Harness, tmp_path: Path
) -> None:
    done = harness("-e", "1", "--site", cluster, HARNESS_RUNS=str(tmp_path / "r\\b"))
    assert (done.returncode, "backslash in it: choose another with HARNESS_RUNS" in done.stderr) == (2, True)
    assert not list(tmp_path.glob("r*b"))


COST = "This job will cost at most 12 core hours of project demo."
TIMED_OUT = "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1"
OWN_SCRIPT = (
    'echo 9 /other/job.sbatch | tr " " "|"; echo "4711|$(tail -n 3 "${0%/*}/sbatch.log" | head -n 1) submitted"'
)


@pytest.mark.parametrize(
    "says",
    [
        f"echo 4711; echo '{COST}'", f"echo '{COST}'; echo 4711", "echo Submitted batch job 4711",
        "printf '4711\\r\\n'",
        r"printf '\033[32mSubmitted batch job 4711\033[0m\n'", f"echo 4711; echo '{COST}'; exit 1",
    ],
    ids=["a line behind it", "a line before it", "in words", "CR", "colours", "the wrapper fails behind it"],
)  # fmt: skip
def test_a_job_is_known_by_its_number_whatever_a_sites_sbatch_says_around_it(
    programs: Programs, cluster: str, harness: Harness, says: str
) -> None:
    programs.say(sbatch=says)
    done = harness("-e", "1", "--site", cluster, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["job_id"] == "4711", done.stderr


@pytest.mark.parametrize("says", [TIMED_OUT, "echo Thank you.", "echo 12; echo 4711"], ids=["silence", "words", "two"])
def test_a_job_that_sbatch_does_not_tell_is_looked_for_by_its_name_and_script(
    programs: Programs, cluster: str, harness: Harness, tmp_path: Path, says: str
) -> None:
    programs.say(sbatch=says, squeue=OWN_SCRIPT)
    done = harness("-e", "1", "--site", cluster, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["job_id"] == "4711", done.stderr
    assert "--name=e1-DDP" in programs.calls("squeue")[0]
    programs.say(squeue="echo '9|/other/job.sbatch'")
    done = harness("-e", "1", "--site", cluster)
    assert (done.returncode, "Traceback" in done.stderr, "refused" in done.stderr) == (1, False, False)
    assert "the job may be in the queue: look with squeue --user=" in done.stderr
    assert len([*tmp_path.rglob("run.json")]) == 1, "of the job that was found"


def test_exercise_0_stays_to_show_what_it_measures(programs: Programs, cluster: str, harness: Harness) -> None:
    programs.say(squeue="echo FAILED")
    assert "failed: " in harness("-e", "0", "--site", cluster).stderr
    programs.say(sbatch="echo 4712")
    assert json.loads(harness("-e", "0", "--site", cluster, "--json").stdout)["job_id"] == "4712"


def test_a_full_disk_after_sbatch_cancels_the_job(
    programs: Programs, cluster: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_: object) -> Run:
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(Stage, "publish", full)
    with pytest.raises(WorkError, match=r"job 4711 was cancelled again: .*no space left"):
        submit(Start(prepare(DDP(), load_site(cluster)), ["slurm.sh"]))
    assert programs.calls("scancel") == [["4711"]]
    assert not list((tmp_path / "runs").rglob("*"))


@pytest.mark.parametrize(
    ("squeue", "is_queued"), [("echo RUNNING", True), ("exit 0", False), (FORGOTTEN, False), (UNREACHED, True)]
)
def test_a_task_has_left_the_queue_only_when_squeue_says_so(programs: Programs, squeue: str, is_queued: bool) -> None:
    programs.say(squeue=squeue)
    assert slurm_commands.in_queue(slurm_commands.JobId("4711_3")) == is_queued


def test_without_slurm_commands_the_run_still_knows_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert slurm.poll(of_slurm(tmp_path, state="completed", exit_code=0)).state == "completed"


# --- what sbatch obeys beside the job's own options ----------------------------------------------------------------

NAMED = "from your shell, for sbatch: "
OBEYED = {
    "SBATCH_MEM_PER_NODE": "100M", "SBATCH_CONSTRAINT": "a100", "SBATCH_GPUS": "1", "SBATCH_HINT": "nomultithread",
    "SBATCH_EXCLUSIVE": "1", "SBATCH_RESERVATION": "course", "SBATCH_NEW_IN_2030": "1",
}  # fmt: skip
OVERRULED = {"SBATCH_JOB_NAME": "x", "SBATCH_TIMELIMIT": "1", "SBATCH_SIGNAL": "9", "SBATCH_REQUEUE": "1"}
NO_JOB = {"SBATCH_DEBUG": "1", "SBATCH_WAIT": "1", "SBATCH_ARRAY_INX": "1-2"}


@pytest.mark.parametrize("also", [(), ("--dry-run",)])
def test_a_launch_names_them_in_one_line_and_keeps_them(
    programs: Programs, cluster: str, harness: Harness, tmp_path: Path, also: tuple[str, ...]
) -> None:
    secret = {"SBATCH_EXPORT": "ALL,HF_TOKEN=hf_abcdefghijk"}
    done = harness("-e", "1", "--site", cluster, *also, **OBEYED, **OVERRULED, **NO_JOB, **secret)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith(NAMED)]
    shown = {**OBEYED, "SBATCH_EXPORT": "***"}
    assert line.removeprefix(NAMED).split(", ") == [f"{name}={shown[name]}" for name in sorted(shown)]
    records = list(tmp_path.rglob("run.json"))
    assert [Run(path.parent).record.for_sbatch for path in records] == [shown] * (not also)
    assert "hf_abc" not in "".join([done.stderr, *(path.read_text() for path in records)])


def test_what_the_job_asks_for_itself_counts(machine: Machine) -> None:
    site = load_site("slurm").model_copy(update={"exclusive": True, "memory": "64G", "sbatch": ["-C a100 # ours"]})
    overruled = {"SBATCH_EXCLUSIVE", "SBATCH_MEM_PER_NODE", "SBATCH_CONSTRAINT"}
    assert set(sbatch_variables(OBEYED, resolve(DDP(nodes=1), site, machine))) == set(OBEYED) - overruled
    here = resolve(DDP(nodes=1, gpus_per_node=1), load_site("local"), machine)
    assert sbatch_variables(OBEYED, here) == {}, "nothing is submitted"
    names = ("SBATCH_GPUS_PER_NODE", "SBATCH_CPUS_PER_GPU", "SBATCH_ACCTG_FREQ", "SBATCH_WAIT4SWITCH", "SLURM_CLUSTERS")
    options = ["--gpus-per-node", "--cpus-per-gpu", "--acctg-freq", "--switches", "--clusters"]
    assert [option_of_variable(name) for name in names] == options
    assert for_sbatch(dict.fromkeys(names, "1"), [f"{option}=1" for option in options]) == {}


# --- many runs in one submission -----------------------------------------------------------------------------------


@pytest.fixture
def site(cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path / "a student's runs; $HOME"))
    return load_site(cluster)


def starts(site: Site, *nodes: int) -> list[Start]:
    return [
        Start(prepare(DDP(nodes=n, seed=k), site), ["slurm.sh"], SeriesPart(series="s", point=str(k)))
        for k, n in enumerate(nodes)
    ]


@pytest.mark.parametrize(
    ("way", "between", "words", "log"),
    [
        ("array", "_", ["--time=00:10:00", "--array=0-2%2"], "/logs/slurm-%A_%a.out"),
        ("series", "-", ["--time=00:32:00"], "/logs/slurm-%j.out"),
    ],
)
def test_many_runs_are_one_submission_whose_script_is_as_clean_as_a_runs(
    programs: Programs, site: Site, *, way: Together, between: str, words: list[str], log: str
) -> None:
    runs = submit_together(starts(site, 1, 1, 1), way, at_once=2)
    assert [run.job_id for run in runs] == [f"4711{between}{n}" for n in range(3)]
    assert [run.record.part and run.record.part.point for run in runs] == ["0", "1", "2"]
    assert [run.record.experiment.seed for run in runs] == [0, 1, 2]  # type: ignore[union-attr]  # trainings
    assert all(run.log_dir.is_dir() and run.script.is_file() for run in runs)
    (argv,) = programs.calls("sbatch")
    assert [word for word in argv if word.startswith(("--time=", "--array="))] == words
    assert argv[-2].endswith(log) and argv[-1].endswith(f"/{way}.sbatch") and argv.count("--parsable") == 1
    check = ["shellcheck", "--shell=bash", "--exclude=SC2016", str(runs[0].path / f"{way}.sbatch")]
    assert subprocess.run(check, capture_output=True, text=True, check=False, timeout=limit_s()).stdout == ""


@pytest.mark.parametrize(("way", "between"), [("array", "_"), ("series", "-")])
def test_a_run_that_cannot_be_written_leaves_no_job_and_no_run(
    programs: Programs, site: Site, way: Together, between: str
) -> None:
    asked = starts(site, 1, 1, 1)
    third = asked[2].prepared.job
    taken = Path(third.output_dir) / "profiler" / third.name_for(f"4711{between}2")
    taken.mkdir(parents=True)
    with pytest.raises(WorkError, match=r"job 4711 was cancelled again: .*exists already"):
        submit_together(asked, way)
    assert programs.calls("scancel") == [["4711"]]
    assert list(taken.parent.iterdir()) == [taken]


def test_unlike_resources_do_not_go_together_and_this_machine_has_no_queue(programs: Programs, site: Site) -> None:
    asked = starts(site, 1, 2)
    assert not go_together([start.prepared.job for start in asked])
    with pytest.raises(ValueError, match="different resources"):
        submit_together(asked, "array")
    with pytest.raises(RequestError, match="one after the other"):
        submit_together(starts(load_site("local"), 1), "series")


def test_a_task_that_never_began_is_cancelled_also_where_slurm_forgets_it(programs: Programs, tmp_path: Path) -> None:
    run = of_slurm(tmp_path, "4711_1")
    programs.say(squeue="exit 1", scontrol="exit 1")
    slurm.cancel(run)
    assert programs.calls("scancel") == [["4711_1"]]
    assert slurm.poll(run).state == "cancelled"


@pytest.mark.parametrize(
    ("scripts", "out", "code", "killed"),
    [
        (["echo $HARNESS_JOB_ID", "echo $HARNESS_JOB_ID; exit 3", "echo $HARNESS_JOB_ID"],
         ["4711-0", "4711-1", "4711-2"], 3, [["--signal=KILL", "4711"]]),
        (["trap 'echo warned; exit 0' USR1\nkill -USR1 $PPID\nfor _ in {1..90}; do sleep 0.1; done", "echo second"],
         ["warned"], 0, []),
    ],
    ids=["one fails", "it is stopped"],
)  # fmt: skip
def test_a_series_goes_on_after_a_run_that_failed_and_not_after_it_was_stopped(
    programs: Programs, site: Site, *, scripts: list[str], out: list[str], code: int, killed: list[list[str]]
) -> None:
    """Its script, run by bash as Slurm would, over stand-ins for the runs' own scripts."""
    runs = submit_together(starts(site, *[1] * len(scripts)), "series")
    for run, text in zip(runs, scripts, strict=True):
        run.script.write_text(text)
    env = {**os.environ, "SLURM_JOB_ID": "4711"}
    argv = ["bash", str(runs[0].path / "series.sbatch")]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=limit_s(60))
    assert (done.stdout.split(), done.returncode, programs.calls("scancel")) == (out, code, killed), done.stderr


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_what_is_said_while_a_run_starts_reaches_it(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A run may start, and the batch system may speak, before the new process has its name in the series."""
    ready = tmp_path / "ready"
    (tmp_path / "job.sbatch").write_text(f"""trap 'echo {number.name}; exit 0' {number.name}
        touch {ready}
        for _ in {{1..90}}; do sleep 0.1; done
    """)

    class Started(subprocess.Popen[bytes]):
        def __init__(self, argv: list[str], env: dict[str, str]) -> None:
            super().__init__(argv, env=env)
            wait_until(ready.exists, "the start of the run")
            os.kill(os.getpid(), number)

    handlers = {each: signal.getsignal(each) for each in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)}
    try:
        series = supervise.SupervisedSeries(60, 10)
        monkeypatch.setattr("harness.launch.on_node.supervise.subprocess.Popen", Started)
        assert series.one(tmp_path, "4711-0") == 0
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
    assert capfd.readouterr().out.split() == [number.name]


# --- the allocation of the shell -----------------------------------------------------------------------------------

INSIDE = {"SLURM_JOB_ID": "4711"}
HALF_A_NODE = "NumNodes=1 NumCPUs=16 NodeList=lrdn0001 TRES=cpu=16,mem=1G,node=1,billing=16,gres/gpu=2"
TWO_NODES = "NumNodes=2 NumCPUs=64 NodeList=lrdn[1-2] AllocTRES=cpu=64,node=2,gres/gpu=8,gres/gpu:a100=8"
NO_GPU = "NumNodes=1 NumCPUs=4 NodeList=lrdn0001 TRES=cpu=4,mem=1G,node=1,billing=4"
NO_TRES = "NumNodes=1 NumCPUs=8 NodeList=lrdn0001 TRES=cpu=8,node=1 TresPerNode=gres:gpu:a100:4"
NOT_USED = "not in allocation 4711 of this shell, because {}: a job of its own is submitted"
TOO_SMALL = "--allocation use: allocation 4711 is too small, because {}"


@pytest.fixture
def shell(programs: Programs) -> Iterator[Programs]:
    allocation_of.cache_clear()
    yield programs
    allocation_of.cache_clear()


def leonardo(**changes: object) -> Site:
    return load_site("leonardo").model_copy(update=changes)


@pytest.mark.parametrize(("fields", "gpus"), [(TWO_NODES, 4), (NO_TRES, 4), (HALF_A_NODE, 2), (NO_GPU, None)])
def test_the_gpus_of_a_node_are_read_from_what_each_slurm_prints(
    shell: Programs, fields: str, gpus: int | None
) -> None:
    shell.say(scontrol=f"echo 'JobId=4711 JobState=RUNNING EndTime=2030-01-01T00:00:00 {fields}'")
    found = allocation_of("4711")
    assert found is not None and found.gpus == gpus


def test_a_run_that_fits_uses_it_with_its_cpus_and_gpus(shell: Programs) -> None:
    shell.say(scontrol=f"echo 'JobId=4711 JobState=RUNNING EndTime=2030-01-01T00:00:00 {HALF_A_NODE}'")
    used, where = placed(DDP(), leonardo(), INSIDE)
    assert where == "in allocation 4711 (1 node, 2 GPUs each), without sbatch"
    assert (used.scheduler, used.gpus.per_node, used.cpus_per_node) == (allocation.NAME, 2, 16)
    for alone in (leonardo(allocation="submit"), load_site("local")):
        assert placed(DDP(), alone, INSIDE) == (alone, "")


def test_two_runs_of_one_allocation_meet_at_two_ports(machine: Machine) -> None:
    """Both may run on the same first node at once."""
    inside = load_site("slurm").model_copy(update={"scheduler": allocation.NAME})
    text = script_of(resolve(DDP(nodes=1, gpus_per_node=1), inside, machine))
    (line,) = [line for line in text.splitlines() if "MASTER_PORT=" in line]
    loop = f"for JOB_ID in 31999-{{0..49}}; do {line}\necho $MASTER_PORT; done"
    shell = {"SLURM_JOB_ID": "31999", "MASTER_ADDR": "here"}
    done = subprocess.run(
        ["bash", "-c", loop], env=shell, capture_output=True, text=True, check=True, timeout=limit_s()
    )
    ports = [int(each) for each in done.stdout.split()]
    assert len({*ports}) == 50 and all(20000 <= port < 40000 for port in ports)


@pytest.mark.parametrize(
    ("fields", "asked", "environ", "where", "refused"),
    [
        (HALF_A_NODE, DDP(nodes=2), INSIDE, NOT_USED.format("it has 1 node, and -n asks for 2"),
         TOO_SMALL.format("it has 1 node, and -n asks for 2")),
        (HALF_A_NODE, DDP(gpus_per_node=4), INSIDE, NOT_USED.format("it has 2 GPUs per node, and the run asks for 4"),
         TOO_SMALL.format("it has 2 GPUs per node, and the run asks for 4")),
        (NO_GPU, DDP(), INSIDE, NOT_USED.format("it has 0 GPUs per node, and the run asks for 1"),
         TOO_SMALL.format("it has 0 GPUs per node, and the run asks for 1")),
        (TWO_NODES, DDP(), {}, "", "--allocation use: this shell has none"),
        ("", DDP(), INSIDE, "", "--allocation use: Slurm knows no running job 4711"),
    ],
)  # fmt: skip
def test_a_run_that_does_not_fit_is_submitted_or_refused(
    shell: Programs, *, fields: str, asked: DDP, environ: dict[str, str], where: str, refused: str
) -> None:
    state = "RUNNING" if fields else "COMPLETED"
    shell.say(scontrol=f"echo 'JobId=4711 JobState={state} EndTime=2030-01-01T00:00:00 {fields}'")
    assert placed(asked, leonardo(), environ) == (leonardo(), where)
    with pytest.raises(RequestError) as caught:
        placed(asked, leonardo(allocation="use"), environ)
    assert str(caught.value).startswith(refused)

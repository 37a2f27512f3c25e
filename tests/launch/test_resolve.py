"""A request is resolved for a site and a machine; what they cannot run is refused or warned of."""

from __future__ import annotations

import re
import subprocess

import pytest

from harness.common.errors import RequestError
from harness.experiment.exercises import DDP, Megatron
from harness.launch.backends.registry import backend_of
from harness.launch.job import Machine, resolve, warnings_of
from harness.launch.render import render
from harness.site.site import load_site
from tests.launch.launch_shared import ROOT, SITES, Harness
from tests.waiting import limit_s


@pytest.mark.parametrize(("nodes", "gpus", "threads"), [(1, 1, 8), (1, 2, 4), (2, 2, 2), (4, 4, 1)])
def test_the_nodes_a_machine_plays_share_its_cores(machine: Machine, nodes: int, gpus: int, threads: int) -> None:
    asked = DDP(nodes=nodes, gpus_per_node=gpus)
    env = resolve(asked, load_site("local"), machine._replace(cores=8)).env
    assert env["OMP_NUM_THREADS"] == str(threads)


def test_a_sites_environment_holds_and_keeps_the_checkout(machine: Machine) -> None:
    theirs = {"OMP_NUM_THREADS": "4", "PYTHONPATH": "$WORK/lib", "MY_FLAG": "1"}
    site = load_site("local").model_copy(update={"env": theirs})
    script = render(resolve(DDP(), site, machine))
    exports = script[script.index("export PYTHONPATH") : script.index("# Where the ranks")]
    code = f'WORK=/w\n{exports}\necho $OMP_NUM_THREADS $MY_FLAG; echo "$PYTHONPATH"'
    said = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True, timeout=limit_s()).stdout
    assert said == f"4 1\n{ROOT}:/w/lib\n"


ONLY_NVIDIA = "needs nsys, which records NVIDIA's GPUs only, and site lumi has AMD's: leave it out"


@pytest.mark.parametrize(("asked", "flag"), [
    (DDP(profiler="nsys"), "--profiler nsys"), (DDP(nic_metrics=True), "--nic-metrics"),
    (Megatron(nodes=2, tp=4, pp=2, engine="megatron-lm"), "--engine megatron-lm"),
])  # fmt: skip
def test_what_only_nsys_can_do_is_refused_where_the_gpus_are_amds(
    machine: Machine, asked: DDP | Megatron, flag: str
) -> None:
    with pytest.raises(RequestError, match=re.escape(f"{flag} {ONLY_NVIDIA}")):
        resolve(asked, load_site("lumi"), machine)


def test_each_rank_has_a_report_of_its_own(machine: Machine) -> None:
    job = resolve(DDP(nodes=2, gpus_per_node=2, nsys_per="rank"), load_site("leonardo"), machine)
    names = ("node0_rank0", "node0_rank1", "node1_rank2", "node1_rank3")
    assert job.expects == [f"nsys/profile_{name}.nsys-rep" for name in names]


@pytest.mark.parametrize(
    ("gpus", "resolved"), [(2, ("cuda", "nsys", 2, "llama-3.2-1b")), (0, ("cpu", "torch", 2, "tiny-llama"))]
)
def test_a_machine_runs_the_real_sizes_on_gpus_and_the_tiny_twin_without(
    machine: Machine, gpus: int, resolved: tuple[str, str, int, str]
) -> None:
    job = resolve(DDP(), load_site("local"), machine._replace(gpus=gpus, has_nsys=gpus > 0))
    assert job.model is not None
    assert (job.device, job.profiler, job.experiment.gpus_per_node, job.model.name) == resolved


def test_every_cluster_asks_for_more_cpus_than_its_launcher_needs(machine: Machine) -> None:
    for name in SITES:
        site = load_site(name)
        if not backend_of(site).RUNS_HERE:
            job = resolve(DDP(), site, machine)
            assert (job.cpus_per_task or 1) >= 2 * (job.experiment.gpus_per_node or 1), name


@pytest.mark.parametrize(
    ("words", "warned"),
    [
        ([], True),
        (["-p", "boost_usr_prod"], True),  # the same as in the site file
        (["-p", "lrd_all_serial"], True),  # the QOS stays, and the limit belongs to the QOS
        (["-q", "boost_qos_dbg"], True),
        (["-q", "normal"], False),
    ],
)
def test_the_limit_stays_as_long_as_the_queue_that_sets_it(harness: Harness, words: list[str], warned: bool) -> None:
    done = harness("-n", "4", "-e", "1", "--site", "leonardo", *words, "--dry-run")
    assert ("more nodes than boost_qos_dbg allows (2)" in done.stderr) == warned, done.stderr


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (Megatron(tp=1, pp=3, gpus_per_node=3), "does not divide the 32 layers of mistral-7b"),
        (Megatron(tp=1, pp=4, vpp=3, gpus_per_node=4), "--pp 4 × --vpp 3 = 12 does not divide the 32 layers"),
        (Megatron(tp=3, pp=1, gpus_per_node=3, seq_length=3072), "does not divide the 32 attention heads"),
        (Megatron(tp=4, gpus_per_node=4, seq_length=4095), "--seq-length 4095 is not a multiple of 4"),
        (
            Megatron(tp=1, pp=2, vpp=2, gpus_per_node=2, micro_batch_size=1, global_batch_size=3),
            "needs a multiple of --pp 2 micro-batches per iteration and has 3",
        ),
    ],
)
def test_what_the_model_does_not_allow_is_named(machine: Machine, asked: Megatron, sentence: str) -> None:
    site = load_site("slurm").model_copy(update={"gpus": load_site("aws-p5").gpus})
    with pytest.raises(RequestError, match=re.escape(sentence)):
        resolve(asked, site, machine)


@pytest.mark.parametrize(
    ("asked", "ranks"),
    [
        (Megatron(), 2),
        (Megatron(tp=4), 4),
        (Megatron(nodes=2, tp=4, pp=2), 4),
        (Megatron(tp=1, pp=2), 2),
        (Megatron(pp=3), 3),
    ],
)
def test_a_laptop_starts_as_many_processes_as_the_parallelism_needs(
    machine: Machine, asked: Megatron, ranks: int
) -> None:
    model = "tiny-mistral-deep"  # 24 layers
    job = resolve(asked.model_copy(update={"model": model}), load_site("local"), machine)
    assert job.experiment.gpus_per_node == ranks


BY_CLOCK = {"capture_delay": 200, "capture_duration": 30}
OVER_TWO = Megatron(nodes=2, tp=4, pp=2)


@pytest.mark.parametrize(
    ("asked", "name", "has_nsys", "environ", "profiler", "warned"),
    [
        (DDP(), "leonardo", False, {}, "nsys", ""),
        (DDP(), "slurm", True, {}, "nsys", ""),
        (DDP(profiler="nsys"), "slurm", False, {}, "nsys", ""),
        (DDP(), "slurm", False, {}, "torch", "neither this machine nor the site has nsys"),
        (DDP(), "lumi", False, {"SBATCH_ACCOUNT": "project_1"}, "torch", ""),
        (DDP(nsys2prv=True), "lumi", False, {}, "torch", "site lumi needs an account for each job"),
        (OVER_TWO, "lumi", False, {"SBATCH_ACCOUNT": "project_1"}, "torch", ""),
        (DDP(), "jureca", False, {}, "nsys", "site jureca needs an account for each job, and none is named: add -a"),
        (DDP(), "juwels-booster", False, {}, "nsys", "site juwels-booster needs an account"),
        (DDP(), "jupiter", True, {"SBATCH_ACCOUNT": "mine"}, "nsys", ""),
        (OVER_TWO, "leonardo", False, {}, "nsys", ""),
        (OVER_TWO, "leonardo", False, {"CUDA_LAUNCH_BLOCKING": "1"}, "nsys", "CUDA_LAUNCH_BLOCKING=1"),
        (Megatron(nodes=2, tp=8), "leonardo", False, {}, "nsys", "cross the slow network"),
        (DDP.model_validate(BY_CLOCK), "leonardo", False, {}, "nsys", "make it longer with --steps"),
        (DDP.model_validate(BY_CLOCK | {"steps": 1000}), "leonardo", False, {}, "nsys", ""),
    ],
)
def test_the_profiler_is_the_best_that_is_promised_and_what_is_doubtful_is_warned_of(
    machine: Machine, *, asked: DDP | Megatron, name: str, has_nsys: bool, environ: dict[str, str], profiler: str,
    warned: str,
) -> None:  # fmt: skip
    job = resolve(asked, load_site(name), machine._replace(has_nsys=has_nsys, runs_dir="/shared/runs"))
    said = warnings_of(job, environ)
    assert (job.profiler, len(said)) == (profiler, bool(warned)), said
    assert all(warned in each for each in said)


@pytest.mark.parametrize(
    ("runs", "why"),
    [("/tmp/runs", "lies below /tmp"), ("/dev/shm/x", "lies below /dev/shm"), ("/shared/runs", ""), ("/tmpfiles", "")],
)
def test_a_runs_folder_that_usually_no_node_sees_is_said_before_a_submission(
    machine: Machine, runs: str, why: str
) -> None:
    def said(site: str) -> list[str]:
        job = resolve(DDP(gpus_per_node=1, nodes=1), load_site(site), machine._replace(runs_dir=runs))
        return [each for each in warnings_of(job, {}) if "HARNESS_RUNS" in each]

    wanted = [f"{runs}/exercise_1_DDP {why}, which usually no other machine sees: the nodes write there, too, so let "
              "HARNESS_RUNS name a folder that all of them share"]  # fmt: skip
    assert said("slurm") == wanted * bool(why) and said("local") == []

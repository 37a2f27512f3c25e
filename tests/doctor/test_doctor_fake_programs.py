"""The doctor finds each fault that is planted into a healthy cluster of stand-in programs, and names what mends it.

A real Slurm is asked in tests/slurm/test_slurm_doctor.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from harness.common.errors import RequestError
from harness.doctor.checks import CHECKS, examine
from harness.doctor.surroundings import CourseSize, Level
from tests.doctor.healthy import INSIDE, Cluster, faulty, inside


def test_a_healthy_cluster_has_neither_problem_nor_warning(cluster: Cluster) -> None:
    lines = cluster.lines()
    assert faulty(lines) == []
    assert {line.result.level for line in lines} == {Level.OK}
    assert {line.check for line in lines} == {check.name for check in CHECKS}


def test_a_healthy_cluster_with_pyxis_starts_no_container(cluster: Cluster) -> None:
    started = cluster.folder / "started"
    cluster.plant(**pyxis(f'{OF_PYXIS}echo "$*" >>{started}\n{inside()}'))
    lines = cluster.lines_from_login()
    assert faulty(lines) == []
    assert "srun knows --container-image" in {line.result.found for line in lines}
    assert not started.exists(), "outside of a job, srun would submit one"


def test_a_healthy_cluster_with_amds_gpus_is_not_asked_for_nvidias(cluster: Cluster) -> None:
    del cluster.site["profiler"]
    rocm = {"platform": "ROCm", "built": "7.0.51831", "count": 4, "error": ""}
    amd = {"gpus": {"vendor": "amd", "per_node": 4}}
    lines = cluster.plant({"nsys": None, "apptainer": inside(cuda=rocm)}, site=amd).lines()
    assert faulty(lines) == []
    assert not [line for line in lines if "NVIDIA" in line.result.found or "nsys" in line.result.found]
    (found,) = (line.result for line in lines if line.check == "torch")
    assert (found.what, found.found) == ("PyTorch for ROCm 7.0.51831", "sees 4 GPUs, 4 requested")


class Fault(NamedTuple):
    """A fault, the checks that find it with commas between, and words of a line of theirs and of its remedy."""

    name: str
    plant: dict[str, Any]
    check: str
    level: Level
    says: str
    remedy: str


PROBLEM, WARNING = Level.PROBLEM, Level.WARNING


def programs(**bodies: str | None) -> dict[str, Any]:
    return {"programs": bodies}


def refuses(message: str) -> dict[str, Any]:
    return programs(sbatch=f"echo 'allocation failure: {message}' >&2; exit 1")


OF_PYXIS = "case $* in --help) echo --container-image; exit;; esac\n"


def pyxis(srun: str) -> dict[str, Any]:
    image = {"runtime": "pyxis", "image": "{folder}/training.sqsh"}
    variables = {"SLURMD_NODENAME": "node1"}
    return {
        "programs": {"srun": srun}, "files": {"training.sqsh": "an image"}, "site": {"container": image},
        "variables": variables,
    }  # fmt: skip


def site(**changes: Any) -> dict[str, Any]:
    return {"site": changes}


def variable(**values: str) -> dict[str, Any]:
    return {"variables": values}


def within(**changes: Any) -> dict[str, Any]:
    return programs(apptainer=inside(**changes))


BROKEN_TORCH = INSIDE["modules"] | {"torch": {"error": "OSError: libcudart.so.12: cannot open"}}
NO_DEEPSPEED = INSIDE["modules"] | {"deepspeed": {"error": "is not installed"}}
NO_MEGATRON = INSIDE["modules"] | {"megatron.core": {"error": "is not installed"}}
OLD_DRIVER = {"platform": "CUDA", "built": "13.0", "count": 0, "error": "The NVIDIA driver on your system is too old"}
TWO_GPUS = {"platform": "CUDA", "built": "12.6", "count": 2, "error": ""}

FAULTS = [
    Fault("no sbatch", programs(sbatch=None), "submission", PROBLEM, "sbatch cannot be started", "--dry-run"),
    Fault("the controller does not answer", refuses("Unable to contact slurm controller (connect failure)"),
          "submission", PROBLEM, "Unable to contact slurm controller", "--dry-run"),
    Fault("no such partition", refuses("invalid partition specified: gpus"), "submission", PROBLEM, "gpus", "-p NAME"),
    Fault("a time limit above the partition's", refuses("Requested time limit is invalid (missing or exceeds limit)"),
          "submission", PROBLEM, "time limit", "--time HH:MM:SS"),
    Fault("a partition with fewer nodes", refuses("Requested partition configuration not available now"), "submission",
          PROBLEM, "partition configuration", "-n or -p"),
    Fault("a QOS with a shorter limit", programs(sacctmgr="echo '00:10:00||'"), "qos", PROBLEM, "wait for ever",
          "--time 00:10:00"),
    Fault("a QOS with fewer GPUs", programs(sacctmgr="echo '||gres/gpu=2'"), "qos", PROBLEM, "2 GPUs", "-g 2"),
    Fault("a wrong account", refuses("Invalid account or account/partition combination specified"), "submission",
          PROBLEM, "Invalid account", "sacctmgr show associations"),
    Fault("a wrong QOS", refuses("Invalid qos specification"), "submission", PROBLEM, "Invalid qos", "-q NAME"),
    Fault("GPUs that no node has", refuses("Requested node configuration is not available"), "submission", PROBLEM,
          "node configuration", "sinfo"),
    Fault("a policy", refuses("Job violates accounting/QOS policy (job submit limit)"), "submission", PROBLEM, "policy",
          "maxjobs"),
    Fault("a reservation for others", refuses("Access denied to requested reservation"), "submission", PROBLEM,
          "reservation", "scontrol show reservation"),
    Fault("blocking launches", variable(CUDA_LAUNCH_BLOCKING="1"), "variables", WARNING, "CUDA_LAUNCH_BLOCKING=1",
          "unset CUDA_LAUNCH_BLOCKING"),
    Fault("NCCL writes a trace", variable(NCCL_DEBUG="trace"), "variables", WARNING, "NCCL_DEBUG", "unset NCCL_DEBUG"),
    Fault("torch checks every collective", variable(TORCH_DISTRIBUTED_DEBUG="DETAIL"), "variables", WARNING, "DETAIL",
          "unset TORCH_DISTRIBUTED_DEBUG"),
    Fault("no NVLink", variable(NCCL_P2P_DISABLE="1"), "variables", WARNING, "NVLink", "unset NCCL_P2P_DISABLE"),
    Fault("no InfiniBand, by the site", site(env={"NCCL_IB_DISABLE": "1"}), "variables", WARNING, "InfiniBand",
          "take it out of env:"),
    Fault("Python is sent elsewhere", variable(PYTHONHOME="/opt/other"), "variables", PROBLEM, "standard library",
          "unset PYTHONHOME"),
    Fault("packages hide the container's", site(env={"PYTHONPATH": "/mine"}), "variables", WARNING, "PYTHONPATH=/mine",
          "env:"),
    Fault("a disk that the course fills", {"course": CourseSize(10_000_000, 16)}, "disk", PROBLEM,
          "10000000 students × 16 runs", "du "),
    Fault("no data", site(data="/nowhere/data.json"), "launch", PROBLEM, "/nowhere/data.json does not exist",
          "--dry-run"),
    Fault("no checkpoints", site(models_dir="/nowhere"), "launch", PROBLEM, "add --random-weights", "--dry-run"),
    Fault("no container command", programs(apptainer=None), "container", PROBLEM, "not on PATH",
          "modules: in the site"),
    Fault("no image", {"files": {"training.sif": None}}, "launch", PROBLEM, "does not exist",
          "--dry-run"),
    Fault("no pyxis", pyxis(inside()), "container", PROBLEM, "srun knows no --container-image", "plugstack"),
    Fault("a container that does not start", programs(apptainer="echo FATAL: no fuse >&2; exit 255"), "packages",
          PROBLEM, "FATAL: no fuse", "shows why"),
    Fault("torch that cannot be imported", within(modules=BROKEN_TORCH), "packages", PROBLEM, "libcudart", "build"),
    Fault("no DeepSpeed", within(modules=NO_DEEPSPEED), "packages", WARNING, "exercise 2 cannot train", "build"),
    Fault("no Megatron", within(modules=NO_MEGATRON), "packages", WARNING, "exercise 3 cannot train", "--target"),
    Fault("a driver too old for torch", within(cuda=OLD_DRIVER), "torch", PROBLEM, "too old", "torch_index"),
    Fault("torch for CPUs", within(cuda=OLD_DRIVER | {"built": None, "error": ""}), "torch", PROBLEM, "CPUs only",
          "build"),
    Fault("fewer GPUs than asked for", within(cuda=TWO_GPUS), "torch", PROBLEM, "sees 2 GPUs", "CUDA_VISIBLE_DEVICES"),
    Fault("a container without its GPUs", within(cuda=TWO_GPUS | {"count": 0}), "torch", PROBLEM, "with --nv", "build"),
    Fault("no nsys", programs(nsys=None), "nsys", PROBLEM, "not on PATH", "profiler: torch"),
    Fault("an nsys that does not start", programs(nsys="echo no libz >&2; exit 1"), "nsys", PROBLEM, "no libz",
          "module avail"),
    Fault("options of nsys that are no file", site(nsys="/nowhere.json"), "launch", PROBLEM, "cannot be read",
          "--dry-run"),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_planted_fault_is_found_by_its_checks_alone_and_has_a_remedy(cluster: Cluster, fault: Fault) -> None:
    cluster.plant(**fault.plant)
    found = faulty(cluster.lines())
    assert {line.check for line in found} == set(fault.check.split(", ")), found
    results = [line.result for line in found]
    assert any(fault.says in f"{each.what}: {each.found}" for each in results), results
    assert any(fault.remedy in each.remedy for each in results), results
    assert max(results, key=lambda each: each.level is PROBLEM).level is fault.level
    assert all(each.remedy for each in results)


def test_what_only_a_module_of_the_job_brings_is_not_missed_on_the_login_node(cluster: Cluster) -> None:
    cluster.plant({"apptainer": None, "nsys": None}, site={"modules": ["apptainer", "nsight-systems"]})
    lines = list(examine(cluster.surroundings("login")))
    assert faulty(lines) == []
    unseen = {line.check: line.result.found for line in lines if line.result.level is Level.UNSEEN}
    assert {"container", "nsys", "packages", "torch"} <= unseen.keys()
    assert all("slurm.sh -e 1" in text for text in unseen.values())


def test_a_request_that_the_site_cannot_resolve_is_refused_as_by_a_launch(cluster: Cluster) -> None:
    cluster.plant(site={"defaults": {"gpus_per_node": 8}})
    with pytest.raises(RequestError, match="8"):
        cluster.lines()


def test_a_job_that_waits_for_its_reservation_is_not_called_refused(cluster: Cluster) -> None:
    """Of such a job `--test-only` says that its time is invalid, and sbatch takes it."""
    cluster.plant(**refuses("Invalid time specified"))
    lines = cluster.lines()
    assert faulty(lines) == []
    (found,) = (line.result.found for line in lines if line.check == "submission")
    assert found == "cannot be judged before its reservation begins: scontrol show reservation"


def test_lists_that_sbatch_takes_are_no_problem(cluster: Cluster) -> None:
    """`gpu,short`, and two reservations: scontrol knows neither, and sbatch would take the job."""
    unknown = 'for word; do :; done; echo "$word not found" >&2; exit 1'
    lines = cluster.plant(
        {"scontrol": unknown}, site={"partition": "gpu,short", "sbatch": ["--reservation=r1,r2"]}
    ).lines()
    assert faulty(lines) == []
    (found,) = (line.result.found for line in lines if line.check == "submission")
    assert found.startswith("would be accepted")

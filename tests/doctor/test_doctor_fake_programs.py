"""The doctor finds each fault that is planted into a healthy cluster of stand-in programs, and names what mends it.

A real Slurm is asked in tests/slurm/test_slurm_doctor.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from harness.doctor.surroundings import CourseSize, Level
from tests.doctor.healthy import INSIDE, NSYS_FLAGS, PARTITION, RESERVATION, Cluster, faulty, inside, nsys, scontrol


def test_a_healthy_cluster_has_neither_problem_nor_warning(cluster: Cluster) -> None:
    lines = cluster.lines()
    assert faulty(lines) == []
    assert {line.result.level for line in lines} == {Level.OK}
    assert len({line.check for line in lines}) >= 25


def test_a_healthy_cluster_with_pyxis_starts_its_container_from_nodes_only(cluster: Cluster) -> None:
    started = cluster.folder / "started"
    pyxis(f'{OF_PYXIS}echo "$*" >>{started}\n{inside()}')(cluster)
    lines = cluster.lines()
    assert faulty(lines) == []
    assert all("--nodelist=node1" in step for step in started.read_text().splitlines())
    assert "srun knows --container-image" in {line.result.found for line in lines}
    started.unlink()
    list(cluster.lines_from_login())
    assert not started.exists(), "outside of a job, srun would submit one"


def of_amd(c: Cluster) -> None:
    del c.site["profiler"]
    c.site["gpus"] = {**c.site.get("gpus", {}), "vendor": "amd", "per_node": 4}


def with_amds_gpus(c: Cluster, gpus: int = 4, **cuda: Any) -> None:
    """Nothing of NVIDIA's is there; AMD's driver lists a CPU and the GPUs."""
    of_amd(c)
    for name in ("nsys", "nsys2prv"):
        c.without_program(name)
    (c.folder / "system/proc/driver/nvidia/version").unlink()
    for node in range(gpus + 1):
        c.file(f"system/sys/class/kfd/kfd/topology/nodes/{node}/gpu_id", "0" if node == 0 else str(50000 + node))
    rocm = {"platform": "ROCm", "built": "7.0.51831", "count": gpus, "error": ""}
    c.program("apptainer", inside(cuda=rocm | cuda))


def test_a_healthy_cluster_with_amds_gpus_is_not_asked_for_nvidias(cluster: Cluster) -> None:
    with_amds_gpus(cluster)
    lines = cluster.lines()
    assert faulty(lines) == []
    assert not [line for line in lines if "NVIDIA" in line.result.found or "nsys" in line.result.found]
    assert {"AMD driver shows 4 GPUs, 4 requested", "PyTorch for ROCm 7.0.51831 uses 4 GPUs"} <= {
        f"{line.result.what} {line.result.found}" for line in lines
    }


@pytest.mark.parametrize(("gpus", "cuda", "says"), [
    (0, {}, "AMD driver shows 0 GPUs, but a run asks for 4"),
    (4, {"count": 0}, "PyTorch for ROCm 7.0.51831 sees no GPU: check that the container sees /dev/kfd"),
])  # fmt: skip
def test_what_amds_gpus_lack_is_said(cluster: Cluster, gpus: int, cuda: dict[str, int], says: str) -> None:
    with_amds_gpus(cluster, gpus, **cuda)
    assert says in {f"{line.result.what} {line.result.found}" for line in cluster.lines()}


def test_a_node_without_amds_driver_is_said(cluster: Cluster) -> None:
    of_amd(cluster)
    assert ("AMD driver", "there is none on this node") in {
        (line.result.what, line.result.found) for line in cluster.lines()
    }


class Fault(NamedTuple):
    """A fault, the check that finds it, and words of its line and of its remedy."""

    name: str
    plant: Callable[[Cluster], object]
    check: str
    level: Level
    says: str
    remedy: str


PROBLEM, WARNING = Level.PROBLEM, Level.WARNING


def refuses(message: str) -> Callable[[Cluster], object]:
    return lambda c: c.program("sbatch", f"echo 'allocation failure: {message}' >&2; exit 1")


def says(name: str, body: str) -> Callable[[Cluster], object]:
    return lambda c: c.program(name, body)


WITHOUT_NSYS = "case $* in *nsys*) echo no nsys >&2; exit 2;; esac\n"
OF_PYXIS = "case $* in --help) echo --container-image; exit;; esac\n"


def pyxis(srun: str) -> Callable[[Cluster], object]:
    def plant(c: Cluster) -> None:
        c.file("training.sqsh", "an image")
        c.site["container"] = {"runtime": "pyxis", "image": f"{c.folder}/training.sqsh"}
        c.variables(SLURMD_NODENAME="node1")
        c.program("srun", srun)

    return plant


def site(**changes: Any) -> Callable[[Cluster], object]:
    return lambda c: c.site.update(changes)


def variable(**values: str) -> Callable[[Cluster], object]:
    return lambda c: c.variables(**values)


def within(**changes: Any) -> Callable[[Cluster], object]:
    return lambda c: c.program("apptainer", inside(**changes))


def system(name: str, text: str) -> Callable[[Cluster], object]:
    return lambda c: c.file(f"system/{name}", text)


def without(name: str) -> Callable[[Cluster], object]:
    return lambda c: c.without_program(name)


def other_partition(cluster: Cluster) -> None:
    cluster.site["partition"] = "gpus"
    cluster.program("scontrol", scontrol("echo 'Partition gpus not found' >&2; exit 1"))


BROKEN_TORCH = INSIDE["modules"] | {"torch": {"error": "OSError: libcudart.so.12: cannot open"}}
NO_DEEPSPEED = INSIDE["modules"] | {"deepspeed": {"error": "is not installed"}}
NO_MEGATRON = INSIDE["modules"] | {"megatron.core": {"error": "is not installed"}}
OUTSIDE = INSIDE["modules"] | {"accelerate": {"version": "0.1", "outside": "/home/anna/.local/lib"}}
OLD_DRIVER = {"platform": "CUDA", "built": "13.0", "count": 0, "error": "The NVIDIA driver on your system is too old"}
NO_SAMPLE = [flag for flag in NSYS_FLAGS if flag != "cudabacktrace"]

FAULTS = [
    Fault("no sbatch", without("sbatch"), "commands", PROBLEM, "not on PATH: sbatch", "--site local"),
    Fault("no sacct", without("sacct"), "commands", WARNING, "not on PATH", "module avail"),
    Fault("the controller is down", says("scontrol", scontrol(ping="is DOWN")), "controller", PROBLEM, "DOWN",
          "scontrol"),
    Fault("the controller does not answer", says("scontrol", "echo no route >&2; exit 1"), "controller", PROBLEM,
          "no route", "scontrol ping"),
    Fault("no such partition", other_partition, "partition", PROBLEM,
          "gpus not found", "did you mean gpu?"),
    Fault("a partition that is down", says("scontrol", scontrol(PARTITION.replace("UP", "DOWN"))), "partition", PROBLEM,
          "is DOWN", "sinfo"),
    Fault("a time limit above the partition's", site(time="2-00:00:00"), "partition", PROBLEM,
          "limits a job to 1-00:00:00, but the site asks for 2-00:00:00", "--time 1-00:00:00"),
    Fault("every node is down", says("sinfo", "echo 'down* 4'"), "nodes", PROBLEM, "4 down*: 0 work", "--list-reasons"),
    Fault("a QOS with a shorter limit", says("sacctmgr", "echo '00:10:00||'"), "qos", PROBLEM, "wait for ever",
          "--time 00:10:00"),
    Fault("a QOS with fewer GPUs", says("sacctmgr", "echo '||gres/gpu=2'"), "qos", PROBLEM, "2 GPUs", "-g 2"),
    Fault("a wrong account", refuses("Invalid account or account/partition combination specified"), "submission",
          PROBLEM, "Invalid account", "sacctmgr show associations"),
    Fault("a wrong QOS", refuses("Invalid qos specification"), "submission", PROBLEM, "Invalid qos", "-q NAME"),
    Fault("GPUs that no node has", refuses("Requested node configuration is not available"), "submission", PROBLEM,
          "node configuration", "sinfo"),
    Fault("a policy", refuses("Job violates accounting/QOS policy (job submit limit)"), "submission", PROBLEM, "policy",
          "maxjobs"),
    Fault("no such reservation", says("scontrol", scontrol(reservation="echo 'not found' >&2; exit 1")), "reservation",
          PROBLEM, "no reservation of that name", "scontrol show reservation"),
    Fault("a reservation for others", says("scontrol", scontrol(reservation=RESERVATION.replace("anna", "bert"))),
          "reservation", PROBLEM, "is for bert, and you are anna", "users+=anna"),
    Fault("a reservation that is over", says("scontrol", scontrol(reservation=RESERVATION.replace("2099", "2021"))),
          "reservation", PROBLEM, "ended at 2021", "scontrol show reservation"),
    Fault("a reservation of tomorrow",
          says("scontrol", scontrol(reservation=RESERVATION.replace("2020", "2098").replace("ACTIVE", "INACTIVE"))),
          "reservation", WARNING, "begins at 2098", "doctor"),
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
    Fault("too many threads", site(env={"OMP_NUM_THREADS": "32"}), "variables", WARNING, "4 ranks × 32 threads",
          "OMP_NUM_THREADS"),
    Fault("sbatch reads another account", variable(SBATCH_ACCOUNT="other"), "variables", WARNING, "is not used",
          "unset SBATCH_ACCOUNT"),
    Fault("sbatch reads a further option", variable(SBATCH_EXCLUSIVE="1"), "variables", WARNING, "every job",
          "unset SBATCH_EXCLUSIVE"),
    Fault("runs where nobody may write", variable(HARNESS_RUNS="/proc/runs"), "runs folder", PROBLEM,
          "cannot be written", "HARNESS_RUNS="),
    Fault("a disk that the course fills", lambda c: setattr(c, "course", CourseSize(10_000_000, 16)), "disk", PROBLEM,
          "10000000 students × 16 runs", "du "),
    Fault("a full quota", says("quota", "echo ' / 999 0 1000 - 5 0 0 -'"), "quota", PROBLEM, "too little", "du "),
    Fault("a quota of files", says("quota", "echo ' / 9 0 0 - 99 0 100 -'"), "quota", PROBLEM, "99 files of 100",
          "du "),
    Fault("no data", site(data="/nowhere/data.json"), "inputs", PROBLEM, "/nowhere/data.json does not exist", "data:"),
    Fault("empty data", lambda c: c.file("data/alpaca.json", ""), "inputs", PROBLEM, "is empty", "data:"),
    Fault("no checkpoints", site(models_dir="/nowhere"), "inputs", PROBLEM, "Llama-3.2-1B does not exist",
          "--random-weights"),
    Fault("no container command", without("apptainer"), "container", PROBLEM, "not on PATH", "modules: in the site"),
    Fault("no image", lambda c: (c.folder / "training.sif").unlink(), "container", PROBLEM, "does not exist",
          "apptainer build"),
    Fault("an empty image", lambda c: c.file("training.sif", ""), "container", PROBLEM, "empty", "apptainer build"),
    Fault("no pyxis", pyxis(inside()), "container", PROBLEM, "srun knows no --container-image", "plugstack"),
    Fault("no nsys in pyxis's image", pyxis(OF_PYXIS + WITHOUT_NSYS + inside()), "nsys", PROBLEM, "no nsys",
          "containers/README.md"),
    Fault("a container that does not start", says("apptainer", "echo FATAL: no fuse >&2; exit 255"), "packages",
          PROBLEM, "FATAL: no fuse", "shows why"),
    Fault("torch that cannot be imported", within(modules=BROKEN_TORCH), "packages", PROBLEM, "libcudart", "build"),
    Fault("no DeepSpeed", within(modules=NO_DEEPSPEED), "packages", WARNING, "exercise 2 cannot train", "build"),
    Fault("no Megatron", within(modules=NO_MEGATRON), "packages", WARNING, "exercise 3 cannot train", "--target"),
    Fault("packages of one's own", within(modules=OUTSIDE), "packages", WARNING, "/home/anna/.local",
          "PYTHONNOUSERSITE"),
    Fault("a driver too old for torch", within(cuda=OLD_DRIVER), "torch", PROBLEM, "too old", "torch_index"),
    Fault("torch for CPUs", within(cuda=OLD_DRIVER | {"built": None, "error": ""}), "torch", PROBLEM, "CPUs only",
          "build"),
    Fault("little shared memory", within(shared_memory={"total_bytes": 64 << 20, "free_bytes": 64 << 20}),
          "shared memory", WARNING, "67.1 MB", "shm"),
    Fault("fewer GPUs than asked for", variable(CUDA_VISIBLE_DEVICES="0"), "gpus", PROBLEM, "1 GPUs are visible",
          "CUDA_VISIBLE_DEVICES"),
    Fault("no driver", lambda c: (c.folder / "system/proc/driver/nvidia/version").unlink(), "gpus", PROBLEM, "none",
          "nvidia-smi"),
    Fault("no such interface", site(network={"interface": "ib7"}), "interface", PROBLEM, "no such interface", "ip "),
    Fault("a busy node", system("proc/loadavg", "31.5 9 9 1/1 1"), "load", WARNING, "31.5 processes", "top"),
    Fault("no temporary folder", variable(TMPDIR="/nowhere"), "temporary", PROBLEM, "cannot be used", "TMPDIR=/tmp"),
    Fault("an nsys that lacks an option", says("nsys", nsys(flags=NO_SAMPLE)), "nsys", WARNING, "no --cudabacktrace",
          "module avail"),
    Fault("options of nsys that are no file", site(nsys="/nowhere.json"), "nsys", PROBLEM, "cannot be read", "nsys:"),
    Fault("counters for root only", system("proc/driver/nvidia/params", "RmProfilingAdminOnly: 1"), "gpu metrics",
          WARNING, "ERR_NVGPUCTRPERM", "NVreg_RestrictProfilingToAdminUsers=0"),
    Fault("counters that another holds", says("nsys", nsys(metrics="Some GPUs are not supported: in use by DCGM")),
          "gpu metrics", WARNING, "in use by DCGM", "a newer nsys"),
    Fault("no samples of the CPU", system("proc/sys/kernel/perf_event_paranoid", "4"), "cpu samples", WARNING, "is 4",
          "sysctl"),
    Fault("no nsys2prv", without("nsys2prv"), "nsys2prv", WARNING, "not on PATH", "pip install nsys2prv"),
    Fault("an nsys too old for nsys2prv", says("nsys", nsys("2022.4.2")), "nsys2prv", WARNING, "2022.4.2", "module"),
    Fault("a clock that nothing keeps", says("chronyc", "echo 'Leap status     : Not synchronised'"), "time service",
          WARNING, "not synchronised", "timedatectl"),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_planted_fault_is_found_by_its_check_alone_and_has_a_remedy(cluster: Cluster, fault: Fault) -> None:
    fault.plant(cluster)
    found = faulty(cluster.lines())
    assert {line.check for line in found} == {fault.check}, found
    results = [line.result for line in found]
    assert any(fault.says in f"{each.what}: {each.found}" for each in results), results
    assert any(fault.remedy in each.remedy for each in results), results
    assert max(results, key=lambda each: each.level is PROBLEM).level is fault.level
    assert all(each.remedy for each in results)


def test_without_nsys_the_site_cannot_record(cluster: Cluster) -> None:
    cluster.without_program("nsys")
    found = faulty(cluster.lines())
    assert {(line.check, line.result.level) for line in found} == {("nsys", PROBLEM), ("nsys2prv", WARNING)}


def test_what_only_a_module_of_the_job_brings_is_not_missed_on_the_login_node(cluster: Cluster) -> None:
    from harness.doctor.checks import examine

    cluster.site["modules"] = ["apptainer", "nsight-systems"]
    for name in ("apptainer", "nsys"):
        cluster.without_program(name)
    lines = list(examine(cluster.surroundings("login")))
    assert [line for line in faulty(lines) if line.check != "nsys2prv"] == []
    unseen = {line.check: line.result.found for line in lines if line.result.level is Level.UNSEEN}
    assert {"container", "nsys", "packages", "gpus", "meeting"} <= unseen.keys()
    assert all("slurm.sh doctor --in-job" in text for text in unseen.values())


def test_a_request_that_the_site_cannot_resolve_is_a_problem(cluster: Cluster) -> None:
    cluster.site["defaults"] = {"gpus_per_node": 8}
    found = faulty(cluster.lines())
    assert [line.check for line in found] == ["request"]
    assert "8" in found[0].result.found


def test_a_job_that_waits_for_its_reservation_is_not_called_refused(cluster: Cluster) -> None:
    """Of such a job `--test-only` says that its time is invalid, and sbatch takes it."""
    refuses("Invalid time specified")(cluster)
    lines = cluster.lines()
    assert faulty(lines) == []
    assert any(line.check == "submission" and "before reservation course begins" in line.result.found for line in lines)


def test_where_only_the_other_runtime_is_it_starts_the_container(cluster: Cluster) -> None:
    body = (cluster.folder / "bin" / "apptainer").read_text()
    cluster.without_program("apptainer")
    assert {line.check for line in faulty(cluster.lines())} == {"container"}
    cluster.program("singularity", body.partition("\n")[2])
    assert faulty(cluster.lines()) == []

"""The node itself: its cores and their load, memory that processes share, the network interface. Measures no speed."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping

from harness.doctor.container import asked_inside, inside_of
from harness.doctor.result import Result, ok, problem, warning
from harness.doctor.surroundings import Surroundings
from harness.format.format import amount
from harness.monitor.cores import usable_cores

LITTLE_SHARED_BYTES = 1 << 30  # NCCL and the DataLoader's workers of eight ranks


def cores(around: Surroundings) -> Iterator[Result]:
    """The cores that this process may use."""
    job = around.job
    if job is None:
        return
    mine, ranks = usable_cores(), job.experiment.gpus_per_node or 1
    yield cores_verdict(mine, ranks, job.cpus_per_task if around.place == "node" else None)


def load(around: Surroundings) -> Iterator[Result]:
    """How busy the machine was before the doctor came."""
    words = (around.read("proc/loadavg") or "").split()
    everywhere = (around.read("proc/cpuinfo") or "").count("processor\t") or usable_cores()
    if words:
        yield load_verdict(float(words[0]), everywhere)


def cores_verdict(mine: int, ranks: int, asked: int | None) -> Result:
    """Whether each rank has a core. asked: the CPUs per node that the job asked for."""
    if mine < ranks:
        fewer = f"bash slurm.sh -e 1 -g {mine}   # or cpus_per_gpu in the site file"
        return warning("cores", f"{mine} for {ranks} ranks: several ranks share a core", fewer)
    if asked is not None and mine < asked:
        why = f"{mine} may be used, but the job asked for {asked}"
        return warning("cores", why, "srun --cpu-bind=none nproc   # then exclusive: true in the site file")
    return ok("cores", f"{mine} may be used, for {ranks} rank{'s' * (ranks > 1)}")


def load_verdict(busy: float, everywhere: int) -> Result:
    """Whether the machine is quiet enough to measure on. busy: processes that want a core, mean of a minute."""
    found = f"{busy:g} processes competed for {everywhere} cores (mean of the last minute)"
    if busy > 0.5 * everywhere:
        return warning(
            "load",
            f"{found}: while others compute, measured times are doubtful",
            "top -b -n 1 | head -n 15",
        )
    return ok("load", found)


def shared_memory(around: Surroundings) -> Iterator[Result]:
    """/dev/shm as the training sees it, through which the ranks of a node exchange data."""
    found = inside_of(asked_inside(around, around.job)) if around.job else None
    if found is not None and found["shared_memory"]:
        yield shared_memory_verdict(found["shared_memory"])


def shared_memory_verdict(shared: Mapping[str, int]) -> Result:
    """Whether the ranks and the DataLoader's workers have room. Bytes, free and in all."""
    free = shared["free_bytes"]
    found = f"{amount(free)} of {amount(shared['total_bytes'])} are free"
    if free < LITTLE_SHARED_BYTES:
        remedy = "ls -lhS /dev/shm | head   # delete what is yours; a container: --bind /dev/shm, docker: --shm-size=8g"
        return warning(
            "/dev/shm", f"{found}: NCCL and the DataLoader's workers may end with a bus error", remedy
        )
    return ok("/dev/shm", found)


def interface(around: Surroundings) -> Iterator[Result]:
    """The network interface that the site names."""
    name = around.site.network.interface
    if name is not None:
        there = [each for _, each in socket.if_nameindex()]
        yield interface_verdict(name, there, around.read(f"sys/class/net/{name}/operstate"))


def interface_verdict(name: str, there: list[str], state: str | None) -> Result:
    """Whether the interface is there and up. NCCL takes the name as a beginning, gloo as a whole."""
    what = f"network.interface {name}"
    remedy = f"ip -brief address   # on the node; then network.interface in the site file: {', '.join(there)}"
    if name not in there:
        begun = [each for each in there if each.startswith(name)]
        why = (
            f"no such interface; NCCL takes {begun[0]}, gloo finds none"
            if begun
            else "there is no such interface"
        )
        return problem(what, why, remedy)
    if state == "down":
        return problem(what, "is down", remedy)
    return ok(what, f"is {state or 'there'}")

"""The node itself: cores, shared memory, network interface, GPUs and driver, and whether it reaches the first node.
Measures no speed.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import takewhile

from harness.common.display.format import amount
from harness.common.paths import COMMAND, README_OF_IMAGES
from harness.common.system.programs import usable_cores
from harness.doctor.container import asked_inside, inside_of
from harness.doctor.surroundings import CheckResult, Surroundings, ok, problem, warning
from harness.site.detection import visible_gpus

LITTLE_SHARED_BYTES = 1 << 30  # NCCL and the DataLoader's workers of eight ranks
SHOW = "nvidia-smi   # on the node; then the administrators"
SHOW_AMD = "rocm-smi   # on the node; then the administrators"
_MOST_KFD_NODES = 256  # CPUs and GPUs
_DOES_IT = {"ROCm": "check that the container sees /dev/kfd", "CUDA": "check that the container is started with --nv"}
MEETING_S = 25.0  # the nodes' Pythons start seconds apart on a cold file system


def cores(around: Surroundings) -> CheckResult:
    """The cores that this process may use, and whether each rank has one."""
    job = around.job
    mine, ranks = usable_cores(), job.experiment.gpus_per_node or 1
    asked = job.cpus_per_task if around.node_kind == "node" else None
    if mine < ranks:
        fewer = f"{COMMAND} -e 1 -g {mine}   # or cpus_per_gpu in the site file"
        return warning("cores", f"{mine} for {ranks} ranks: several ranks share a core", fewer)
    if asked is not None and mine < asked:
        why = f"{mine} may be used, but the job asked for {asked}"
        return warning("cores", why, "srun --cpu-bind=none nproc   # then exclusive: true in the site file")
    return ok("cores", f"{mine} may be used, for {ranks} rank{'s' * (ranks > 1)}")


def shared_memory(around: Surroundings) -> CheckResult | None:
    """/dev/shm as the training sees it, through which the ranks of a node exchange data."""
    inside = inside_of(asked_inside(around, around.job))
    if inside is None or not inside["shared_memory"]:
        return None
    free = inside["shared_memory"]["free_bytes"]
    found = f"{amount(free)} of {amount(inside['shared_memory']['total_bytes'])} are free"
    if free < LITTLE_SHARED_BYTES:
        remedy = "ls -lhS /dev/shm | head   # delete what is yours; a container: --bind /dev/shm, docker: --shm-size=8g"
        return warning("/dev/shm", f"{found}: NCCL and the DataLoader's workers may end with a bus error", remedy)
    return ok("/dev/shm", found)


def interface(around: Surroundings) -> CheckResult | None:
    """Whether the network interface that the site names is there and up. NCCL takes the name as a beginning, gloo as a
    whole."""
    name = around.site.network.interface
    if name is None:
        return None
    there, state = [each for _, each in socket.if_nameindex()], around.read(f"sys/class/net/{name}/operstate")
    what = f"network.interface {name}"
    remedy = f"ip -brief address   # on the node; then network.interface in the site file: {', '.join(there)}"
    if name not in there:
        begun = [each for each in there if each.startswith(name)]
        why = f"no such interface; NCCL takes {begun[0]}, gloo finds none" if begun else "there is no such interface"
        return problem(what, why, remedy)
    if state == "down":
        return problem(what, "is down", remedy)
    return ok(what, f"is {state or 'there'}")


def gpus(around: Surroundings) -> CheckResult:
    """Whether there are a driver and enough GPUs that this process may use."""
    wanted = around.job.experiment.gpus_per_node or 1
    if around.site.gpus.vendor == "amd":
        return _amd_gpus(around, wanted)
    version_text, visible = around.read("proc/driver/nvidia/version"), len(visible_gpus(around.environ))
    if version_text is None:
        return problem("NVIDIA driver", "there is none on this node", SHOW)
    found = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", version_text)
    what = f"NVIDIA driver {found[1] if found else 'of unknown version'}"
    if visible < wanted:
        ask = "sinfo -o '%P %G %D'   # then gpus: in the site file, or unset CUDA_VISIBLE_DEVICES"
        return problem(what, f"{visible} GPUs are visible, but a run asks for {wanted}", ask)
    return ok(what, f"{visible} GPUs are visible, {wanted} requested")


def _amd_gpus(around: Surroundings, wanted: int) -> CheckResult:
    """The same of AMD's driver, which lists CPUs and GPUs together."""
    folder = "sys/class/kfd/kfd/topology/nodes"
    texts = (around.read(f"{folder}/{node}/gpu_id") for node in range(_MOST_KFD_NODES))
    listed = list(takewhile(lambda text: text is not None, texts))
    if not listed:
        return problem("AMD driver", "there is none on this node", SHOW_AMD)
    visible = sum(text != "0" for text in listed)
    if visible < wanted:
        ask = "sinfo -o '%P %G %D'   # then gpus: in the site file"
        return problem("AMD driver", f"shows {visible} GPUs, but a run asks for {wanted}", ask)
    return ok("AMD driver", f"shows {visible} GPUs, {wanted} requested")


def torch_and_driver(around: Surroundings) -> CheckResult | None:
    """Whether PyTorch's CUDA or ROCm works with the driver, from what inside.py says of it."""
    inside = inside_of(asked_inside(around, around.job))
    if inside is None or inside["cuda"] is None:
        return None
    cuda = inside["cuda"]
    what = f"PyTorch for {cuda['platform']} {cuda['built']}"
    older = "apptainer build --build-arg torch_index=… training.sif containers/training.def   # "
    older += README_OF_IMAGES
    if not cuda["built"]:
        return problem("PyTorch", "was built for CPUs only, and this node has GPUs", older)
    if cuda["error"] or not cuda["count"]:
        return problem(what, cuda["error"] or f"sees no GPU: {_DOES_IT[cuda['platform']]}", older)
    return ok(what, f"uses {cuda['count']} GPUs")


def meeting(around: Surroundings) -> Iterator[CheckResult]:
    """The first node waits for the others at the training's own address, and each other one looks for it there."""
    environ = around.environ
    if around.nodes < 2 or "MASTER_ADDR" not in environ:
        return
    host, port = environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
    if environ.get("SLURM_NODEID") == "0":
        yield reached_verdict(f"{host}:{port}", serve(port, around.nodes - 1, MEETING_S), around.nodes - 1)
        return
    try:
        connect(host, port, MEETING_S)
    except OSError as error:
        why = f"cannot be reached from this node ({error.strerror or error}): no training on several nodes can start"
        remedy = f"getent hosts {host} && ip -brief address   # then network: in the site file"
        yield problem(f"first node at {host}:{port}", why, remedy)
    else:
        yield ok(f"first node at {host}:{port}", "is reached")


def reached_verdict(where: str, came: int, expected: int) -> CheckResult:
    if came < expected:
        remedy = "ip -brief address   # on the nodes; then network.interface and network.host_suffix in the site file"
        return problem(where, f"{came} of {expected} other nodes reached it", remedy)
    return ok(where, "is reached by all other nodes")


def serve(port: int, expected: int, limit_s: float) -> int:
    """Wait for this many others; returns how many came within the limit."""
    came, end_s = 0, time.monotonic() + limit_s
    with socket.create_server(("", port)) as server:
        while came < expected and (left_s := end_s - time.monotonic()) > 0:
            server.settimeout(left_s)
            with suppress(TimeoutError):
                link, _ = server.accept()
                link.close()
                came += 1
    return came


def connect(host: str, port: int, limit_s: float) -> None:
    """Reach the first node. Raises OSError: nobody answers there within the limit."""
    end_s = time.monotonic() + limit_s
    while True:
        try:
            socket.create_connection((host, port), timeout=5).close()
        except OSError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.1)
        else:
            return

"""The node itself: its network interface, its GPUs as PyTorch sees them, and whether it reaches the first node.
Measures no speed."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress

from harness.common.paths import README_OF_IMAGES
from harness.doctor.container import asked_inside, inside_of
from harness.doctor.surroundings import CheckResult, Surroundings, ok, problem

_DOES_IT = {"ROCm": "check that the container sees /dev/kfd", "CUDA": "check that the container is started with --nv"}
MEETING_S = 25.0  # the nodes' Pythons start seconds apart on a cold file system


def interface(around: Surroundings) -> CheckResult | None:
    """Whether the network interface that the site names is there and up."""
    name = around.site.network.interface
    if name is None:
        return None
    there, state = [each for _, each in socket.if_nameindex()], around.read(f"sys/class/net/{name}/operstate")
    what = f"network.interface {name}"
    remedy = f"ip -brief address   # on the node; then network.interface in the site file: {', '.join(there)}"
    if name not in there:
        return problem(what, "there is no such interface", remedy)
    if state == "down":
        return problem(what, "is down", remedy)
    return ok(what, f"is {state or 'there'}")


def torch_and_driver(around: Surroundings) -> CheckResult | None:
    """Whether PyTorch's CUDA or ROCm works with the driver, and sees as many GPUs as a run asks for."""
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
    wanted = around.job.experiment.gpus_per_node or 1
    if cuda["count"] < wanted:
        ask = "sinfo -o '%P %G %D'   # then gpus: in the site file, or unset CUDA_VISIBLE_DEVICES"
        return problem(what, f"sees {cuda['count']} GPUs, but a run asks for {wanted}", ask)
    return ok(what, f"sees {cuda['count']} GPUs, {wanted} requested")


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

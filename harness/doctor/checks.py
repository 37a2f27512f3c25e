"""The list of checks: each one function, with its name and from where it can look. Prints nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

from harness.common.paths import COMMAND
from harness.doctor import container, files, machine, slurm, surroundings
from harness.doctor.surroundings import IN_JOB, NOT_FROM_LOGIN, CheckLine, CheckResult, Surroundings, problem, unseen


class Check(NamedTuple):
    """The subject of a check, and its place: the login node, a compute node, or both. A machine that is both does all.

    `concerns`: whether it matters at this site.
    """

    name: str
    where: Literal["login", "node", "both"]
    look: Callable[[Surroundings], Iterable[CheckResult] | CheckResult | None]
    concerns: Callable[[Surroundings], bool] = lambda _: True


def _on_slurm(around: Surroundings) -> bool:
    return around.uses_slurm


def _on_gpus(around: Surroundings) -> bool:
    return around.uses_gpus


def _own(around: Surroundings) -> bool:
    return around.training is not None


def _nvidia(around: Surroundings) -> bool:
    return around.site.gpus.vendor == "nvidia"


def _with_nsys(around: Surroundings) -> bool:
    return around.job is not None and around.job.profiler == "nsys"


def _request(around: Surroundings) -> Iterator[CheckResult]:
    what, launch = (
        ("exercise 1", "-e 1 --dry-run") if around.training is None else ("your training", "run --dry-run -- …")
    )
    for sentence in around.refusals:
        yield problem(f"{what} at {around.site.name}", sentence, f"{COMMAND} {launch}   # the same refusal")


CHECKS = (
    # First, as the nodes of a job meet there.
    Check("meeting", "node", machine.meeting, _on_slurm),
    Check("python", "both", container.python),
    Check("request", "login", _request),
    Check("commands", "login", slurm.commands, _on_slurm),
    Check("controller", "login", slurm.controller, _on_slurm),
    Check("partition", "login", slurm.partition, slurm.answers),
    Check("nodes", "login", slurm.nodes, slurm.answers),
    Check("reservation", "login", slurm.reservation, slurm.answers),
    Check("qos", "login", slurm.qos, slurm.answers),
    Check("submission", "login", slurm.submission, slurm.answers),
    Check("variables", "both", files.variables),
    Check("runs folder", "both", files.runs_folder),
    Check("disk", "login", files.disk),
    Check("quota", "login", files.quota),
    Check("inputs", "both", files.inputs, lambda around: around.training is None),
    Check("script", "both", surroundings.script, _own),
    Check("training", "both", surroundings.training_python, _own),
    Check("data", "both", surroundings.data, _own),
    Check("container", "both", container.container),
    Check("load", "node", machine.load),
    Check("cores", "node", machine.cores),
    Check("packages", "both", container.packages),
    Check("shared memory", "node", machine.shared_memory),
    Check("gpus", "node", machine.gpus, _on_gpus),
    Check("torch", "node", machine.torch_and_driver, _on_gpus),
    Check("interface", "node", machine.interface, lambda around: around.site.network.interface is not None),
    Check("temporary", "node", files.temporary),
    Check("nsys", "both", container.nsys, _nvidia),
    Check("gpu metrics", "node", container.gpu_metrics, lambda around: around.uses_gpus and _nvidia(around)),
    Check("cpu samples", "node", container.cpu_samples, _with_nsys),
    Check("nsys2prv", "login", container.nsys2prv, _nvidia),
    Check("time service", "node", machine.synchronised, _on_slurm),
)


def examine(
    around: Surroundings, node_follows: bool = False, begin: Callable[[str], None] = lambda _: None
) -> Iterator[CheckLine]:
    """Every check that can look from here, and a line for each that cannot. node_follows: the compute nodes will be
    asked, so that no line names what only they can see. begin: gets the name of each check before it looks."""
    for check in CHECKS:
        if not check.concerns(around):
            continue
        if around.node_kind == "login" and check.where == "node":
            if not node_follows:
                yield CheckLine(check.name, unseen(check.name, NOT_FROM_LOGIN))
        elif around.node_kind != "node" or check.where != "login":
            begin(check.name)
            found = check.look(around)
            for result in [found] if isinstance(found, CheckResult) else found or ():
                if not (node_follows and result.found.endswith(IN_JOB)):
                    yield CheckLine(check.name, result)

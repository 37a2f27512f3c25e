"""The list of checks: each one function, with its name and from where it can look. Prints nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

from harness.common.paths import COMMAND
from harness.doctor import container, files, machine, slurm
from harness.doctor.surroundings import (
    IN_JOB,
    NOT_FROM_LOGIN,
    CheckLine,
    CheckResult,
    Surroundings,
    ok,
    problem,
    unseen,
)
from harness.launch.before.check import missing


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


def _nvidia(around: Surroundings) -> bool:
    return around.site.gpus.vendor == "nvidia"


def _launch(around: Surroundings) -> Iterator[CheckResult]:
    """What a launch refuses before it submits, in its own words."""
    what = "exercises 1 to 3"
    sentences = dict.fromkeys(sentence for job in around.jobs for sentence in missing(job, around.environ))
    for sentence in sentences:
        yield problem(what, sentence, f"{COMMAND} -e 1 --dry-run   # the same refusal")
    if not sentences:
        yield ok(what, "all that a launch looks for is here")


CHECKS = (
    # First, as the nodes of a job meet there.
    Check("meeting", "node", machine.meeting, _on_slurm),
    Check("launch", "login", _launch),
    Check("qos", "login", slurm.qos, _on_slurm),
    Check("submission", "login", slurm.submission, _on_slurm),
    Check("variables", "both", files.variables),
    Check("disk", "login", files.disk),
    Check("files", "node", files.files, lambda around: around.node_kind != "here"),
    Check("container", "both", container.container),
    Check("packages", "both", container.packages),
    Check("torch", "node", machine.torch_and_driver, _on_gpus),
    Check("interface", "node", machine.interface, lambda around: around.site.network.interface is not None),
    Check("nsys", "both", container.nsys, _nvidia),
)


def examine(around: Surroundings, node_follows: bool = False) -> Iterator[CheckLine]:
    """Every check that can look from here, and a line for each that cannot. node_follows: the compute nodes will be
    asked, so that no line names what only they can see."""
    for check in CHECKS:
        if not check.concerns(around):
            continue
        if around.node_kind == "login" and check.where == "node":
            if not node_follows:
                yield CheckLine(check.name, unseen(check.name, NOT_FROM_LOGIN))
        elif around.node_kind != "node" or check.where != "login":
            found = check.look(around)
            for result in [found] if isinstance(found, CheckResult) else found or ():
                if not (node_follows and result.found.endswith(IN_JOB)):
                    yield CheckLine(check.name, result)

"""The list of checks: each one function, with its name and from where it can look. Prints nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from harness.common.paths import COMMAND
from harness.doctor import container, files, machine, slurm
from harness.doctor.surroundings import NOT_FROM_LOGIN, CheckLine, CheckResult, Surroundings, ok, problem, unseen
from harness.launch.before.check import missing


class Check(NamedTuple):
    """The subject of a check. `concerns`: whether it matters at this site. on_node: a login node cannot see it."""

    name: str
    look: Callable[[Surroundings], Iterable[CheckResult] | CheckResult | None]
    concerns: Callable[[Surroundings], bool] = lambda _: True
    on_node: bool = False


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
    Check("launch", _launch),
    Check("qos", slurm.qos, _on_slurm),
    Check("submission", slurm.submission, _on_slurm),
    Check("variables", files.variables),
    Check("disk", files.disk),
    Check("container", container.container),
    Check("packages", container.packages),
    Check("torch", machine.torch_and_driver, _on_gpus, on_node=True),
    Check("nsys", container.nsys, _nvidia),
)


def examine(around: Surroundings) -> Iterator[CheckLine]:
    """Every check that can look from here, and a line for each that cannot."""
    for check in CHECKS:
        if not check.concerns(around):
            continue
        if check.on_node and around.node_kind == "login":
            yield CheckLine(check.name, unseen(check.name, NOT_FROM_LOGIN))
            continue
        found = check.look(around)
        for result in [found] if isinstance(found, CheckResult) else found or ():
            yield CheckLine(check.name, result)

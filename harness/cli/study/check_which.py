"""`check --which`: what differs between A and B is halved by further checks until one thing is left."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from harness.cli.launch.untrusted import confirmed
from harness.cli.study.check_runs import AskedArms, CheckRequest, checked_tasks, launch, make_arms
from harness.common.display.text import how_many
from harness.common.errors import RequestError, WorkError
from harness.common.paths import COMMAND, PROGRAM
from harness.compare.comparison import MOST_RUNS, USUAL_RUNS
from harness.compare.verdict import ChangeVerdict
from harness.experiment.exercises import OwnTraining
from harness.study.check import series
from harness.study.check.ends import Ends, ends_of, environments_of
from harness.study.check.halving import ACTS, Cause, find_cause, most_checks, most_for_a_pair
from harness.study.check.result import Checked, Halved, HalvingStep, check_arms
from harness.study.check.treatment import SOFTWARE
from harness.study.check.which import halved, runs_for, shared_loss
from harness.study.series.cost import making


def say_plan(ends: Ends, base: series.ArmLaunch, each: int, yes: bool) -> None:
    """What will be halved, with the most checks, runs and time. Raises RequestError: there is nothing to halve, or a
    person said no."""
    if len(ends.things) < 2:
        what = f"only {ends.things[0].label} differs" if ends.things else "nothing differs"
        raise RequestError(f"--which: {what}, so there is nothing to halve: leave it out")
    number = len(ends.things)
    checks = most_checks(number)
    tasks = checked_tasks(dict.fromkeys(series.ARMS, base), each)
    print(f"{how_many(number, 'thing')} differ:", file=sys.stderr)
    print(*(f"  {thing.label}" for thing in ends.things), sep="\n", file=sys.stderr)
    print(
        f"at most {checks} checks, and {most_for_a_pair(number)} more if two act only together; for the {checks}: "
        f"{making(tasks * checks)}; more runs if they vary",
        file=sys.stderr,
    )
    if not confirmed(f"start at most {checks * len(tasks)} runs", yes, "started"):
        raise RequestError("--which: nothing was started")


@dataclass
class Halving:
    """The checks of one halving. total: of A against B. name: the beginning of their series' names. again: the command
    that continues it."""

    ends: Ends
    base: series.ArmLaunch
    total: Checked
    name: str
    request: CheckRequest
    again: str
    steps: list[HalvingStep] = field(default_factory=list)
    checked: dict[tuple[int, ...], Checked] = field(default_factory=dict)

    @property
    def runs(self) -> int | None:
        """Of each arm in a step; None: even the most would not tell."""
        needed = runs_for(self.total)
        return needed and max(needed, self.request.runs or USUAL_RUNS)

    def find(self) -> Halved:
        """The cause. Raises WorkError: the runs vary too much to tell."""
        if self.runs is None:
            raise WorkError("--which: these runs vary too much to tell the parts of the loss: make the machine quieter")
        every = range(len(self.ends.things))
        cause = find_cause(len(every), self._share, self.ends.needs)
        if not cause.is_enough and (self._share(every) or 0.0) < ACTS:
            cause = Cause([], [], False)  # B has something else
        labels = [thing.label for thing in self.ends.things]
        of_cause = self.checked.get(tuple(self._closed(cause.all)), self.total)
        return halved(labels, self.steps, cause, of_cause, self.total)

    def _closed(self, things: Sequence[int]) -> list[int]:
        return sorted({each for thing in things for each in self.ends.needs(thing)})

    def _share(self, chosen: Sequence[int]) -> float | None:
        """The share of the loss with these things. Raises WorkError: even twice the runs do not tell it."""
        name, each = f"{self.name}.{len(self.steps) + 1}", self.runs or MOST_RUNS
        labels = [self.ends.things[each].label for each in chosen]
        print(f"halving: A with {', '.join(labels)}", file=sys.stderr)
        try:
            environment = self.ends.with_some(chosen)
            launches = {"a": self.ends.a.applied(self.base), "b": environment.applied(self.base)}
            asked = AskedArms(launches, [], (self.ends.a.what, environment.what), again=self.again)
            checked, share = shared_loss(partial(self._check, asked, name), self.total, each)
        except series.ArmFailed as failed:
            if failed.arms != ["b"]:  # A ran before, so it is not the mixture
                raise
            print(f"halving: A with {', '.join(labels)} does not run: {failed}", file=sys.stderr)
            self.steps.append(HalvingStep(things=labels, series=name, change="does not run", share=None))
            return None
        if share is None:
            raise WorkError(
                f"--which: the runs of {name} vary too much to tell the parts of the loss ({checked.change})"
            )
        self.steps.append(HalvingStep(things=labels, series=name, change=checked.change, share=share))
        self.checked[tuple(chosen)] = checked
        return share

    def _check(self, asked: AskedArms, name: str, each: int) -> Checked:
        arms = make_arms(asked, name, self.request._replace(runs=each))
        return check_arms(*arms, self.request.question, {SOFTWARE})


def with_cause(halving: Halving) -> Checked:
    """The first check with what makes B slow, or with a note that it is not. Raises WorkError: that cannot be told."""
    total = halving.total
    if total.verdict is ChangeVerdict.WORSE:
        return total.model_copy(update={"which": halving.find()})
    note = f"--which: nothing was halved, since it is not known that B is worse ({total.verdict.value})"
    return total.model_copy(update={"notes": [*total.notes, note]})


def halved_runs(checked: Checked, arms: Sequence[series.CheckArm], name: str, request: CheckRequest) -> Checked:
    """The check of existing runs with what makes B slow, from new runs of their command in mixtures of their
    environments. Raises RequestError: the runs are of two commands, or their environments cannot be had again."""
    base = _common_launch(arms)
    ends = ends_of(*environments_of(*arms))
    each = request.runs or USUAL_RUNS
    say_plan(ends, base, each, request.yes)
    words = [*(arm.arguments for arm in arms), "--runs", str(each), *request.options, "--resume", name]
    return with_cause(Halving(ends, base, checked, name, request, f"{COMMAND} check {shlex.join(words)}"))


def _common_launch(arms: Sequence[series.CheckArm]) -> series.ArmLaunch:
    """The command of both arms, without the Python that each may name."""
    typed = [series.launch_of_arm(arm) for arm in arms]
    if None in typed:
        raise RequestError("--which: these runs were not started by the harness, so no more of them can be made")
    a, b = (_without_python(launch([PROGRAM, *shlex.split(str(text))])) for text in typed)
    if (a.experiment, a.site) != (b.experiment, b.site):
        raise RequestError(f"--which: A and B are of two commands ({typed[0]}; {typed[1]}), which cannot be halved")
    return a


def _without_python(asked: series.ArmLaunch) -> series.ArmLaunch:
    if not isinstance(asked.experiment, OwnTraining):
        return asked
    return asked._replace(experiment=asked.experiment.model_copy(update={"python": None}))

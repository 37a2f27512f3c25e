"""One step of `git bisect run`: whether the commit that is checked out has the regression between good and bad.

Nothing is kept beside the runs: the size of the regression follows from the runs of both ends, which the first step
makes and all others find again, and a commit that was measured before has its runs, too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from math import exp
from pathlib import Path
from typing import Literal, NamedTuple

from harness.analysis.bisect import Regression, has_it, least_seen, looks, next_runs, runs_to_tell, size, wrong_step
from harness.analysis.machine import disturbances
from harness.analysis.statistics import MeasuredEffect, Sample, effect
from harness.common.errors import RequestError
from harness.common.format import percent, takes
from harness.common.paths import COMMAND
from harness.compare.arms import differences, key_of
from harness.compare.comparison import ComparisonPart
from harness.study.check.result import JudgedMetric, Question, choose_metric, values
from harness.study.check.revisions import NotBuilt, Repository, Revision, git, revision_of
from harness.study.check.series import ArmFailed, ArmLaunch, CheckArm

USUAL_MOST = 32  # runs of a commit
GOOD, BAD, SKIP, STOP = 0, 1, 125, 128  # as `git bisect run` reads an exit code; from 128 on it stops
# What of a run's surroundings must be the same. The versions of packages are the commit's own.
_HARDWARE = {"devices", "nodes", "ranks", "profiler", "container image", "host processor"}

Arms = tuple[CheckArm, CheckArm]
Measure = Callable[[str, tuple[Revision, Revision], int], Arms]
"""The name of a series, the revisions of A and B, the runs of each → these runs, made where they are missing."""


class GitBisect(NamedTuple):
    """good, bad: the first ones that this bisect was given. now: the commit to judge. commits: after good, to bad."""

    good: Revision
    bad: Revision
    now: Revision
    commits: int


def bisect_of(repository: Repository) -> GitBisect:
    """The bisect that is under way. Raises RequestError: there is none, or it lacks an end."""
    of_good, of_bad = _terms(repository)
    log = _of_git(repository, "BISECT_LOG")
    ends = {}
    for term, name in ((of_good, "good"), (of_bad, "bad")):
        found = re.search(rf"^# {re.escape(term)}: \[([0-9a-f]{{40,64}})\]", log, re.MULTILINE)
        if found is None:
            begin = f"git bisect start BAD GOOD && git bisect run {COMMAND} check --bisect 'run -- train.py'"
            what = f"has no {term} commit yet" if log else "is not under way"
            raise RequestError(f"--bisect: a git bisect {what} in {repository.top}: begin with {begin}")
        ends[name] = revision_of(repository, found[1], "--bisect")
    is_apart = git(repository.top, "rev-parse", "--verify", "--quiet", "BISECT_HEAD").code == 0
    now = revision_of(repository, "BISECT_HEAD" if is_apart else "HEAD", "--bisect")
    counted = git(repository.top, "rev-list", "--count", f"{ends['good'].commit}..{ends['bad'].commit}").out.strip()
    return GitBisect(ends["good"], ends["bad"], now, int(counted) if counted.isdigit() else 1)


def _terms(repository: Repository) -> tuple[str, str]:
    """The words for good and bad, which `git bisect start --term-old` can change."""
    told = _of_git(repository, "BISECT_TERMS").splitlines()
    return (told[1], told[0]) if len(told) > 1 else ("good", "bad")


def _of_git(repository: Repository, name: str) -> str:
    path = git(repository.top, "rev-parse", "--git-path", name).out.strip()
    try:
        return (repository.top / Path(path)).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def series_name(bisect: GitBisect, launch: ArmLaunch, build: Sequence[str], folder: Path) -> str:
    """The same in all steps of a bisect, and another one for each other measurement."""
    asked = launch.experiment.model_dump_json(exclude={"start_in"})
    told = [bisect.good.commit, bisect.bad.commit, asked, launch.site.name, str(list(build)), str(folder)]
    return f"bisect-{hashlib.sha256(chr(0).join(told).encode()).hexdigest()[:10]}"


class BisectAnswer(ComparisonPart):
    """A step's answer. size, ratio: of the bad end and of the commit, over the good end, as B / A. runs: of the good
    end and of the commit. wrong_step: the chance of a wrong answer that the number of runs is chosen for."""

    schema_version: Literal[1] = 1
    verdict: Literal["good", "bad", "cannot tell"]
    why: str
    commit: str
    good: str
    bad: str
    metric: str | None = None
    size: float | None = None
    size_runs: int | None = None
    run_deviation: float | None = None
    ratio: float | None = None
    runs: tuple[int, int] | None = None
    wrong_step: float | None = None
    disturbed_runs: int = 0

    @property
    def exit_code(self) -> int:
        return {"good": GOOD, "bad": BAD}.get(self.verdict, SKIP)


class BisectStep(NamedTuple):
    """One step. name: of the series with the runs of both ends. most: runs of a commit."""

    bisect: GitBisect
    name: str
    measure: Measure
    question: Question
    most: int

    @property
    def error(self) -> float:
        return wrong_step(self.bisect.commits)

    def judged(self) -> BisectAnswer:
        """The commit that is checked out, judged.
        Raises WorkError: an end of the bisect cannot be built or measured, so no step can be judged."""
        good, bad, now, _ = self.bisect
        told = BisectAnswer(verdict="cannot tell", why="", commit=str(now), good=str(good), bad=str(bad))
        if now.commit in (good.commit, bad.commit):
            return _with(told, verdict="good" if now.commit == good.commit else "bad", why="it is an end of the bisect")
        found = self._size()
        if isinstance(found, str):
            return _with(told, why=found)
        regression, each, metric = found
        told = _with(
            told,
            metric=metric.name,
            size=exp(_turned(regression.log_ratio, metric)),
            size_runs=each,
            run_deviation=exp(regression.deviation) - 1,
            wrong_step=self.error,
        )
        try:
            return self._against_good(told, regression)
        except NotBuilt as failed:
            if failed.revision.commit != now.commit:
                raise
            return _with(told, why=str(failed))
        except ArmFailed as failed:
            if failed.arm != "b":
                raise
            return _with(told, why=f"its training fails: {failed}")

    def _size(self) -> tuple[Regression, int, JudgedMetric] | str:
        """The regression, the number of runs that showed it, and its metric; or a sentence: why there is none."""
        at = looks(self.most)
        for each in at:
            metric, found = self._effect(self.measure(self.name, (self.bisect.good, self.bisect.bad), each))
            if isinstance(found, str):
                return found
            told = size(found, self.question.fail_above, len(at))
            is_last = each == self.most
            # A size that is itself vague would leave the steps without an answer.
            if isinstance(told, Regression) and (
                is_last or runs_to_tell(told, self.error, self.most) <= self.most // 2
            ):
                return told, each, metric
            if told == "none" or is_last:
                return self._none_certain(metric, found, len(at))
        raise AssertionError("the last look decides")

    def _none_certain(self, metric: JudgedMetric, effect: MeasuredEffect, number_of_looks: int) -> str:
        return (
            f"no difference between good and bad is certain: bad, {self.bisect.bad}, "
            f"{_changed(metric, effect)} than good, {self.bisect.good}, in {effect.runs[1]} "
            f"runs of each, which differ "
            f"by {percent(exp(effect.deviation) - 1)}; so many runs show a regression of "
            f"{percent(least_seen(effect, number_of_looks))} nine times in ten"
        )

    def _effect(self, arms: Arms) -> tuple[JudgedMetric, MeasuredEffect | str]:
        """B against A, above zero if B is worse; or why they cannot be compared."""
        metric = choose_metric(arms, self.question.metric)
        found = [values(arm, metric.name) for arm in arms]
        keys = [[key_of(run.summary) for run in arm.runs] for arm in arms]
        if unlike := sorted(_HARDWARE & differences(*keys).keys()):
            return metric, f"not comparable: {', '.join(unlike)} differ"
        if any(each.value <= 0 for each in (*found[0], *found[1])):
            return metric, f"{metric.name} is not above zero in some run, so there is no ratio"
        a, b = ([Sample(each.value, each.run.block) for each in arm] for arm in found)
        seen = effect(a, b)
        if seen is None:
            return metric, f"too few runs have {metric.name}"
        return metric, seen._replace(log_ratio=_turned(seen.log_ratio, metric))

    def _against_good(self, bisect_answer: BisectAnswer, regression: Regression) -> BisectAnswer:
        """The commit against the good end, by as many runs as it takes."""
        series = f"{self.name}-{self.bisect.now.commit[:12]}"
        each = runs_to_tell(regression, self.error, self.most)
        while True:
            arms = self.measure(series, (self.bisect.good, self.bisect.now), each)
            metric, found = self._effect(arms)
            if isinstance(found, str):
                return _with(bisect_answer, why=found)
            disturbed = sum(bool(disturbances(run.summary)) for arm in arms for run in arm.runs)
            ratio = exp(_turned(found.log_ratio, metric))
            bisect_answer = _with(bisect_answer, ratio=ratio, runs=found.runs, disturbed_runs=disturbed)
            against = f"it {_changed(metric, found)} than good, {self.bisect.good}"
            answer = has_it(found, regression, self.error)
            if answer is not None:
                return _with(bisect_answer, verdict="bad" if answer else "good", why=against)
            if each >= self.most:
                return _with(
                    bisect_answer, why=f"{against}, and {each} runs of each do not tell whether that is the regression"
                )
            each = next_runs(each, self.most)


def _with(bisect_answer: BisectAnswer, **changes: object) -> BisectAnswer:
    return bisect_answer.model_copy(update=changes)


def _turned(log_ratio: float, metric: JudgedMetric) -> float:
    """Above zero if B is worse; and back."""
    return log_ratio if metric.more_is_worse else -log_ratio


def _changed(metric: JudgedMetric, effect: MeasuredEffect) -> str:
    ratio = exp(_turned(effect.log_ratio, metric))
    if "_ns" in metric.name:
        return f"takes {takes(ratio)}"
    return f"has {percent(abs(ratio - 1))} {'more' if ratio >= 1 else 'less'} {metric.name}"

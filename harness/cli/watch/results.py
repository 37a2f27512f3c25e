"""The step time of a run and its verdict in a few words, for lists of many runs: only these fields are decoded."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import NamedTuple

import msgspec

from harness.common.run_folder.run_files import METRICS, SUMMARY
from harness.heartbeats.dead import first_death
from harness.launch.backends.protocol import PolledState
from harness.run import Run


class _Duration(msgspec.Struct):
    median_ns: float


class _Steps(msgspec.Struct):
    duration: _Duration | None = None


class _Rank(msgspec.Struct):
    median_step_ns: float | None = None


class _StoredFinding(msgspec.Struct):
    cause: str
    share: float


class _Withheld(msgspec.Struct):
    field: str


class _Quality(msgspec.Struct):
    verdict: str = "good"
    withheld: list[_Withheld] = []


class _Replay(msgspec.Struct):
    error: float


class _JobTime(msgspec.Struct):
    useful_share: float


class _Summary(msgspec.Struct):
    steps: _Steps | None = None
    training: list[_Rank] = []
    findings: list[_StoredFinding] = []
    quality: _Quality = msgspec.field(default_factory=_Quality)
    replay: _Replay | None = None
    job_time: _JobTime | None = None


class MedianStep(NamedTuple):
    """A median. `traced`: measured from the trace; else by the training's own clock."""

    ns: float
    traced: bool


class RunResult(NamedTuple):
    """step: None: no file has it. verdict: the largest loss, or why the run failed; empty: not known, or hidden as that
    of a mystery. doubtful: the verdict is of a recording with problems. useful: the steps' share of the job's time;
    None: no summary has it."""

    step: MedianStep | None
    verdict: str
    doubtful: bool
    useful: float | None


SUMMARY_IN_LISTS = SUMMARY.holding(msgspec.json.Decoder(_Summary).decode)


def result_of(run: Run, polled: PolledState) -> RunResult:
    found = run.known(SUMMARY_IN_LISTS) or _Summary()
    loss = _loss(found) if polled.state == "completed" else ""
    doubtful = bool(loss) and found.quality.verdict != "good"
    useful = found.job_time.useful_share if found.job_time else None
    return RunResult(_step(found) or _of_metrics(run), loss or _why(run, polled), doubtful, useful)


def _loss(summary: _Summary) -> str:
    if summary.replay is None and not summary.findings:
        return ""
    from harness.replay.attribute.causes import CAUSES  # with numpy, as slow as all else here
    from harness.replay.attribute.diagnosis import MOST_ERROR, NOTICEABLE

    withheld = {each.field for each in summary.quality.withheld}
    if summary.findings and "findings" not in withheld:
        first = summary.findings[0]
        entry = CAUSES.get(first.cause)
        return f"{entry.label if entry else first.cause.replace('-', ' ')} {100 * first.share:.0f} %"
    known = not any(field.startswith(("findings", "replay")) for field in withheld)
    answered = summary.replay is not None and summary.replay.error <= MOST_ERROR
    return f"nothing above {100 * NOTICEABLE:.0f} %" if known and answered else ""


def _why(run: Run, polled: PolledState) -> str:
    """Why it ended as it did, or what it leaves open."""
    own = run.status()
    why = polled.why or ((own.why or own.note) if own else "")
    if polled.state == "failed":
        death = first_death(run.path, run.err)
        if death is not None and why.startswith(death.sentence):
            return death.short
    return why


def _step(summary: _Summary) -> MedianStep | None:
    if summary.steps and summary.steps.duration:
        return MedianStep(summary.steps.duration.median_ns, traced=True)
    return _slowest(rank.median_step_ns for rank in summary.training)


def _of_metrics(run: Run) -> MedianStep | None:
    """Of the first rank only: a run without a summary may have hundreds of ranks."""
    for path in run.metrics()[:1]:
        steps = [line for line in METRICS.known_objects(path) if line.get("event") == "step"]
        counted = [line for line in steps if line.get("phase") == "active"] or steps
        times = [line["step_ns"] for line in counted if isinstance(line.get("step_ns"), int)]
        return _slowest([median(times)] if times else [])
    return None


def _slowest(times: Iterable[float | None]) -> MedianStep | None:
    known = [ns for ns in times if ns]
    return MedianStep(max(known), traced=False) if known else None

"""Paths in, Summary out: finds traces, measures each, merges them into jobs, adds what lies beside them in
a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from harness.analysis.job.grouping import group
from harness.analysis.job.summarise import finish
from harness.analysis.process.kinds import load_rules
from harness.analysis.process.measure import measure_trace
from harness.analysis.process.part import RankPart, merge
from harness.analysis.summary import Finding, MonitorDevice, RankTraining, Summary, Verdict, Window
from harness.common.errors import RequestError, WorkError
from harness.common.paths import PROGRAM
from harness.experiment.exercises import Experiment, read_experiment
from harness.experiment.options import options_of
from harness.measure.efficiency import efficiency
from harness.measure.run_files import read_monitor, read_training
from harness.site.site import Site
from harness.traces import TraceError, find_traces, map_traces
from harness.traces.progress import OnProgress, silent

if TYPE_CHECKING:
    from harness.run import Run

NO_TRACE = "no trace was found: give a run, a trace file or a folder of them"
_OF_PROFILERS = ("torch/", "nsys/")  # where a run keeps its traces
_RUN_FACTS = (
    "job_id",
    "backend",
    "created_ns",
    "git",
    "versions",
    "command",
    "user",
    "submit_host",
    "expects",
)


def measure_one(paths: Iterable[Path | str], window: Window | str = "steps") -> Summary:
    """The summary of one job: a run's directory, or trace files and folders that form one job.

    Raises RequestError when the files belong to several jobs, WorkError when nothing can be read.
    """
    summaries = measure_jobs(paths, window)
    if len(summaries) != 1:
        raise RequestError(
            f"{len(summaries)} jobs were found where one was expected: "
            + ", ".join(s.sources[0].path for s in summaries[:4])
        )
    return summaries[0]


def measure_jobs(
    paths: Iterable[Path | str],
    window: Window | str = Window.STEPS,
    workers: int | None = None,
    progress: OnProgress = silent,
) -> list[Summary]:
    """One summary per job found in `paths`. workers: processes that read at once; None chooses."""
    wanted = [Path(p) for p in paths]
    parts, broken = measure_files(trace_files(wanted), Window(window), workers, progress)
    return summarise(parts, broken, run_directories(wanted))


def trace_files(paths: Sequence[Path]) -> list[Path]:
    """Every trace of the runs, folders and files in `paths`, once."""
    files: list[Path] = []
    for path in paths:
        files += _run(path).traces() if is_run(path) else find_traces([path])
    return list(dict.fromkeys(files))


def is_run(path: Path) -> bool:
    """Whether a path is a run's directory (or looks like one whose record was lost)."""
    return (path / "run.json").is_file() or (path / "metrics").is_dir()


def run_directories(paths: Sequence[Path]) -> list[Path]:
    """Those of `paths` that are runs' directories."""
    return [path for path in paths if is_run(path)]


def _run(path: Path) -> Run:
    from harness.run import Run  # noqa: PLC0415 - traces that lie in no run need none of it

    return Run(path)


def measure_files(
    files: Sequence[Path],
    window: Window,
    workers: int | None = None,
    progress: OnProgress = silent,
    *,
    hta: bool = False,
) -> tuple[list[RankPart], list[Finding]]:
    """All parts, and a finding for every file that could not be read. hta: also as HTA 0.5.0 counts."""
    reduce = partial(measure_trace, window=window, rules=load_rules(), hta_too=hta)
    outcomes = map_traces(files, reduce, workers=workers, progress=progress)
    broken = [
        Finding(severity=Verdict.UNUSABLE, what="a trace cannot be read", evidence=str(outcome))
        for outcome in outcomes
        if isinstance(outcome, TraceError)
    ]
    parts = [
        part.model_copy(update={"run": run_of(file)})
        for file, outcome in zip(files, outcomes, strict=True)
        if not isinstance(outcome, TraceError)
        for part in outcome
    ]
    return merge(parts), broken


def run_of(trace: Path) -> str | None:
    """The run directory a trace lies in, if it does."""
    run = trace.parent.parent
    return str(run) if trace.parent.name in ("torch", "nsys") and is_run(run) else None


def summarise(
    parts: Iterable[RankPart], broken: Sequence[Finding] = (), runs: Sequence[Path] = ()
) -> list[Summary]:
    """Parts to summaries, one per job, with what the runs' directories hold besides traces.

    A run without any trace still has its training's numbers. Raises WorkError when there is nothing at all.
    """
    parts = list(parts)
    beside = {run: _read_beside(Path(run)) for run in {*map(str, runs), *(p.run for p in parts if p.run)}}
    named = [name_rank(part, beside[part.run].training) if part.run else part for part in parts]
    worlds = {run: _world_size(own.training) for run, own in beside.items()}
    jobs = [(job[0].run, finish(job, worlds.get(job[0].run or ""))) for job in group(named)]
    traced = {run for run, _ in jobs}
    jobs += [(run, Summary()) for run in sorted(beside) if run not in traced]
    if not jobs:
        raise WorkError("; ".join(f.evidence for f in broken) or NO_TRACE)
    complete = [summary if run is None else _with_beside(summary, beside[run]) for run, summary in jobs]
    return [_add(summary, broken) for summary in complete]


def name_rank(part: RankPart, training: Sequence[RankTraining]) -> RankPart:
    """The part with the rank that the training's own record gives its process, where the trace knows none."""
    rank = rank_by_training(part.source.pid, part.source.host, training)
    if part.source.rank is not None or rank is None:
        return part
    return part.model_copy(
        update={
            "source": part.source.model_copy(update={"rank": rank}),
            "devices": [d.model_copy(update={"rank": rank}) for d in part.devices],
            "launches": part.launches and part.launches.model_copy(update={"rank": rank}),
        }
    )


def rank_by_training(pid: int | None, host: str | None, training: Sequence[RankTraining]) -> int | None:
    """The rank that the training's own record gives a process; None where it names none, or several."""
    found = [t.rank for t in training if t.pid == pid and (host is None or t.host in (None, host))]
    return found[0] if pid is not None and len(found) == 1 else None


def training_beside(trace: Path) -> list[RankTraining]:
    """What the training wrote about itself, of the run that a trace lies in; nothing where it lies in none."""
    run = run_of(trace)
    return read_training(_run(Path(run)).metrics())[0] if run else []


def _world_size(training: Sequence[RankTraining]) -> int | None:
    return max((t.world_size for t in training if t.world_size is not None), default=None)


def _add(summary: Summary, findings: Sequence[Finding]) -> Summary:
    if not findings:
        return summary
    quality = summary.quality
    order = (Verdict.GOOD, Verdict.DOUBTFUL, Verdict.UNUSABLE)
    # One file of many that cannot be read makes the rest doubtful, not unusable.
    told = [min(f.severity, Verdict.DOUBTFUL, key=order.index) for f in findings]
    worst = max([quality.verdict, *told], key=order.index)
    merged = quality.model_copy(update={"verdict": worst, "findings": [*findings, *quality.findings]})
    return summary.model_copy(update={"quality": merged})


@dataclass(frozen=True)
class _Beside:
    """What a run's directory holds besides its traces."""

    training: list[RankTraining]
    monitor: list[MonitorDevice]
    record: dict[str, Any]
    findings: list[Finding]


def _read_beside(path: Path) -> _Beside:
    run = _run(path)
    training, broken = read_training(run.metrics())
    monitor, unreadable = read_monitor(run.monitors(), training)
    record, damaged = _record(path)
    missing = _missing(run, record.get("expects") or [])
    return _Beside(training, monitor, record, [*damaged, *missing, *broken, *unreadable])


def _missing(run: Run, expected: Sequence[str]) -> list[Finding]:
    """A finding where a profiler was asked for and a trace that it should have left is not there."""
    lost = [n for n in expected if not any(_has_content(run.path / other) for other in (n, _exported(n)))]
    if not lost:
        return []
    what = "no trace" if len(lost) == len(expected) else "a trace is missing"
    more = f" and {len(lost) - 1} more are missing" if len(lost) > 1 else " is missing"
    status = run.status()
    ended = status is None or status.state not in ("queued", "running")
    why = "the job has not told that it ended"
    if ended:
        why = f"the program started no profiler, or `{PROGRAM} logs RUN` has what it said"
    return [Finding(severity=Verdict.DOUBTFUL, what=what, evidence=f"{lost[0]}{more}; {why}")]


def _exported(name: str) -> str:
    """What an nsys report is exported to; kept alone it serves as well."""
    return name.replace(".nsys-rep", ".sqlite")


def _has_content(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _with_beside(summary: Summary, beside: _Beside) -> Summary:
    """The summary with the run's own record, training metrics and monitor."""
    training, record = beside.training, beside.record
    asked = read_experiment(record.get("experiment"))
    update: dict[str, Any] = {
        "training": training,
        "efficiency": efficiency(training, isinstance(asked, Experiment) and asked.recomputes),
        "monitor": beside.monitor,
        "experiment": asked,
        "run": _run_facts(record) if record else None,
        "world_size": summary.world_size or _world_size(training),
        "hosts": summary.hosts or sorted({t.host for t in training if t.host}),
        "backend": summary.backend or next((t.backend for t in training), None),
        "ranks": summary.ranks or [t.rank for t in training],
    }
    complete = summary.model_copy(update=update)
    return _add(complete, [*beside.findings, *_remarks(complete)])


def _remarks(summary: Summary) -> list[Finding]:
    """What a reader of this machine's numbers must not expect of them."""
    on_cpu = summary.backend == "gloo" or any(d.device_kind == "cpu" for d in summary.devices)
    asked = summary.experiment
    if not isinstance(asked, Experiment) or asked.gpus_only is None or not on_cpu:
        return []
    what, evidence = asked.gpus_only
    return [Finding(severity=Verdict.GOOD, what=what, evidence=evidence)]


def _run_facts(record: dict[str, Any]) -> dict[str, Any]:
    """What the report tells of a run, and what it needs to ask for it again: the site, the experiment as resolved."""
    site, job = record.get("site") or {}, record.get("job") or {}
    named = ("name", "defaults", *(option.field for option in options_of(Site)))
    return {key: record.get(key) for key in _RUN_FACTS} | {
        "site": {key: site.get(key) for key in named},
        "resolved": job.get("experiment"),
    }


def _record(run: Path) -> tuple[dict[str, Any], list[Finding]]:
    """What run.json says, or a finding where it is damaged; only what is used here must have its shape."""
    try:
        record = json.loads((run / "run.json").read_text(encoding="utf-8"))
        asked = _Asked.model_validate(record)
    except FileNotFoundError:
        return {}, []
    except (OSError, ValueError) as error:
        what = "the run's record cannot be read"
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        evidence = f"run.json: {reason}; what was asked for is not known"
        return {}, [Finding(severity=Verdict.DOUBTFUL, what=what, evidence=evidence)]
    expects = asked.job.expects if asked.job else None
    of_profilers = None if expects is None else [x for x in expects if x.startswith(_OF_PROFILERS)]
    return record | {"expects": of_profilers}, []


class _Job(BaseModel):
    expects: list[str] | None = None
    experiment: dict[str, Any] | None = None


class _Asked(BaseModel):
    """The shape of the parts of run.json that are looked into."""

    experiment: dict[str, Any] | None = None
    site: dict[str, Any] | None = None
    job: _Job | None = None

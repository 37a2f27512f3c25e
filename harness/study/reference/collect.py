"""What a reference keeps of a run: its metrics, its steps, its traces' checksums, and with what it was made.

Leaves out private data: user names, the host of a run without a scheduler, absolute paths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from harness.analysis.metrics import Metrics, metrics_by_name, step_durations_ns
from harness.analysis.summary import RecordingVerdict, Summary
from harness.common.bounded_read import BoundedReadError, why_unread
from harness.common.errors import WorkError
from harness.experiment.exercises import Experiment
from harness.format.labels import device_names
from harness.launch.backends.registry import backend_of_run
from harness.measure.matching import Settings, compared_settings, device_kind
from harness.measure.references import (
    UNKNOWN_DEVICE,
    Environment,
    Hardware,
    StoredRun,
    StoredTrace,
    file_digest,
)
from harness.measure.request import Request, measure_request
from harness.measure.stored import load_summary
from harness.monitor.errors import MonitorError
from harness.monitor.samples import read as read_monitor
from harness.run import Run
from harness.study.reference.links import link_device, link_metrics

MOST_STEPS = 100  # more are kept as their percentiles
DRIVER = "nvidia driver"  # as the training names it, which does not say it on every system
_DIGITS = 7  # of a metric: more would be noise in a file that people compare
_MACHINE_DIGITS = 12


class Collected(NamedTuple):
    """A run as a reference keeps it, and what it asked."""

    run: StoredRun
    environment: Environment
    asked: Experiment
    compared: Settings


def collect(run: Run, container: str | None = None, traces: bool = True) -> Collected:
    """What a reference keeps of a completed run.

    container: sha256 of the image that it ran in, if it is known. traces: keep their sizes and checksums.

    Raises:
        WorkError: the run left neither steps nor anything else that was measured.
    """
    summary = _summary(run)
    metrics = _rounded(metrics_by_name(summary) | link_metrics(run))
    if not metrics:
        raise WorkError(f"{run.name}: nothing was measured")
    on_this_machine = backend_of_run(run).RUNS_HERE
    stored = StoredRun(
        path=str(_from_root(run, run.path)),
        created_ns=run.record.created_ns,
        nodes=() if on_this_machine else tuple(summary.hosts),
        metrics=metrics,
        steps_ns=_steps(step_durations_ns(summary)),
        doubts=_doubts(summary),
        traces=tuple(_stored_traces(run)) if traces else (),
    )
    return Collected(
        stored,
        environment_of(run, summary, container),
        run.record.experiment,
        compared_settings(summary),
    )


def _summary(run: Run) -> Summary:
    """The run's stored summary; measured again if a trace was changed after it."""
    written = run.summary.stat().st_mtime_ns if run.summary.is_file() else 0
    if any(trace.stat().st_mtime_ns > written for trace in run.traces()):
        return measure_request(Request(tokens=[str(run.path)])).summaries[0]
    return load_summary(str(run.path))[1]


def _stored_traces(run: Run) -> Iterator[StoredTrace]:
    for path in run.traces():
        relative = str(_from_root(run, path))
        try:
            yield StoredTrace(path=relative, size_bytes=path.stat().st_size, sha256=file_digest(path))
        except (OSError, BoundedReadError) as error:
            raise WorkError(f"{path}: cannot be read ({why_unread(error)})") from None


def environment_of(run: Run, summary: Summary, container: str | None = None) -> Environment:
    """With what the run was made."""
    record = run.record
    git = record.git
    changed = " with changes" if git.get("dirty") else ""
    tools = {x.tool: x.tool_version for x in summary.sources if x.tool_version}
    versions = next((t.versions for t in summary.training if t.versions), record.versions)
    driver = _monitored(run, "driver")
    monitored = {DRIVER: str(driver)} if driver else {}
    return Environment(
        site=record.site.name,
        hardware=_hardware(run, summary),
        software=monitored | dict(versions),
        tools=tools,
        container=container,
        commit=f"{git['commit']}{changed}" if git.get("commit") else None,
    )


def _hardware(run: Run, summary: Summary) -> Hardware:
    links = link_device(run)
    kind = links.kind if links else device_kind(summary)
    cores = _monitored(run, "cpus") if kind == "cpu" else None
    here = backend_of_run(run).RUNS_HERE
    host = sha256(run.record.submit_host.encode()).hexdigest()[:_MACHINE_DIGITS]
    return Hardware(
        device_kind="cpu" if kind == "cpu" else "gpu",
        device=(links.name if links else device_names(summary)) or UNKNOWN_DEVICE,
        cores=cores if isinstance(cores, int) else None,
        machine=host if here else None,
    )


def _monitored(run: Run, name: str) -> object:
    """What the monitor of the first node says of its machine; None if it says nothing."""
    for folder in run.monitors():
        with suppress(MonitorError):
            return read_monitor(folder).meta.get(name)
    return None


def _from_root(run: Run, path: Path) -> Path:
    """A path below the folder of all runs, from there: `…/exercise_1_DDP/profiler/NAME/…`."""
    return path.relative_to(run.path.parents[2])


def _rounded(metrics: Metrics) -> Metrics:
    return {name: _short(value) for name, value in metrics.items()}


def _short(value: float) -> float:
    """The value to seven digits; whole numbers, as counts and bytes are, stay exact."""
    return int(value) if value == int(value) else float(f"{value:.{_DIGITS}g}")


def _steps(durations_ns: Sequence[float]) -> tuple[int, ...]:
    if len(durations_ns) <= MOST_STEPS:
        return tuple(map(round, durations_ns))
    ordered = sorted(durations_ns)
    last = len(ordered) - 1
    return tuple(
        round(ordered[round(last * percentile / MOST_STEPS)]) for percentile in range(MOST_STEPS + 1)
    )


def _doubts(summary: Summary) -> tuple[str, ...]:
    findings = [found for found in summary.quality.problems if found.severity is not RecordingVerdict.GOOD]
    return tuple(dict.fromkeys(found.what for found in findings))

"""The numbers of a reference's runs: of trainings, of exercise 0, and of a lesson's pair of runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import NamedTuple

from harness.analysis.labels import device_names
from harness.analysis.metric_values import Metrics, step_durations_ns
from harness.analysis.metrics import judged_step_ns, metrics_by_name
from harness.analysis.summary import RecordingVerdict, Summary
from harness.common.errors import RequestError, WorkError
from harness.common.model.alpha_beta import is_line
from harness.common.run_folder.run_files import COLLECTIVES
from harness.experiment.exercises import Experiment
from harness.launch.backends.registry import backend_of_run
from harness.measure.request import ReportRequest, load_summary, measure_request
from harness.monitor.samples import read as read_monitor
from harness.monitor.source import MonitorError
from harness.run import Run
from harness.study.lessons import Lesson, fixed_fields, is_asked, open_fields
from harness.study.reference.stored import (
    UNKNOWN_DEVICE,
    Environment,
    Hardware,
    Reference,
    Settings,
    StoredRun,
    StoredVariant,
    compared_settings,
    device_kind,
    read_runs,
)
from harness.study.relations import LessonArm

LARGEST = "largest_messages_ns"
_CPU_BACKEND = "gloo"
DRIVER = "nvidia driver"  # as the training names it, which does not say it on every system
_DIGITS = 7  # of a metric: more would be noise in a file that people compare
_MACHINE_DIGITS = 12


def link_metrics(run: Run) -> Metrics:
    """Of each collective and scope the largest message's bus bandwidth and, if a line describes its times, the latency
    α, and the time of all largest messages together; empty for other exercises, or if the file cannot be read."""
    found: Metrics = {}
    total = 0.0
    try:
        for result in (run.known(COLLECTIVES.as_json) or {}).get("results", []):
            name = f"{result['collective']}_{result['scope']}".replace("-", "_")
            fit = result.get("fit")
            if fit and is_line(fit["beta_ns_per_byte"], fit["r2_log"]):
                found[f"{name}_alpha_ns"] = float(fit["alpha_ns"])
            if points := result.get("points"):
                largest = max(points, key=lambda point: point["message_bytes"])
                found[f"{name}_bus_gb_per_s"] = float(largest["busbw_gbytes_per_s"])
                total += float(largest["time_ns"])
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        return {}
    return found | ({LARGEST: total} if total else {})


def shown_ns(run: StoredRun) -> float | None:
    """What a step of the run took: its median; of exercise 0 what its largest messages took."""
    return run.metrics.get("step_ns", run.metrics.get(LARGEST))


def judged_ns(run: StoredRun) -> float | None:
    """The time by which runs are judged: the mean step, in which also what comes in some steps only is seen."""
    return judged_step_ns(run.metrics) or shown_ns(run)


def medians(runs: Sequence[StoredRun]) -> Metrics:
    """Each metric's median over the runs, of those that all of them have."""
    first, *others = (run.metrics for run in runs)
    shared = [name for name in first if all(name in other for other in others)]
    return {name: median(run.metrics[name] for run in runs) for name in shared}


class CollectedRun(NamedTuple):
    """A run as a reference keeps it, and what it asked."""

    run: StoredRun
    environment: Environment
    experiment: Experiment
    compared: Settings


def collect(run: Run, container: str | None = None) -> CollectedRun:
    """What a reference keeps of a completed run. container: sha256 of the image that it ran in, if it is known.
    Raises WorkError: the run left neither steps nor anything else that was measured."""
    summary = _summary(run)
    measured = metrics_by_name(summary, kept_only=True) | link_metrics(run)
    metrics = {name: _short(value) for name, value in measured.items()}
    if not metrics:
        raise WorkError(f"{run.name}: nothing was measured")
    on_this_machine = backend_of_run(run).RUNS_HERE
    stored = StoredRun(
        path=str(run.path.relative_to(run.path.parents[2])),  # below the folder of all runs
        created_ns=run.record.created_ns,
        nodes=() if on_this_machine else tuple(summary.hosts),
        metrics=metrics,
        steps_ns=tuple(map(round, step_durations_ns(summary))),
        doubts=_doubts(summary),
    )
    return CollectedRun(
        stored, environment_of(run, summary, container), run.record.experiment, compared_settings(summary)
    )


def _summary(run: Run) -> Summary:
    """The run's stored summary; measured again if a trace was changed after it."""
    written = run.summary.stat().st_mtime_ns if run.summary.is_file() else 0
    if any(trace.stat().st_mtime_ns > written for trace in run.traces()):
        return measure_request(ReportRequest(tokens=[str(run.path)])).summaries[0]
    return load_summary(str(run.path))[1]


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
    results = run.known(COLLECTIVES.as_json) or {}
    kind, device = device_kind(summary), device_names(summary)
    if isinstance(results.get("device_name"), str):
        kind, device = "cpu" if results.get("backend") == _CPU_BACKEND else "gpu", results["device_name"]
    cores = _monitored(run, "cpus") if kind == "cpu" else None
    here = backend_of_run(run).RUNS_HERE
    host = sha256(run.record.submit_host.encode()).hexdigest()[:_MACHINE_DIGITS]
    return Hardware(
        device_kind=kind,
        device=device or UNKNOWN_DEVICE,
        cores=cores if isinstance(cores, int) else None,
        machine=host if here else None,
    )


def _monitored(run: Run, name: str) -> object:
    """What the monitor of the first node says of its machine; None if it says nothing."""
    for folder in run.monitors():
        with suppress(MonitorError):
            return read_monitor(folder).meta.get(name)
    return None


def _short(value: float) -> float:
    """The value to seven digits; whole numbers, as counts and bytes are, stay exact."""
    return int(value) if value == int(value) else float(f"{value:.{_DIGITS}g}")


def _doubts(summary: Summary) -> tuple[str, ...]:
    findings = [found for found in summary.quality.problems if found.severity is not RecordingVerdict.GOOD]
    return tuple(dict.fromkeys(found.what for found in findings))


class StoredArm(NamedTuple):
    """One arm of a lesson from a reference: the variant, and the medians over its runs as relations read them."""

    variant: StoredVariant
    arm: LessonArm


def on_gpu(reference: Reference) -> bool:
    return reference.hardware.device_kind == "gpu"


def stored_pair(folder: Path, reference: Reference, lesson: Lesson) -> tuple[StoredArm, StoredArm]:
    """The two arms, which agree in everything that the lesson leaves open.

    Raises:
        RequestError: the reference has no such pair.
        WorkError: a file of it is damaged.
    """
    pair = lesson.pair(cpu=not on_gpu(reference))
    fixed = fixed_fields(pair)
    of_a, of_b = ([each for each in reference.variants if is_asked(each.asked, arm, fixed)] for arm in (pair.a, pair.b))
    for a in of_a:
        for b in of_b:
            if open_fields(a.asked, fixed) == open_fields(b.asked, fixed):
                return _arm(folder, reference, a), _arm(folder, reference, b)
    answered = lessons_of(reference)
    there = f"it answers {', '.join(answered)}" if answered else "it answers none"
    raise RequestError(f"--reference {reference.name}: has no two runs for lesson {lesson.name}; {there}")


def lessons_of(reference: Reference) -> list[str]:
    """The lessons of which the reference has both arms, by name."""
    named = Counter(name for each in reference.variants for name in each.lessons)
    return sorted(name for name, arms in named.items() if arms > 1)


def _arm(folder: Path, reference: Reference, variant: StoredVariant) -> StoredArm:
    runs = read_runs(folder, variant).runs
    over_network = all(len(run.nodes) > 1 for run in runs)
    doubts = dict.fromkeys(doubt for run in runs for doubt in run.doubts)
    told = [{"run": variant.name, "what": doubt, "evidence": ""} for doubt in doubts]
    steps = [run.steps_ns for run in runs if run.steps_ns]
    arm = LessonArm(variant.name, medians(runs), on_gpu(reference), over_network, told, steps_ns=steps)
    return StoredArm(variant, arm)

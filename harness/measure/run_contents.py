"""A run's directory besides its traces (record, training metrics, monitor, NCCL's logs), added to a Summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from harness.analysis.network import placed
from harness.analysis.summary import (
    Memory,
    MonitorDevice,
    Nccl,
    NodeNetwork,
    Problem,
    RankTraining,
    RecordingVerdict,
    Summary,
    problem_texts,
)
from harness.common.bounded_read import read_bounded_json, why_unread
from harness.common.paths import PROGRAM
from harness.common.printable import printable_value
from harness.experiment.exercises import Experiment, Training, read_experiment
from harness.experiment.options import options_of
from harness.measure.efficiency import efficiency, profiler_cost
from harness.measure.memory import read_memory
from harness.measure.nccl_log import read_nccl_logs
from harness.measure.planned import predicted_and_measured, read_plan
from harness.measure.run_files import read_monitor, read_traffic, read_training
from harness.measure.step_times import StepTimes, pace_of
from harness.run import TRACE_FOLDERS, Run, without_secrets
from harness.site.site import Site

_OF_PROFILERS = tuple(f"{folder}/" for folder in TRACE_FOLDERS)
_SHOWN_OF_RECORD = (
    "job_id",
    "backend",
    "created_ns",
    "git",
    "program",
    "versions",
    "command",
    "user",
    "submit_host",
    "expects",
)


@dataclass(frozen=True)
class RunContents:
    """What a run's directory holds besides its traces."""

    training: list[RankTraining]
    times: StepTimes  # of the trainings' steps
    monitor: list[MonitorDevice]
    nccl: Nccl | None
    memory: Memory | None
    record: dict[str, Any]
    problems: list[Problem]
    plan: dict[str, Any]
    switches: dict[str, str]  # of each host, as far as Slurm told
    network: list[NodeNetwork]  # by the monitor
    node_gbps: float | None  # a node's share of the network by the site's file


def read_contents(path: Path) -> RunContents:
    run = Run(path)
    times = StepTimes()
    training, broken = read_training(run.metrics(), times)
    monitor, unreadable = read_monitor(run.monitors(), training, _ends(run))
    nccl, unread = read_nccl_logs(run.nccl_logs())
    memory, remarks = read_memory(run.memory_snapshots())
    record, damaged = _record(run)
    missing = _missing(run, record.get("expects") or [])
    problems = [*damaged, *_how_it_ended(run), *missing, *broken, *unreadable, *unread, *remarks]
    switches = {node.host: node.switch for node in run.nodes() if node.switch is not None}
    network, unknown = read_traffic(run.monitors())
    return RunContents(
        training=training,
        times=times,
        monitor=monitor,
        nccl=nccl,
        memory=memory,
        record=record,
        problems=[*problems, *unknown],
        plan=read_plan(run),
        switches=switches,
        network=network,
        node_gbps=_node_gbps(record),
    )


def _network(sampled: Sequence[NodeNetwork], contents: RunContents) -> list[NodeNetwork]:
    """The nodes by the monitor and by nsys, `sampled`, with their switches and links."""
    switches, by_monitor = contents.switches, {node.node: node for node in contents.network}
    return [
        placed(node, switches.get(node.node), by_monitor.get(node.node), contents.node_gbps)
        for node in (*contents.network, *sampled)
    ]


def _node_gbps(record: dict[str, Any]) -> float | None:
    """A node's share of the network by the site's file, Gb/s."""
    of_gpu = _part(_part(record, "site"), "network").get("link_inter_gbps")
    gpus = _part(_part(record, "job"), "experiment").get("gpus_per_node")
    known = [float(x) for x in (of_gpu, gpus) if isinstance(x, (int, float)) and 0 < x < 1e6]
    return known[0] * known[1] if len(known) == 2 else None


def _ends(run: Run) -> dict[str, int]:
    """When the job ended on each node, by both names that its monitor may have: this machine may play several nodes."""
    ended = [node for node in run.nodes() if 0 <= node.ended_ns < 1 << 63]
    return {name: node.ended_ns for node in ended for name in (node.host, f"{node.host}-{node.node}")}


def _record(run: Run) -> tuple[dict[str, Any], list[Problem]]:
    """The content of run.json, or a finding where it is damaged. Only the parts that are used here must be valid."""
    try:
        record = read_bounded_json(run.record_file)
        record = without_secrets(record) if isinstance(record, dict) else record
        asked = _RecordShape.model_validate(record)
    except FileNotFoundError:
        return {}, []
    except (OSError, ValueError) as error:
        what = problem_texts.RECORD_UNREADABLE
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else why_unread(error)
        evidence = f"run.json: {reason}; the settings of the run are not known"
        return {}, [Problem.doubt(what, evidence)]
    expects = asked.job.expects if asked.job else None
    of_profilers = None if expects is None else [x for x in expects if x.startswith(_OF_PROFILERS)]
    return record | {"expects": of_profilers}, []


class _JobShape(BaseModel):
    expects: list[str] | None = None
    experiment: dict[str, Any] | None = None


class _RecordShape(BaseModel):
    """The shape of the parts of run.json that are used here."""

    experiment: dict[str, Any] | None = None
    site: dict[str, Any] | None = None
    job: _JobShape | None = None


def _missing(run: Run, expected: Sequence[str]) -> list[Problem]:
    """A finding where a trace of the requested profiler is missing."""
    lost = [n for n in expected if not any(_has_content(run.path / other) for other in (n, _exported(n)))]
    if not lost:
        return []
    what = problem_texts.NO_TRACE if len(lost) == len(expected) else problem_texts.TRACE_MISSING
    more = f" and {len(lost) - 1} more are missing" if len(lost) > 1 else " is missing"
    status, why = run.status(), "the job has not recorded its end"
    if status is None or status.state not in ("queued", "running"):
        why = f"the program started no profiler, or the profiler failed: see `{PROGRAM} logs RUN`"
    return [Problem.doubt(what, f"{lost[0]}{more}; {why}")]


def _how_it_ended(run: Run) -> list[Problem]:
    """Who was stuck where, or who failed first."""
    status = run.status()
    if status is None or not status.why or status.state == "completed":
        return []
    said = status.why if status.why.startswith(status.state) else f"{status.state}: {status.why}"
    return [Problem(severity=RecordingVerdict.GOOD, what=problem_texts.NOT_COMPLETED, evidence=said)]


def _exported(name: str) -> str:
    """The export of an nsys report, which is enough without the report."""
    return name.replace(".nsys-rep", ".sqlite")


def _has_content(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def with_contents(summary: Summary, contents: RunContents) -> Summary:
    """The summary with the run's own record, training metrics, monitor and NCCL's logs."""
    training, record = contents.training, contents.record
    asked = read_experiment(record.get("experiment"))
    in_phases = {each.phase for each in summary.collective_phases}
    on_host = all(each.device == "cpu" for each in training)
    pace_changes, slowest_rank = pace_of(contents.times, in_phases, on_host=on_host)
    update: dict[str, Any] = {
        "training": training,
        "pace_changes": pace_changes,
        "slowest_rank": slowest_rank,
        "efficiency": efficiency(training, isinstance(asked, Training) and asked.activation_checkpointing),
        "profiler_cost": profiler_cost(training) if summary.sources else None,
        "monitor": contents.monitor,
        "network": _network(summary.network, contents),
        "nccl": contents.nccl,
        "memory": contents.memory,
        "experiment": asked,
        "run": _run_facts(record) if record else None,
        "world_size": summary.world_size or training_world_size(training),
        "hosts": summary.hosts or sorted({t.host for t in training if t.host}),
        "backend": summary.backend or next((t.backend for t in training), None),
        "ranks": summary.ranks or [t.rank for t in training],
    }
    complete = summary.model_copy(update=update)
    complete.predictions = predicted_and_measured(complete, contents.plan)
    return with_problems(complete, [*contents.problems, *_remarks(complete)])


def with_problems(summary: Summary, problems: Sequence[Problem]) -> Summary:
    """The summary with more problems. One of many files that cannot be read makes the rest doubtful, not unusable."""
    quality, order = summary.quality, list(RecordingVerdict)
    severities = [min(f.severity, RecordingVerdict.DOUBTFUL, key=order.index) for f in problems]
    worst = max([quality.verdict, *severities], key=order.index)
    merged = quality.model_copy(update={"verdict": worst, "problems": [*problems, *quality.problems]})
    return summary.model_copy(update={"quality": merged})


def _remarks(summary: Summary) -> list[Problem]:
    """What the numbers of a run without GPUs cannot show."""
    on_cpu = summary.backend == "gloo" or any(d.device_kind == "cpu" for d in summary.devices)
    asked = summary.experiment
    if not isinstance(asked, Experiment) or asked.gpus_only is None or not on_cpu:
        return []
    what, evidence = asked.gpus_only
    return [Problem(severity=RecordingVerdict.GOOD, what=what, evidence=evidence)]


def _run_facts(record: dict[str, Any]) -> dict[str, Any]:
    """The parts of the record that the report shows, and needs to name the next command: site, resolved experiment."""
    site, job = _part(record, "site"), _part(record, "job")
    site["defaults"] = _part(site, "defaults")
    shown = ("name", "defaults", *(option.field for option in options_of(Site)))
    facts = {key: record.get(key) for key in _SHOWN_OF_RECORD} | {
        "site": {key: site.get(key) for key in shown},
        "resolved": job.get("experiment"),
        "image": job.get("image"),
        "device": job.get("device"),
    }
    return {**printable_value(facts)}


def _part(record: dict[str, Any], name: str) -> dict[str, Any]:
    """A copy of an object in the record; empty where there is none, or something else in its place."""
    value = record.get(name)
    return {**value} if isinstance(value, dict) else {}


def training_world_size(training: Sequence[RankTraining]) -> int | None:
    return max((t.world_size for t in training if t.world_size is not None), default=None)

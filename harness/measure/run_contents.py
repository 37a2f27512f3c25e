"""A run's directory besides its traces (record, training metrics, efficiency, plan, monitor, NCCL's logs), added to a
Summary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import BaseModel, ConfigDict

from harness.analysis.metrics import metrics_by_name
from harness.analysis.network import placed
from harness.analysis.summary import (
    Efficiency,
    JobTime,
    Memory,
    MemoryGrowth,
    MonitorDevice,
    Nccl,
    NodeNetwork,
    PredictedNumber,
    Problem,
    ProfilerCost,
    RankTraining,
    RunEnvironment,
    Summary,
    problem_texts,
)
from harness.common.display.printable import printable_value
from harness.common.model.model_config import PRECISION_OF
from harness.common.paths import PROGRAM
from harness.common.run_folder.run_files import ENVIRONMENT, KEPT_VALUES, PLAN
from harness.common.run_folder.run_store import UnreadFileError
from harness.common.run_folder.submission import edit_of
from harness.experiment.exercises import Training, as_recorded, experiment_of, read_experiment, resolved_experiment
from harness.experiment.options import options_of
from harness.heartbeats.dead import restarted
from harness.heartbeats.read import stuck_to_its_end
from harness.measure.environments import read_environments, with_versions
from harness.measure.job_time.records import read_job_time
from harness.measure.memory import read_memory
from harness.measure.memory_growth import MemorySeries, read_growth
from harness.measure.nccl_log import read_nccl_logs
from harness.measure.run_files import read_monitor, read_traffic, read_training
from harness.measure.step_times import RankStepTimes, pace_of
from harness.run import TRACE_FOLDERS, Run, typed, without_secrets
from harness.run.ended import as_written, not_injected, same_rank
from harness.run.record import FINAL, PARTIAL_RECORD_FILE
from harness.site.site import Site
from harness.theory.devices import peak_flops_per_s

FEWEST_STEPS = 3  # of which a median is compared
RECOMPUTED = 4 / 3  # a second forward pass: 8 FLOPs per parameter and token in place of 6
JOB_SECONDS = "job_s"
_OF_PROFILERS = tuple(f"{folder}/" for folder in TRACE_FOLDERS)
_SHOWN_OF_RECORD = (
    *("job_id", "backend", "created_ns", "git", "program", "versions"),
    *("command", "user", "submit_host", "expects"),
)


def efficiency(training: Sequence[RankTraining], recomputes: bool = False) -> Efficiency | None:
    """The job's throughput: every rank's tokens over the slowest rank's time. None without counted steps.

    `recomputes`: the backward pass runs the forward again (activation checkpointing), which HFU counts and MFU
    does not. The peak is the one measured on the device where the training says it, else the device table's.
    Source: Chowdhery et al., PaLM, 2022, appendix B.
    """
    seconds = max((sum(t.step_durations_ns) for t in training), default=0) / 1e9
    if not seconds:
        return None
    tokens, samples = (sum(getattr(t, f) or 0 for t in training) for f in ("tokens", "samples"))
    per_token = training[0].flops_per_token
    flops = tokens / seconds * per_token / len(training) if tokens and per_token else None
    peak = _peak(training[0])
    mfu = flops / peak[0] if flops is not None and peak is not None else None
    return Efficiency(
        tokens_per_s=tokens / seconds if tokens else None,
        samples_per_s=samples / seconds if samples else None,
        step_ns=round(median(t.median_step_ns for t in training if t.median_step_ns is not None)),
        model_flops_per_s_per_device=flops,
        peak_flops_per_s=peak[0] if peak else None,
        peak_source=peak[1] if peak else None,
        mfu=mfu,
        hfu=mfu * RECOMPUTED if mfu is not None and recomputes else None,
    )


def profiler_cost(training: Sequence[RankTraining]) -> ProfilerCost | None:
    """The profiled steps against the other steps of the same ranks; None: too few of either, or none was profiled."""
    both = [
        (t.median_step_on_core_ns, t.median_unprofiled_step_on_core_ns)
        for t in training
        if t.phase_counted == "active" and min(t.steps_counted, t.unprofiled_steps) >= FEWEST_STEPS
    ]
    times = [(inside, outside) for inside, outside in both if inside and outside]
    if not times:
        return None
    inside_ns, outside_ns = (round(median(column)) for column in zip(*times, strict=True))
    return ProfilerCost(profiled_step_ns=inside_ns, unprofiled_step_ns=outside_ns, ratio=inside_ns / outside_ns)


def _peak(training: RankTraining) -> tuple[float, str] | None:
    if training.peak_flops_per_s:  # a file that was changed may say 0
        return training.peak_flops_per_s, "measured on the device"
    precision = PRECISION_OF.get((training.dtype or "").removeprefix("torch."))
    if training.device_name is None or precision is None:
        return None
    return peak_flops_per_s(training.device_name, precision)


class _Number(BaseModel):
    """What is read of a number of plan.json."""

    model_config = ConfigDict(extra="ignore", defer_build=True)

    label: str
    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    formula: str | None = None
    source: str | None = None


class _NumbersDocument(BaseModel):
    model_config = ConfigDict(extra="ignore", defer_build=True)

    numbers: dict[str, _Number]


PLAN_FILE = typed(PLAN, _NumbersDocument)


def read_plan(run: Run) -> dict[str, Any]:
    """The numbers of plan.json by name, and the seconds that the job took; empty without a plan that can be read."""
    plan = run.known(PLAN_FILE)
    if plan is None:
        return {}
    status = run.status()
    elapsed_ns = status.elapsed_ns if status else None
    return {"numbers": plan.numbers, "measured": {JOB_SECONDS: elapsed_ns / 1e9} if elapsed_ns else {}}


def predicted_and_measured(summary: Summary, plan: Mapping[str, Any]) -> list[PredictedNumber]:
    """Each number of the plan that has a metric of the same name, in the plan's order; a metric of 0 has none."""
    if not plan:
        return []
    numbers: dict[str, _Number] = plan["numbers"]
    measured = {**metrics_by_name(summary), **plan["measured"]}
    return [
        PredictedNumber(
            name=name,
            label=number.label.strip(),
            predicted=number.value,
            measured=measured[name],
            ratio=measured[name] / number.value,
            **number.model_dump(exclude={"label", "value"}),
        )
        for name, number in numbers.items()
        if measured.get(name) and number.value > 0
    ]


@dataclass(frozen=True)
class RunContents:
    """What a run's directory holds besides its traces."""

    training: list[RankTraining]
    times: RankStepTimes  # of the trainings' steps
    monitor: list[MonitorDevice]
    nccl: Nccl | None
    memory: Memory | None
    memory_growth: list[MemoryGrowth]
    record: dict[str, Any]
    problems: list[Problem]
    plan: dict[str, Any]
    switches: dict[str, str]  # of each host, as far as Slurm told
    network: list[NodeNetwork]  # by the monitor
    node_gbps: float | None  # a node's share of the network by the site's file
    job_time: JobTime | None
    environments: list[RunEnvironment]

    @property
    def world_size(self) -> int | None:
        """As the training recorded it."""
        return max((t.world_size for t in self.training if t.world_size is not None), default=None)


def read_contents(path: Path) -> RunContents:
    run = Run(path)
    times, series = RankStepTimes(), MemorySeries()
    training, broken = read_training(run.metrics(), times, series)
    monitor, unreadable = read_monitor(run.monitors(), training, _ends(run))
    nccl, unread = read_nccl_logs(run.nccl_logs())
    memory, remarks = read_memory(run.memory_snapshots())
    memory_growth, unread_values = read_growth(series, KEPT_VALUES.paths(path))
    environments, unknown_environments = read_environments(ENVIRONMENT.paths(path))
    record, damaged = _record(run)
    missing = _missing(run, record.get("expects") or [])
    network, unknown = read_traffic(run.monitors())
    return RunContents(
        training=with_versions(training, environments),
        times=times,
        monitor=monitor,
        nccl=nccl,
        memory=memory,
        memory_growth=memory_growth,
        record=record,
        problems=[
            *damaged,
            *_how_it_ended(run),
            *missing,
            *broken,
            *unreadable,
            *unread,
            *remarks,
            *unread_values,
            *unknown,
            *unknown_environments,
        ],
        plan=read_plan(run),
        switches={node.host: node.switch for node in run.nodes() if node.switch is not None},
        network=network,
        node_gbps=_node_gbps(record),
        job_time=read_job_time(run),
        environments=environments,
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
    nodes = run.nodes()
    return {name: node.ended_ns or 0 for node in nodes for name in (node.host, f"{node.host}-{node.node}")}


def _record(run: Run) -> tuple[dict[str, Any], list[Problem]]:
    """The content of run.json without secrets, or a finding where it is damaged. Only the parts that are used here must
    be valid."""
    try:
        record = without_secrets(run.read(PARTIAL_RECORD_FILE))
    except UnreadFileError as error:
        if error.is_missing:
            return {}, []
        evidence = f"run.json: {error.reason}; the settings of the run are not known"
        return {}, [Problem.doubt(problem_texts.RECORD_UNREADABLE, evidence)]
    expects = (record.get("job") or {}).get("expects")
    of_profilers = None if expects is None else [x for x in expects if x.startswith(_OF_PROFILERS)]
    return record | {"expects": of_profilers}, []


def _missing(run: Run, expected: Sequence[str]) -> list[Problem]:
    """A finding where a trace of the requested profiler is missing."""
    # the export of an nsys report is enough without the report
    files = [(name, [run.path / name, run.path / name.replace(".nsys-rep", ".sqlite")]) for name in expected]
    lost = [name for name, paths in files if not any(path.is_file() and path.stat().st_size for path in paths)]
    if not lost:
        return []
    what = problem_texts.NO_TRACE if len(lost) == len(expected) else problem_texts.TRACE_MISSING
    more = f" and {len(lost) - 1} more are missing" if len(lost) > 1 else " is missing"
    status, why = run.status(), "the job has not recorded its end"
    if status is None or status.state not in ("queued", "running"):
        why = f"the program started no profiler, or the profiler failed: see `{PROGRAM} logs RUN`"
    return [Problem.doubt(what, f"{lost[0]}{more}; {why}")]


def _how_it_ended(run: Run) -> list[Problem]:
    """Who was stuck where, or who failed first; who trains alone; which fault of a completed run was not injected."""
    status = run.status()
    alone = same_rank(run.path)
    found = [Problem.remark(problem_texts.TRAIN_ALONE, alone)] if alone else []
    if status is None or status.state not in FINAL:
        return found
    end = as_written(run, status)
    if end.state == "completed":
        idle, again = not_injected(run), restarted(run.path)
        found += [Problem.doubt(problem_texts.NOT_INJECTED, idle)] if idle else []
        return [*found, *([Problem.remark(problem_texts.STARTED_AGAIN, again)] if again else [])]
    hang = stuck_to_its_end(run.path)
    why = (end.why or (hang.since_clock if hang else "")) + (f"; try: {hang.advice}" if hang else "")
    said = why if why.startswith(end.state) else ": ".join(filter(None, [end.state, why]))
    return [Problem.remark(problem_texts.NOT_COMPLETED, said), *found]


def with_contents(summary: Summary, contents: RunContents) -> Summary:
    """The summary with the run's own record, training metrics, monitor and NCCL's logs."""
    training, record = contents.training, contents.record
    asked = read_experiment(record.get("experiment"))
    in_phases = {each.phase for each in summary.collective_phases}
    on_host = all(each.device == "cpu" for each in training)
    pace_changes, slowest_rank = pace_of(contents.times, in_phases, on_host=on_host)
    update: dict[str, Any] = {
        "training": training,
        "job_time": _job_time(contents),
        "environments": contents.environments,
        "pace_changes": pace_changes,
        "slowest_rank": slowest_rank,
        "efficiency": efficiency(training, isinstance(asked, Training) and asked.activation_checkpointing),
        "profiler_cost": profiler_cost(training) if summary.sources else None,
        "monitor": contents.monitor,
        "network": _network(summary.network, contents),
        "nccl": contents.nccl,
        "memory": contents.memory,
        "memory_growth": contents.memory_growth,
        "experiment": as_recorded(asked),
        "run": _run_facts(record) if record else None,
        "world_size": summary.world_size or contents.world_size,
        "hosts": summary.hosts or sorted({t.host for t in training if t.host}),
        "backend": summary.backend or next((t.backend for t in training), None),
        "ranks": summary.ranks or [t.rank for t in training],
    }
    complete = summary.model_copy(update=update)
    complete.predictions = predicted_and_measured(complete, contents.plan)
    return complete.with_problems([*contents.problems, *_remarks(complete)])


def _job_time(contents: RunContents) -> JobTime | None:
    """With GPU hours and energy, where they are known."""
    found = contents.job_time
    if found is None:
        return None
    job = _part(contents.record, "job")
    sizes = [_part(job, "experiment").get(name) for name in ("nodes", "gpus_per_node")]
    gpus = [size for size in sizes if isinstance(size, int) and 0 < size < 1e6]
    energy = [device.energy_joules for device in contents.monitor]
    known = [joules for joules in energy if joules is not None]
    return found.model_copy(
        update={
            "gpu_time_ns": gpus[0] * gpus[1] * found.elapsed_ns
            if job.get("device") == "cuda" and len(gpus) == 2
            else None,
            "energy_joules": sum(known) if known and len(known) == len(energy) else None,
        }
    )


def _remarks(summary: Summary) -> list[Problem]:
    """What the numbers of a run without GPUs cannot show."""
    on_cpu = summary.backend == "gloo" or any(d.device_kind == "cpu" for d in summary.devices)
    asked = experiment_of(summary.experiment)
    if asked is None or asked.gpus_only is None or not on_cpu:
        return []
    return [Problem.remark(*asked.gpus_only)]


def _run_facts(record: dict[str, Any]) -> dict[str, Any]:
    """The parts of the record that the report shows, and needs to name the next command: site, resolved experiment."""
    site, job = _part(record, "site"), _part(record, "job")
    site["defaults"] = _part(site, "defaults")
    shown = ("name", "defaults", *(option.field for option in options_of(Site)))
    edit = edit_of(record.get("edited", ""))
    facts = {key: record.get(key) for key in _SHOWN_OF_RECORD} | {
        "inherited": record.get("inherited", {}),
        "limits": record.get("limits", {}),
        "edited": edit._asdict() if edit else None,
        "site": {key: site.get(key) for key in shown},
        "resolved": job.get("experiment"),
        "image": job.get("image"),
        "device": job.get("device"),
    }
    asked = resolved_experiment(record.get("experiment"), facts)
    return {**printable_value(facts), "theory": asked.for_theory if asked else None}


def _part(record: dict[str, Any], name: str) -> dict[str, Any]:
    """A copy of an object in the record; empty where there is none, or something else in its place."""
    value = record.get(name)
    return {**value} if isinstance(value, dict) else {}

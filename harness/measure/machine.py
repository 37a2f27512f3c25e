"""What the monitor says of the machine: whether other programs used its cores, the devices' means, the network's
traffic. Knows no trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median

from harness.analysis.network import NodeTraffic, rates_of
from harness.analysis.summary import MonitorDevice, Problem, RankTraining, RecordingVerdict
from harness.analysis.summary.problem_texts import BUSY, CROWDED, MONITOR_GAP, NO_MONITOR, OTHER_GPUS
from harness.common.display.printable import printable
from harness.monitor.network import NicSeries, summed
from harness.monitor.samples import NodeSamples
from harness.monitor.source import Gap
from harness.monitor.summary import summarize

_NOTICEABLE = 0.1  # of the cores; what a quiet machine does beside a job stays well below it
_FULL = 0.9  # of the cores in use: the job could hardly take another core
_SEEN = 0.02  # of a core for each rank: ranks that train use more even on a full machine, so the monitor missed them
_COVERED = 0.9  # of the profiled steps' time that samples must cover
_JOB, _MACHINE = "utilization_percent", "machine_utilization_percent"

Span = tuple[int, int]  # unix nanoseconds
_LEAST_NS = 3_000_000_000  # that a monitor ends before its job is no loss
_PERIODS = 3


@dataclass(frozen=True)
class Cores:
    """One machine's cores while it was measured. `usable`: cores that the job may run on; `job` and `others`: how many
    of them the job and other programs used. `others` is a lower bound: the machine may have more cores than the job."""

    hosts: tuple[str, ...]
    usable: int
    ranks: int
    job: float | None
    others: float | None
    when: str

    @property
    def are_disturbed(self) -> bool:
        """Whether other programs used so much of the cores that the job had to wait for one."""
        if self.job is None or self.others is None or self.others < _NOTICEABLE * self.usable:
            return False
        if self.job < _SEEN * min(self.ranks, self.usable):
            return False
        full = self.job + self.others >= _FULL * self.usable
        return full or self.ranks > self.usable - self.others


def judge_machines(recordings: Sequence[NodeSamples], training: Sequence[RankTraining]) -> list[Problem]:
    """The doubts about the times of ranks that run on cores, one finding per machine and reason."""
    on_cores = [t for t in training if t.device == "cpu"]
    span = _profiled(on_cores)
    machines: dict[str, list[NodeSamples]] = {}
    for recording in recordings:
        if recording.source == "processes":
            machines.setdefault(str(recording.meta.get("machine") or recording.host), []).append(recording)
    return [
        problem
        for of_one in machines.values()
        if (cores := _cores(of_one, on_cores, span)) is not None
        for problem in _problems(cores)
    ]


def _problems(cores: Cores) -> Iterator[Problem]:
    where = ", ".join(cores.hosts)
    if cores.are_disturbed and cores.job is not None and cores.others is not None:
        job, others = (f"{100 * part / cores.usable:.0f} %" for part in (cores.job, cores.others))
        seen = f"{where}: {cores.when} the job used {job} of {cores.usable} cores, other programs at least {others}"
        yield Problem.doubt(BUSY, f"{seen}; times are too long, by unequal amounts: repeat the run on a quiet machine")
    if cores.ranks > cores.usable:
        seen = f"{where}: {cores.ranks} ranks on {cores.usable} core{'s' * (cores.usable > 1)}"
        why = f"{seen} take turns; counts and bytes are correct, but times include waiting for a core"
        yield Problem.doubt(CROWDED, why)


def _profiled(training: Sequence[RankTraining]) -> Span | None:
    """From the first profiled step's start to the last one's end, of any rank."""
    spans = [t.profiled_unix_ns for t in training if t.profiled_unix_ns is not None]
    return (min(a for a, _ in spans), max(b for _, b in spans)) if spans else None


def _cores(recordings: Sequence[NodeSamples], training: Sequence[RankTraining], span: Span | None) -> Cores | None:
    """The cores of one machine, which may stand for several nodes with a monitor each; None where no rank runs on its
    cores, or the number of cores was not recorded."""
    usable = max((_count(r, "cpus") or 0 for r in recordings), default=0)
    ranks = sum(any(_is_on(t, r) for r in recordings) for t in training)
    if not usable or not ranks:
        return None
    inside = span if span is not None and all(_covers(r, span) for r in recordings) else None
    job = [_share(r, _JOB, inside) for r in recordings]
    machine = [_share(r, _MACHINE, inside) for r in recordings]
    every = max((_count(r, "machine_cpus") or 0 for r in recordings), default=0)
    hosts = tuple(r.host for r in recordings)
    when = "over the counted steps" if inside else "over the whole run"
    if not every or None in (*job, *machine):
        return Cores(hosts, usable, ranks, None, None, when)
    used = sum(share or 0.0 for share in job) * usable
    in_use = sum(share or 0.0 for share in machine) / len(machine) * every
    return Cores(hosts, usable, ranks, used, max(in_use - used - (every - usable), 0.0), when)


def _count(recording: NodeSamples, name: str) -> int | None:
    value = recording.meta.get(name)
    return value if isinstance(value, int) else None


def _is_on(rank_training: RankTraining, recording: NodeSamples) -> bool:
    """Whether this monitor watched the rank's node. A machine that stands for several nodes numbers them."""
    host = (rank_training.host or "").split(".")[0]
    return recording.host in (rank_training.host, host, f"{host}-{rank_training.node}")


def _covers(recording: NodeSamples, span: Span) -> bool:
    covered = sum(weight for _, weight in _weighted(recording, _MACHINE, span))
    return covered >= _COVERED * (span[1] - span[0])


def _share(recording: NodeSamples, column: str, span: Span | None) -> float | None:
    """Mean over the span, 0 to 1; without a span the median of all samples, as the first may miss ranks that start."""
    if span is None:
        values = [value for device in recording.devices for _, value in device.points(column)]
        return median(values) / 100 if values else None
    weighted = _weighted(recording, column, span)
    total = sum(weight for _, weight in weighted)
    return sum(value * weight for value, weight in weighted) / total / 100 if total else None


def _weighted(recording: NodeSamples, column: str, span: Span) -> list[tuple[float, int]]:
    """Samples with their nanoseconds in the span: a sample is about the time since the sample before."""
    found = []
    for device in recording.devices:
        before = dict(zip(device.unix_ns[1:], device.unix_ns[:-1], strict=True))
        for at_ns, value in device.points(column):
            weight = min(at_ns, span[1]) - max(before.get(at_ns, at_ns - recording.period_ns), span[0])
            if weight > 0:
                found.append((value, weight))
    return found


Ends = Mapping[str, int]
"""By the monitor's name of a node: when the job's part there ended."""


def judge_monitors(
    recordings: Sequence[NodeSamples], training: Sequence[RankTraining], ends: Ends
) -> Iterator[Problem]:
    """A finding for each node and each stretch that its monitor missed, also before the job's end there."""
    span = _profiled(training)
    for recording in recordings:
        lost = lost_end(recording, ends)
        for begin_ns, end_ns in [*recording.gaps, *([lost] if lost else [])]:
            begin, end = (datetime.fromtimestamp(ns / 1e9).strftime("%H:%M:%S") for ns in (begin_ns, end_ns))
            evidence = (
                f"{recording.host}: no samples for {(end_ns - begin_ns) / 1e9:.1f} s, from {begin} to {end}; its means "
                "do not cover this time"
            )
            yield Problem(severity=_severity((begin_ns, end_ns), span), what=MONITOR_GAP, evidence=evidence)


def judge_devices(recordings: Sequence[NodeSamples], training: Sequence[RankTraining]) -> Iterator[Problem]:
    """What each monitor said of GPUs that it does not sample as the job sees them. A job on cores needs none."""
    for recording in recordings:
        ranks = [t for t in training if _is_on(t, recording)] or training
        if recording.of_gpus or not ranks or any(t.device != "cpu" for t in ranks):
            for note in recording.notes:
                yield Problem.remark(OTHER_GPUS, f"{printable(recording.host)}: {printable(note)}")


def never_started(folders: Iterable[Path], recordings: Sequence[NodeSamples], ends: Ends) -> Iterator[Problem]:
    """A finding for each node that the job ended on, and whose monitor left nothing."""
    for folder in folders:
        if folder.name in ends and not any(recording.folder == folder for recording in recordings):
            why = f"{folder.name}: memory, utilisation and energy there are not known; log.err says why it ended"
            yield Problem.doubt(NO_MONITOR, why)


def lost_end(recording: NodeSamples, ends: Ends) -> Gap | None:
    """From the last sample of a monitor that died to the end of its job; None where nothing is lost."""
    end_ns = ends.get(recording.host)
    last_ns = recording.span_ns[1] or max(recording.starts, default=0)
    if end_ns is None or not recording.died or end_ns - last_ns < max(_LEAST_NS, _PERIODS * recording.period_ns):
        return None
    return last_ns, end_ns


def monitored_devices(recording: NodeSamples, ends: Ends) -> Iterator[MonitorDevice]:
    """What the monitor saw of each device of its node. An energy that leaves a part of the job out is not given."""
    node = summarize(recording)
    whole = node.duration_ns > 0 and lost_end(recording, ends) is None
    for device in node.devices:
        known = whole and device.energy_joules is not None and not device.energy_lacks_ns
        yield MonitorDevice(
            node=printable(node.host),
            device=device.device,
            name=printable(device.name),
            samples=device.samples,
            duration_ns=node.duration_ns,
            gaps_ns=node.gaps_ns,
            mean_utilization_percent=device.mean_utilization_percent,
            mean_sm_active_percent=device.mean_sm_active_percent,
            mean_tensor_active_percent=device.mean_tensor_active_percent,
            mean_dram_active_percent=device.mean_dram_active_percent,
            peak_memory_bytes=device.peak_memory_bytes,
            memory_total_bytes=device.memory_total_bytes,
            mean_power_watts=device.mean_power_watts,
            max_power_watts=device.max_power_watts,
            energy_joules=device.energy_joules if known else None,
            energy_from=device.energy_from if known else None,
            clock_limit_shares=device.clock_limits,
        )


def _severity(missing: Gap, profiled: Span | None) -> RecordingVerdict:
    """Doubtful where nobody saw what else ran during the profiled steps; else a remark."""
    apart = profiled is not None and (missing[1] <= profiled[0] or profiled[1] <= missing[0])
    return RecordingVerdict.GOOD if apart else RecordingVerdict.DOUBTFUL


def traffic_of_monitor(nics: Sequence[NicSeries]) -> NodeTraffic:
    """What the monitor's counters say of a node's network."""
    speeds = [nic.nic.gbps for nic in nics]
    known = [gbps for gbps in speeds if gbps is not None]
    sent, received = (rates_of(summed(nics, column)) for column in ("sent_bytes", "received_bytes"))
    gbps = sum(known) if len(known) == len(speeds) else None
    return NodeTraffic([nic.nic.name for nic in nics], sent, received, gbps)

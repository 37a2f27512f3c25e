"""Whether the monitor beside a job saw all of it: where it died, what its numbers then are about. Reads no trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from harness.analysis.summary import MonitorDevice, Problem, RankTraining, RecordingVerdict
from harness.analysis.summary.problem_texts import MONITOR_DIED, MONITOR_GAP, NO_MONITOR
from harness.common.printable import printable
from harness.monitor.gaps import Gap
from harness.monitor.samples import Recording
from harness.monitor.summary import NodeSummary, summarize

_LEAST_NS = 3_000_000_000  # that a monitor ends before its job is no loss
_PERIODS = 3

Span = tuple[int, int]  # unix nanoseconds
Ends = Mapping[str, int]
"""By the monitor's name of a node: when the job's part there ended."""


def judge_monitors(
    recordings: Sequence[Recording], training: Sequence[RankTraining], ends: Ends
) -> Iterator[Problem]:
    """A finding for each node and each stretch that its monitor missed."""
    profiled = [t.profiled_unix_ns for t in training if t.profiled_unix_ns is not None]
    span = (min(a for a, _ in profiled), max(b for _, b in profiled)) if profiled else None
    for recording in recordings:
        for gap in recording.gaps:
            yield Problem(severity=_severity(gap, span), what=MONITOR_GAP, evidence=_of_gap(recording, gap))
        lost = lost_end(recording, ends)
        if lost is not None:
            yield Problem(
                severity=_severity(lost, span), what=MONITOR_DIED, evidence=_of_end(recording, lost)
            )


def never_started(folders: Iterable[Path], recordings: Sequence[Recording], ends: Ends) -> Iterator[Problem]:
    """A finding for each node that the job ended on, and whose monitor left nothing."""
    for folder in folders:
        if folder.name in ends and not any(recording.folder == folder for recording in recordings):
            why = f"{folder.name}: memory, utilisation and energy there are not known; log.err says why it ended"
            yield Problem.doubt(NO_MONITOR, why)


def lost_end(recording: Recording, ends: Ends) -> Gap | None:
    """From the last sample of a monitor that died to the end of its job; None where nothing is lost."""
    end_ns = ends.get(recording.host)
    last_ns = recording.span_ns[1] or max(recording.starts, default=0)
    if (
        end_ns is None
        or not recording.died
        or end_ns - last_ns < max(_LEAST_NS, _PERIODS * recording.period_ns)
    ):
        return None
    return last_ns, end_ns


def monitored_devices(recording: Recording, ends: Ends) -> Iterator[MonitorDevice]:
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
            peak_memory_bytes=device.peak_memory_bytes,
            memory_total_bytes=device.memory_total_bytes,
            mean_power_watts=device.mean_power_watts,
            max_power_watts=device.max_power_watts,
            energy_joules=device.energy_joules if known else None,
            energy_from=device.energy_from if known else None,
        )


def _severity(missing: Gap, profiled: Span | None) -> RecordingVerdict:
    """Doubtful where nobody saw what else ran during the profiled steps; else a remark."""
    apart = profiled is not None and (missing[1] <= profiled[0] or profiled[1] <= missing[0])
    return RecordingVerdict.GOOD if apart else RecordingVerdict.DOUBTFUL


def _of_gap(recording: Recording, gap: Gap) -> str:
    again = any(gap[0] < start <= gap[1] for start in recording.starts[1:])
    why = "it died and was started again" if again else "it could not sample"
    return (
        f"{recording.host}: {why}: no samples for {_seconds(gap)} s, from {_clock(gap[0])} to {_clock(gap[1])}; "
        f"its means cover the sampled {_share(recording)} of its time{_energy(summarize(recording))}"
    )


def _of_end(recording: Recording, lost: Gap) -> str:
    times = len(recording.starts)
    again = "" if times == 1 else " and was started again only once" if times == 2 else f", {times} times"
    return (
        f"{recording.host}: it ended {_seconds(lost)} s before the training there did{again}: no samples after "
        f"{_clock(lost[0])}; its numbers cover the time before, and the energy is not given"
    )


def _share(recording: Recording) -> str:
    start_ns, end_ns = recording.span_ns
    missing = sum(after - before for before, after in recording.gaps)
    return f"{100 * (1 - missing / max(1, end_ns - start_ns)):.1f} %"


def _energy(node: NodeSummary) -> str:
    known = [device for device in node.devices if device.energy_joules is not None]
    if not known:
        return ""
    lacks = any(device.energy_lacks_ns for device in known)
    return (
        "; the energy is not given"
        if lacks
        else "; the energy covers all of it, because the device's counter continued"
    )


def _seconds(span: Gap) -> str:
    return f"{(span[1] - span[0]) / 1e9:.1f}"


def _clock(unix_ns: int) -> str:
    return datetime.fromtimestamp(unix_ns / 1e9).strftime("%H:%M:%S")

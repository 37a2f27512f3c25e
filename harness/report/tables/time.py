"""The tables about time: shares of the window, kinds of work, phases, idle causes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.analysis.device_time import with_known
from harness.analysis.labels import are_cpus, cause_word, is_cpu, short_place
from harness.analysis.summary import BeforeSteps, Device, HostActivity, IdleCause, KindTime, PhaseTime, Summary
from harness.analysis.summary.problem_texts import WHOLE_GRAPHS
from harness.common.display.format import amount, apart, duration, of, percent
from harness.report.tables.table import Column, TableOf, file_of

_LEAST_BEFORE = 0.05  # of what was recorded, from which the time before the first step is a row
_ACTIVITIES = 12
Labelled = tuple[str, Device]
PHASES = TableOf[PhaseTime](
    caption="Phases of training, on the devices",
    rows=lambda s: s.phases if any(p.phase != "other" for p in s.phases) else [],
    columns=(
        Column("phase", "phase"),
        Column("time", "duration_ns"),
        Column("share", "share"),
        Column("compute", "compute_ns"),
        Column("communication", "communication_ns"),
        Column("count", "kernels"),
    ),
    section="phases",
    file=file_of("phases"),
)


def device_labels(some: Sequence[Device], devices: Sequence[Device]) -> list[str]:
    """Of some of a job's devices the rank, and the device where a rank has several."""
    several = len({(x.rank, x.device) for x in devices}) > len({x.rank for x in devices})
    return [_label(d, several) for d in some]


def _label(d: Device, several: bool) -> str:
    who = f"rank {d.rank}" if d.rank is not None else "process" if is_cpu(d) else f"device {d.device}"
    return f"{who}, device {d.device}" if d.rank is not None and several else who


def _split_caption(s: Summary) -> str:
    window = s.window.value if s.steps.duration else "device extent"
    return f"Where the time went, shares of the window ({window}); overlap: share of communication hidden by compute"


def _causes(d: Device) -> str:
    causes = (f"{cause_word(c.cause, is_cpu(d))} {of(c.duration_ns, d.window_ns)}" for c in d.idle_causes)
    return ", ".join(causes) or "–"


def labelled(devices: Sequence[Device], s: Summary) -> list[Labelled]:
    return list(zip(device_labels(devices, s.devices), devices, strict=True))


SPLIT = TableOf[Labelled](
    caption=_split_caption,
    rows=lambda s: labelled(s.devices, s),
    columns=(
        Column(lambda s: "process (CPU)" if are_cpus(s.devices) else "device", lambda x: x[0]),
        Column("window", lambda x: duration(x[1].window_ns)),
        Column("compute", lambda x: of(x[1].compute_ns, x[1].window_ns)),
        Column("communication", lambda x: of(x[1].communication_ns, x[1].window_ns)),
        Column("exposed", lambda x: of(x[1].exposed_communication_ns, x[1].window_ns)),
        Column("overlap", lambda x: percent(x[1].overlap_fraction)),
        Column("memory", lambda x: of(x[1].memory_ns, x[1].window_ns)),
        Column("idle", lambda x: of(x[1].idle_ns, x[1].window_ns)),
        Column("peak memory", lambda x: amount(x[1].peak_memory_bytes)),
        Column("idle by cause", lambda x: _causes(x[1])),
    ),
    figure="time-split",
    in_terminal=lambda s: False,  # of many devices it shows some: terminal.py
    spare=("idle by cause", "peak memory", "memory", "window"),
    file=file_of("devices"),
)


def kind_label(k: KindTime) -> str:
    return f"{k.kind} {k.precision}" if k.precision else k.kind


def _kinds_caption(s: Summary) -> str:
    graphs = any(problem.what == WHOLE_GRAPHS for problem in s.quality.problems)
    return "Kinds of work, all devices" + ("; communication: only outside of CUDA graphs" if graphs else "")


KINDS = TableOf[KindTime](
    caption=_kinds_caption,
    rows=lambda s: s.kinds,
    columns=(
        Column("kind", kind_label),
        Column("time", "duration_ns"),
        Column("share", "share"),
        Column("count", "count"),
    ),
    figure="kinds",
    file=file_of("kinds"),
)


def _cause_caption(s: Summary) -> str:
    knowing, every = len(with_known(s.devices, "idle_ns")), len(s.devices)
    return f"Idle time by cause, {'all devices' if knowing == every else f'{knowing} of {every} devices'}"


CAUSES = TableOf[tuple[str, IdleCause]](
    caption=_cause_caption,
    rows=lambda s: [(cause_word(c.cause, are_cpus(s.devices)), c) for c in s.idle_causes],
    columns=(
        Column("cause", lambda x: x[0]),
        Column("time", lambda x: duration(x[1].duration_ns)),
        Column("share of idle", lambda x: percent(x[1].share)),
    ),
    file=file_of("idle_causes"),
)


def _before(field: str) -> Column[BeforeSteps]:
    return Column(field.removesuffix("_ns").replace("_", " "), lambda b: of(getattr(b, field), b.duration_ns))


BEFORE_STEPS = TableOf[BeforeSteps](
    caption="Before the first step, and its parts as shares of that time",
    rows=lambda s: [b for b in s.before_steps if b.duration_ns >= _LEAST_BEFORE * b.recorded_ns],
    columns=(
        Column("rank", "rank"),
        Column("time", "duration_ns"),
        Column("of recorded", lambda b: of(b.duration_ns, b.recorded_ns)),
        *map(_before, ("copies_ns", "first_use_ns", "compile_ns", "capture_ns", "meeting_ns", "data_ns")),
        *map(_before, ("model_ns", "imports_ns", "device_ns", "unknown_ns")),
    ),
    section="split",
    file=file_of("before_steps"),
)


def _innermost(a: HostActivity) -> str:
    """The function in which most of it passed, with its time; only where the others do not name it."""
    if a.innermost is None or a.innermost == a.where:
        return "–"
    return f"{duration(a.innermost_ns)} {short_place(a.innermost)}"


HOST_ACTIVITIES = TableOf[HostActivity](
    caption="What the host did while a device had no work",
    rows=lambda s: [
        a.model_copy(update={"cause": cause_word(a.cause, are_cpus(s.devices))})
        for a in sorted(s.host_activities, key=lambda a: -a.idle_ns)[:_ACTIVITIES]  # of all processes
    ],
    columns=(
        Column("idle time", "idle_ns"),
        Column("cause", "cause"),
        Column("the host", "what", apart, page=50),
        Column("where", lambda a: short_place(a.where) if a.where else "–", apart, page=60),
        Column("most of it in", _innermost, apart, page=60),
        Column("operator", "operator", apart, page=50),
        Column("inside range", "range", apart, page=50),
        Column("phase", "phase"),
        Column("rank", "rank"),
        Column("times", "count"),
        Column("longest", "longest_ns"),
    ),
    left=9,
    section="split",
    spare=("operator", "longest", "times", "rank", "inside range", "most of it in"),
    file=file_of("host_activities"),
)


TABLES: tuple[TableOf[Any], ...] = (SPLIT, BEFORE_STEPS, KINDS, PHASES, CAUSES, HOST_ACTIVITIES)

"""The tables about efficiency, pace, kernels and ranges, pipeline stages and the plan, and the same in one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from harness.analysis import summary
from harness.analysis.labels import are_cpus, work_word
from harness.analysis.metric_values import Facts
from harness.analysis.metrics import Metric
from harness.analysis.pace import DetectedChange
from harness.analysis.slowest_rank import Slowest
from harness.analysis.summary import Summary
from harness.common.format import apart, duration, of, percent, quantity, quantity_range, short
from harness.common.module_ranges import module_of
from harness.explain.pace import change_sentence, returns, slowest_sentence, worth_telling
from harness.measure.page_data import PipelinePass
from harness.report.tables.table import Column, File, TableOf, file_of, plain

_SHOWN = {  # field of PopEfficiency -> how far it is indented, its name, and of what it is a share
    "parallel": (0, "parallel efficiency", "mean compute of the devices / elapsed time"),
    "load_balance": (1, "load balance", "mean compute of the devices / largest compute of a device"),
    "communication": (
        1, "communication efficiency", "largest compute of a device / largest active time of a device",
    ),
    "serialisation": (2, "serialisation", "the part that remains after waiting for other ranks"),
    "transfer": (2, "transfer", "elapsed time with an ideal network / elapsed time"),
    "orchestration": (1, "orchestration efficiency", "largest active time of a device / elapsed time"),
}  # fmt: skip
# field of PopEfficiency -> name for compare and --fail-if
METRICS = {field: field if field == "load_balance" else f"{field}_efficiency" for field in _SHOWN}
Row = tuple[str, float | None, str]  # the field, its value, and of what it is a share, or why it is not known
TOP = 12  # shown rows of long tables
_UNKNOWN = 8  # shown kernels that no rule recognises
_Range = tuple[summary.RangeTime, bool]  # and whether the job has a device: without a device no work is shown
_Kernel = tuple[summary.KernelTime, bool]  # and whether the job communicates: else nothing can overlap
_FEW = 4  # changes of pace with a sentence of their own
_RANKS = 8  # of a change, by their numbers
_NAMED = 3  # outliers with a sentence of their own
_PLACES = 8  # in the terminal
_MEASURES = {"step": "behind the median step", "own work": "behind the median in its own work"}


def efficiency_label(field: str, indent: str) -> str:
    """The name of an efficiency, indented below the one of which it is a factor."""
    depth, name, _ = _SHOWN[field]
    return indent * depth + name


def _rows(s: Summary) -> list[Row]:
    """Each efficiency below the one of which it is a factor."""
    if s.pop is None:
        return []
    values = [(field, of, getattr(s.pop, field)) for field, (_, _, of) in _SHOWN.items()]
    return [(field, value, of if value is not None else s.pop.split_unknown or "") for field, of, value in values]


def _caption(s: Summary) -> str:
    kind = "processes (CPU: operators are counted as kernels)" if are_cpus(s.devices) else "devices"
    count = s.pop.devices if s.pop is not None else 0
    return f"Efficiency as POP and TALP define it, {count} {kind}; an indented row is a factor of the row above it"


def efficiency_words(s: Summary) -> str:
    """The efficiencies of several devices in one sentence; empty for one device, whose split says the same."""
    p = s.pop
    if p is None or p.devices < 2:
        return ""
    return (
        f"Parallel efficiency (POP): {percent(p.parallel)} = load balance {percent(p.load_balance)} "
        f"× communication {percent(p.communication)} × orchestration {percent(p.orchestration)}"
    )


def _value(field: str) -> Callable[[Facts], float | None]:
    return lambda facts: getattr(facts.summary.pop, field) if facts.summary.pop is not None else None


EFFICIENCY = TableOf[Row](
    caption=_caption,
    rows=_rows,
    columns=(
        Column("efficiency", lambda x: efficiency_label(x[0], "· ")),
        Column("value", lambda x: "not known" if x[1] is None else percent(x[1])),
        Column("of what", lambda x: x[2]),
    ),
    left=3,
    section="efficiency",
    file=File("pop", lambda s: [plain(s.pop)] if s.pop is not None else []),
    metrics=tuple(
        Metric(name, _value(field), f"`pop.{field}`.", efficiency_label(field, "  "), "less")
        for field, name in METRICS.items()
    ),
)


def _works(s: Summary) -> str:
    return work_word(s.devices)


def _work(s: Summary) -> str:
    return work_word(s.devices).removesuffix("s")


def _ranges(s: Summary) -> list[_Range]:
    """The program's own ranges, without the operators of PyTorch and the modules, which have a table of their own."""
    names = {r.name for r in s.ranges}
    own = (r for r in s.ranges if r.instances and not r.name.startswith("aten::"))
    shown = [r for r in own if module_of(r.name, names) is None]
    return [(r, bool(s.devices)) for r in shown[:TOP]]


RANGES = TableOf[_Range](
    caption="The program's own ranges, on the host and on the devices",
    rows=_ranges,
    columns=(
        Column("range", lambda x: x[0].name, apart, page=60),
        Column("instances", lambda x: f"{x[0].instances:,}"),
        Column("host each", lambda x: duration(x[0].host_ns / x[0].instances)),
        Column(lambda s: f"{_works(s)} each", lambda x: duration(x[0].kernel_ns / x[0].instances) if x[1] else "–"),
        Column(_works, lambda x: f"{x[0].kernels:,}" if x[1] else "–"),
        Column("idle inside it", lambda x: duration(x[0].idle_inside_ns) if x[1] else "–"),
    ),
    section="kernels",
    spare=("idle inside it",),
    file=file_of("ranges"),
)


def _kernels(s: Summary) -> list[_Kernel]:
    communicates = any(d.communication_ns for d in s.devices)
    return [(k, communicates) for k in s.kernels[:TOP]]


def _kernels_caption(s: Summary) -> str:
    words = f"The {len(s.kernels[:TOP])} {_works(s)} that take most time"
    if not any(communicates for _, communicates in _kernels(s)):
        return words
    return f"{words}; exposed: without compute beside it; overlapped: of its time, communication beside compute"


KERNELS = TableOf[_Kernel](
    caption=_kernels_caption,
    rows=_kernels,
    columns=(
        Column(_work, lambda x: x[0].name, short, page=70),
        Column("kind", lambda x: " ".join(filter(None, (x[0].kind, x[0].precision)))),
        Column("time", lambda x: duration(x[0].duration_ns)),
        Column("share", lambda x: percent(x[0].share)),
        Column("exposed", lambda x: "–" if x[0].exposed_ns is None else duration(x[0].exposed_ns)),
        Column("overlapped", lambda x: of(x[0].overlapped_ns, x[0].duration_ns) if x[1] else "–"),
        Column("count", lambda x: f"{x[0].count:,}"),
        Column("mean", lambda x: duration(x[0].mean_ns)),
        Column("shortest", lambda x: duration(x[0].min_ns)),
        Column("longest", lambda x: duration(x[0].max_ns)),
    ),
    left=2,
    section="kernels",
    page_order=-1,
    spare=("longest", "shortest", "mean"),
    file=file_of("kernels"),
)

UNCLASSIFIED = TableOf[summary.KernelTime](
    caption="Not recognised (kind `other`); configs/kernels.yaml holds the rules",
    rows=lambda s: s.unclassified[:_UNKNOWN],
    columns=(
        Column(_work, lambda k: k.name, short, page=80),
        Column("time", lambda k: duration(k.duration_ns)),
        Column("count", lambda k: f"{k.count:,}"),
    ),
    section="kernels",
    file=file_of("unclassified"),
)


def _expected(predicted_number: summary.PredictedNumber) -> str:
    if predicted_number.low is None or predicted_number.high is None:
        return quantity(predicted_number.predicted, predicted_number.unit)
    return quantity_range(predicted_number.low, predicted_number.high, predicted_number.unit)


PREDICTIONS = TableOf[summary.PredictedNumber](
    caption="Numbers of the plan, and measured numbers",
    rows=lambda s: s.predictions,
    columns=(
        Column("what", lambda p: p.label),
        Column("predicted", _expected),
        Column("measured", lambda p: quantity(p.measured, p.unit)),
        Column("measured / predicted", lambda p: f"{p.ratio:.2f}"),
    ),
    section="steps",
    file=file_of("predictions"),
)


def stage_label(x: summary.PipelineStage | PipelinePass) -> str:
    return f"stage {x.stage}" + (f", rank {x.rank}" if x.rank is not None else "")


def pipeline_words(s: Summary) -> str:
    """The pipeline in one sentence: its shape, its bubble, and the schedule's own."""
    p = s.pipeline
    if p is None:
        return ""
    virtual = f", {p.virtual_stages} virtual stages" if p.virtual_stages > 1 else ""
    measured = f"{p.microbatches} micro-batches{virtual}. Bubble: {percent(p.mean_bubble_fraction)} measured"
    if p.stages is None or p.expected_bubble_fraction is None:
        return f"stages may be missing, {measured}; the expected bubble is therefore not known."
    alone = f"{percent(p.expected_bubble_fraction)}, (p − 1) / (m·v + p − 1)"
    return f"{p.stages} stages, {measured}; the schedule alone predicts {alone}."


def _stages(s: Summary) -> Sequence[summary.PipelineStage]:
    return s.pipeline.per_stage if s.pipeline else ()


STAGES = TableOf[summary.PipelineStage](
    caption="Stages; times are sums over the counted iterations",
    rows=_stages,
    columns=(
        Column("stage", stage_label),
        Column("bubble", lambda x: percent(x.schedule_bubble_fraction)),
        Column("of window", lambda x: percent(x.bubble_fraction)),
        Column("warm-up", lambda x: duration(x.warmup_ns)),
        Column("steady", lambda x: duration(x.steady_ns)),
        Column("cool-down", lambda x: duration(x.cooldown_ns)),
        Column("send/recv", lambda x: duration(x.send_recv_ns)),
    ),
    figure="pipeline-stages",
    terminal_caption=lambda s: f"Pipeline: {pipeline_words(s)}",
    file=File("pipeline", lambda s: map(plain, _stages(s))),
)


def pace_change_sentences(s: Summary) -> list[str]:
    """What changed when, and which rank the others wait for; empty if the pace is steady and no rank stands out."""
    changes = [_change(each) for each in s.pace_changes]
    told = [
        " ".join(filter(None, (change_sentence(change, each.phase), _shown(each))))
        for before, change, each in zip([None, *changes], changes, s.pace_changes, strict=False)
        if before is None or not returns(before, change)
    ]
    more = [f"{len(told) - _FEW} more changes of pace are in the table."] if len(told) > _FEW else []
    return [*told[:_FEW], *more, *_slowest(s, changes)]


def _shown(change: summary.PaceChange) -> str:
    return f"({change.evidence[:1].upper()}{change.evidence[1:]}.)" if change.evidence else ""


def _slowest(s: Summary, changes: Sequence[DetectedChange]) -> list[str]:
    found = s.slowest_rank
    if found is None or found.rank is None:
        return []
    slowest = Slowest(found.kind, found.rank, found.share, found.costs_ns, found.chance)
    return [slowest_sentence(slowest, found.step_ns)] if worth_telling(slowest, changes) else []


def _change(pace_change: summary.PaceChange) -> DetectedChange:
    numbers = (
        pace_change.step,
        pace_change.low_step,
        pace_change.high_step,
        pace_change.before_ns,
        pace_change.after_ns,
        pace_change.ratio,
    )
    return DetectedChange(
        *numbers, tuple(pace_change.ranks), pace_change.named, pace_change.last_step, gradual=pace_change.gradual
    )


def _who(pace_change: summary.PaceChange) -> str:
    if not pace_change.named:
        return "not known"
    more = f" and {len(pace_change.ranks) - _RANKS} more" if len(pace_change.ranks) > _RANKS else ""
    return ", ".join(map(str, pace_change.ranks[:_RANKS])) + more


PACE_CHANGES = TableOf[summary.PaceChange](
    caption="Changes of pace of the whole training, by its own clock",
    rows=lambda s: s.pace_changes,
    columns=(
        Column("step", lambda x: str(x.step)),
        Column("95 % interval", lambda x: "gradual" if x.gradual else f"{x.low_step} to {x.high_step}"),
        Column("until", lambda x: "the end" if x.last_step is None else str(x.last_step)),
        Column("before", lambda x: duration(x.before_ns)),
        Column("after", lambda x: duration(x.after_ns)),
        Column("change", lambda x: f"{'+' if x.ratio >= 1 else '−'}{percent(abs(x.ratio - 1))}"),
        Column("ranks", _who),
        Column("phase", lambda x: x.phase or "–"),
    ),
    section="steps",
    spare=("95 % interval", "until"),
    advice=pace_change_sentences,
    file=file_of("pace_changes"),
)


def pace_sentences(s: Summary) -> list[str]:
    """Who is behind, the farthest first; of many the first few and how many more there are."""
    pace = s.pacing
    if pace is None or not pace.outliers:
        return []
    texts = [f"{who(x)} is {percent(x.behind_share)} {_MEASURES[x.measure]} in {x.steps_behind} of {x.steps} steps."
             for x in pace.outliers[:_NAMED]]  # fmt: skip
    more = pace.outlier_count - len(texts)
    if more <= 0:
        return texts
    on = Counter(x.switch for x in pace.outliers if x.switch)
    most = f"; {on.most_common(1)[0][1]} of all are on switch {on.most_common(1)[0][0]}" if on else ""
    places = {x.place for x in pace.outliers}
    what = f"{places.pop() if len(places) == 1 else 'place'}{'s are' if more > 1 else ' is'}"
    return [*texts, f"{more} more {what} behind in the same way{most}."]


def who(x: summary.PaceOutlier) -> str:
    """The place with what it hangs on: `node0412 (switch leaf07, slowest rank 1648)`, or `rank 5 (node1)`."""
    rank = "a process without a rank" if x.rank is None else f"rank {x.rank}"
    slowest = "" if x.rank is None else f"slowest {rank}"
    name, other = (x.node or "", slowest) if x.place == "node" else (rank, x.node)
    inside = ", ".join(filter(None, (x.switch and f"switch {x.switch}", other)))
    return f"{name} ({inside})" if inside else name


def how_grouped(pace: summary.Pacing) -> str:
    """What the rows of the picture stand below, in words."""
    if pace.switches_count:
        return f"by the switch that Slurm's topology names ({pace.switches_count}), and by node"
    nodes = "by node" if pace.nodes_count else "in the order of ranks: no trace names its node"
    return f"{nodes}; Slurm named no switches" if pace.nodes_count > 1 else nodes


PACING = TableOf[summary.PacePlace](
    caption="Pacing: lag behind the first rank, and time above the median step",
    # the farthest behind first
    rows=lambda s: sorted(s.pacing.places if s.pacing else (), key=lambda x: -max(x.step_share, x.own_share or 0.0)),
    columns=(
        Column("node", lambda x: x.node or "–"),
        Column("switch", lambda x: x.switch or "–"),
        Column("rank", lambda x: "–" if x.rank is None else str(x.rank)),
        Column("step", lambda x: signed(x.step_share)),
        Column("own work", lambda x: signed(x.own_share)),
        Column("lag at the first step", lambda x: duration(x.first_lag_ns)),
        Column("lag at the last step", lambda x: duration(x.lag_ns)),
        Column("variation", lambda x: percent(x.variation_fraction)),
    ),
    left=2,
    section="steps",
    page_order=2,
    in_terminal=lambda s: s.pacing is not None and len(s.pacing.places) > 1,
    spare=("lag at the first step", "variation"),
    most=_PLACES,
    rest="places",
    advice=pace_sentences,
    file=File("pacing", lambda s: map(plain, s.pacing.places) if s.pacing else ()),
)


def signed(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:+.1f} %"


FACTORS: tuple[TableOf[Any], ...] = (EFFICIENCY,)
PACE_AND_WORK: tuple[TableOf[Any], ...] = (PACE_CHANGES, PACING, RANGES, KERNELS, UNCLASSIFIED)
STAGES_AND_PLAN: tuple[TableOf[Any], ...] = (STAGES, PREDICTIONS)

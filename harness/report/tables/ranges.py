"""The tables of the program's own ranges and of a model's modules."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from harness.analysis import summary
from harness.analysis.labels import work_word
from harness.analysis.summary import RangeTime, Summary
from harness.common.display.format import amount, apart, duration, of, per_step
from harness.common.run_folder.module_ranges import BACKWARD, RECOMPUTED, module_of
from harness.report.tables.kernels import TOP, works
from harness.report.tables.table import Column, TableOf, file_of

_Range = tuple[summary.RangeTime, bool]  # and whether the job has a device: without a device no work is shown
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
_MOST = 16


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
        Column(lambda s: f"{works(s)} each", lambda x: duration(x[0].kernel_ns / x[0].instances) if x[1] else "–"),
        Column(works, lambda x: f"{x[0].kernels:,}" if x[1] else "–"),
        Column("idle inside it", lambda x: duration(x[0].idle_inside_ns) if x[1] else "–"),
    ),
    section="kernels",
    spare=("idle inside it",),
    file=file_of("ranges"),
)


@dataclass
class Module:
    """Modules whose names differ in numbers only. time: the field of their time. whole_ns: of all kernels."""

    name: str
    time: str
    steps: int
    whole_ns: int
    modules: set[str] = field(default_factory=set)
    ranges: dict[str, list[RangeTime]] = field(default_factory=lambda: {"": [], BACKWARD: [], RECOMPUTED: []})

    def time_ns(self, *passes: str) -> int:
        return sum(getattr(r, self.time) for each in passes for r in self.ranges[each])

    def total(self, field_name: str) -> float:
        """Of forward and backward, of one rank in one step."""
        rows = (*self.ranges[""], *self.ranges[BACKWARD])
        return float(sum(getattr(r, field_name) for r in rows)) / self.steps

    def each(self, *passes: str) -> float | None:
        """Time of one rank in one step; None without any."""
        return self.time_ns(*passes) / self.steps or None


def modules(s: Summary) -> list[Module]:
    """The modules that have ranges, most time first, so that a module is before its parts."""
    names = {r.name for r in s.ranges}
    whole_ns = sum(k.duration_ns for k in s.kinds)
    time = "kernel_ns" if s.devices else "host_ns"  # without a GPU nsys knows no work
    found: dict[str, Module] = {}
    for r in s.ranges:
        name = module_of(r.name, names)
        if name is None:
            continue
        label = _NUMBER.sub("*", name)
        row = found.setdefault(label, Module(label, time, max(s.steps.counted, 1), whole_ns))
        row.modules.add(name)
        row.ranges[r.name[len(name) :]].append(r)
    return sorted(found.values(), key=lambda x: (-x.time_ns("", BACKWARD), -x.total("host_ns"), x.name))


def _modules_caption(s: Summary) -> str:
    what = f"time of the {work_word(s.devices)} that they launch" if s.devices else "time on the host"
    return f"Modules: {what}, their parts included, per rank and step"


MODULES = TableOf[Module](
    caption=_modules_caption,
    rows=modules,
    columns=(
        Column("module", "name", apart, page=60),
        Column("layers", lambda x: str(len(x.modules)) if len(x.modules) > 1 else "–"),
        Column("forward", lambda x: duration(x.each(""))),
        Column("backward", lambda x: duration(x.each(BACKWARD))),
        Column("recomputed", lambda x: duration(x.each(RECOMPUTED))),
        Column("share", lambda x: of(x.time_ns("", BACKWARD), x.whole_ns)),
        Column("on the host", lambda x: duration(x.total("host_ns")) if x.time != "host_ns" else "–"),
        Column("messages", lambda x: per_step(x.total("collectives")) if x.total("collectives") else "–"),
        Column("bytes", lambda x: amount(x.total("message_bytes")) if x.total("collectives") else "–"),
    ),
    section="kernels",
    spare=("on the host",),
    most=_MOST,
    rest="modules",
)

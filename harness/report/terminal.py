"""A Summary as text for a terminal: what is doubtful first, then where the time went. The tables are those of the
page (rows_*.py) with the columns that fit. Knows only the Summary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePath
from textwrap import wrap

from harness.analysis.summary import Device, Finding, Summary, Verdict
from harness.report import known, rows_communication, rows_machine, rows_time, rows_work, verdict
from harness.report.numbers import cut, duration
from harness.report.page_parts import Table
from harness.report.words import recording
from harness.traces.words import printable

WIDTH = 118
_MARKS = {Verdict.GOOD: "·", Verdict.DOUBTFUL: "?", Verdict.UNUSABLE: "!"}
MANY_DEVICES = 16  # more than these are shown as a spread and the busiest and idlest
NOTICEABLE = 0.005  # share of the devices' time from which advice is worth a line
_NAMES, _KERNEL_NAMES = 44, 56  # characters that fit beside the numbers
_GAP_NAMES = 34


def render(summary: Summary) -> str:
    """The whole report of one job, lines at most WIDTH wide."""
    blocks = [block for section in _SECTIONS if (block := section(summary))]
    return "\n\n".join("\n".join(cut(printable(line), WIDTH) for line in block) for block in blocks) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """Aligned columns under a head; the first `left` columns read from the left, numbers from the right."""
    cells = [list(row) for row in (head, *rows) if any(row)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    return [
        "  "
        + "  ".join(
            cell.ljust(widths[i]) if i < left else cell.rjust(widths[i]) for i, cell in enumerate(row)
        ).rstrip()
        for row in cells
    ]


def _block(shown: Table, without: Iterable[str] = ()) -> list[str]:
    """A table under its caption, without the columns that would not fit; nothing where it has no rows."""
    if not shown.rows:
        return []
    kept = [i for i, name in enumerate(shown.head) if name not in set(without)]
    left = sum(i < shown.left for i in kept)
    rows = [[row[i] for i in kept] for row in shown.rows]
    return [shown.caption, *table([shown.head[i] for i in kept], rows, left)]


def _header(s: Summary) -> list[str]:
    names = sorted(
        {d.name for d in s.devices if d.name} or {t.device_name for t in s.training if t.device_name}
    )
    files = sorted({x.path for x in s.sources})
    facts = [
        _read(s, files),
        f"world size {s.world_size}" if s.world_size else "",
        f"hosts {', '.join(s.hosts[:4])}{' …' if len(s.hosts) > 4 else ''}" if s.hosts else "",
        ", ".join(names),
        s.backend or "",
    ]
    return [_place(files) or (s.run or {}).get("job_id", "run"), "  " + " · ".join(f for f in facts if f)]


def _read(s: Summary, files: list[str]) -> str:
    if not files:
        return "no trace"
    return f"{len(files)} trace{'s' * (len(files) != 1)} ({', '.join(sorted({x.tool for x in s.sources}))})"


def _place(files: list[str]) -> str:
    """The file, or the folder that holds them all; of a run, its own directory."""
    if not files:
        return ""
    folder = PurePath(files[0]).parent
    if folder.name in ("torch", "nsys"):
        return str(folder.parent)
    return files[0] if len(files) == 1 else str(folder)


def _quality(s: Summary) -> list[str]:
    lines = [f"Recording: {recording(s)}"]
    for (severity, what), found in _alike(s.quality.findings).items():
        more = f" (and {len(found) - 1} more like it)" if len(found) > 1 else ""
        lines += _wrapped(f"  {_MARKS[severity]} {what}{more}: {found[0].evidence}")
    withheld: dict[str, list[str]] = {}
    for w in s.quality.withheld:
        withheld.setdefault(w.reason, []).append(w.field)
    return lines + [
        line
        for reason, fields in withheld.items()
        for line in _wrapped(f"  – {', '.join(fields)} withheld: {reason}")
    ]


def _wrapped(text: str) -> list[str]:
    return wrap(text, WIDTH, subsequent_indent="    ")


def _alike(findings: Iterable[Finding]) -> dict[tuple[Verdict, str], list[Finding]]:
    groups: dict[tuple[Verdict, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.severity, finding.what), []).append(finding)
    return groups


def _steps(s: Summary) -> list[str]:
    if s.steps.duration is None:
        none = f"none of {s.steps.found} can be counted" if s.steps.found else "none found"
        return [f"Steps: {none}; the window is the devices' own extent"] if s.sources else []
    d, left_out = s.steps.duration, []
    for count, why in (
        (s.steps.excluded_warmup, "warm-up"),
        (s.steps.excluded_cut_off, "cut off"),
        (s.steps.excluded_empty, "without work"),
    ):
        left_out += [f"{count} {why}"] if count else []
    lines = [
        f"Steps: {cut(s.steps.source, 60)}, {s.steps.counted} counted of {s.steps.found}{_over(s)}"
        + (f" ({', '.join(left_out)} left out)" if left_out else ""),
        f"  median {duration(d.median_ns)}   p10 {duration(d.p10_ns)}   p90 {duration(d.p90_ns)}"
        f"   min {duration(d.min_ns)}   max {duration(d.max_ns)}",
    ]
    if s.steps.straggler_score is not None and s.steps.slowest_rank is not None:
        lines.append(
            f"  slowest rank {s.steps.slowest_rank}: {s.steps.straggler_score:.3f} × the median rank"
        )
    return lines


def _over(s: Summary) -> str:
    return f" over {len(s.steps.per_rank)} ranks" if len(s.steps.per_rank) > 1 else ""


def _split(s: Summary) -> list[str]:
    shown, note = _choose(s.devices)
    return _block(rows_time.split_table(shown, s.devices, rows_time.window_word(s)), ["idle by cause"]) + note


def _choose(devices: list[Device]) -> tuple[list[Device], list[str]]:
    if len(devices) <= MANY_DEVICES:
        return devices, []
    ordered = known.by_idleness(devices)
    return ordered[:5] + ordered[-5:], [f"  … the 5 busiest and the 5 idlest of {len(devices)} are shown"]


def _idle(s: Summary) -> list[str]:
    gaps = rows_time.gap_table(s, _GAP_NAMES)
    return _apart([_block(rows_time.cause_table(s)), _block(gaps, ["device", "after"])])


def _kernels(s: Summary) -> list[str]:
    return _block(rows_work.kernel_table(s, _KERNEL_NAMES), ["shortest", "longest"])


def _collectives(s: Summary) -> list[str]:
    tables = (
        _block(rows_communication.collective_table(s, rows_work.TOP, 16), ["start skew", "arrives last"]),
        _block(rows_communication.issued_table(s)),
        _block(rows_communication.fit_table(s)) if any(f.alpha_ns for f in s.collective_fits) else [],
        _block(rows_communication.straggler_table(s)),
        _block(rows_communication.clock_table(s)),
    )
    return _apart(tables)


def _apart(blocks: Iterable[list[str]]) -> list[str]:
    """Blocks one below the other with an empty line between."""
    return [line for block in blocks if block for line in ("", *block)][1:]


def _pipeline(s: Summary) -> list[str]:
    words = f"Pipeline: {rows_time.pipeline_words(s)}" if s.pipeline else ""
    return wrap(words, WIDTH, subsequent_indent="  ") + _block(rows_time.stage_table(s))[1:]


def _copies(s: Summary) -> list[str]:
    total = sum(d.window_ns for d in s.devices)
    pageable = [c for c in s.copies if c.pageable_ns > NOTICEABLE * total]  # an .item() is no reason to pin
    return _block(rows_machine.copy_table(s)) + [
        f"  ! {c.pageable_count:,} copies {c.direction.removeprefix('copy ')} use pageable memory "
        f"({duration(c.pageable_ns)}): pin the host buffers (pin_memory=True)"
        for c in pageable
    ]


def _ranks(make: Callable[[Summary], Table]) -> Callable[[Summary], list[str]]:
    """A table of ranks: of many only the first, the page and --csv have all."""

    def section(s: Summary) -> list[str]:
        whole = make(s)
        more = len(whole.rows) - MANY_DEVICES
        few = Table(whole.caption, whole.head, whole.rows[:MANY_DEVICES], whole.left)
        return _block(few) + ([f"  … and {more} more ranks: --csv DIR has all"] if more > 0 else [])

    return section


def _plain(make: Callable[[Summary], Table]) -> Callable[[Summary], list[str]]:
    return lambda s: _block(make(s))


def _named(make: Callable[[Summary, int], Table]) -> Callable[[Summary], list[str]]:
    return lambda s: _block(make(s, _NAMES))


def render_hta(summary: Summary) -> str:
    """Only HolisticTraceAnalysis 0.5.0's own numbers."""
    rows = [
        [
            PurePath(h.source).name,
            f"{h.total_us:.0f}",
            f"{h.idle_us:.0f}",
            f"{h.compute_us:.0f}",
            f"{h.noncompute_us:.0f}",
            "–" if h.overlap_pct is None else f"{h.overlap_pct:.2f}",
        ]
        for h in summary.hta
    ]
    head = ("trace", "total µs", "idle µs", "compute µs", "non-compute µs", "overlap %")
    lines = ["As HolisticTraceAnalysis 0.5.0 counts (last step dropped, rounded to µs)", *table(head, rows)]
    return (
        "\n".join(
            lines
            if rows
            else ["HolisticTraceAnalysis reads GPU traces of torch.profiler only; there is none here"]
        )
        + "\n"
    )


_SECTIONS: tuple[Callable[[Summary], list[str]], ...] = (
    _header,
    verdict.lines,
    _quality,
    _steps,
    _split,
    _plain(rows_work.kind_table),
    _plain(rows_work.phase_table),
    _idle,
    _named(rows_work.range_table),
    _kernels,
    _named(rows_work.unknown_table),
    _collectives,
    _pipeline,
    _ranks(rows_machine.launch_table),
    _copies,
    _plain(rows_work.counter_table),
    _ranks(rows_machine.training_table),
    _plain(rows_machine.speed_table),
    _plain(rows_machine.monitor_table),
)

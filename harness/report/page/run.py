"""The page's sections about the recording, the machine and the run: command, site, time, versions, result and files."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.parse import quote

from harness.analysis.labels import device_names, field_word, host_names, recording
from harness.analysis.summary import RecordingVerdict, Summary
from harness.common.display.format import duration
from harness.common.display.palette import COMPUTE, of_series
from harness.common.paths import COMMAND, DISTRIBUTION
from harness.common.run_folder.run_files import KINETO, METRICS, MONITOR_SAMPLES, NSYS_REPORTS, RECORD, SCRIPT, SUMMARY
from harness.common.run_folder.submission import edit_of, variables_in_words
from harness.common.system.inherited import unusual
from harness.common.system.secrets import masked_text
from harness.experiment.exercises import experiment_of
from harness.explain.commands import asked_words
from harness.explain.findings import why_no_answer
from harness.monitor.samples import DeviceSeries, NodeSamples
from harness.monitor.source import pieces
from harness.report.elements import Figure, Link, Listing, PageTable, Section, table
from harness.report.page.inputs import Inputs, StepRecord
from harness.report.plots import plotly_json
from harness.report.tables.catalogue import page_tables
from harness.report.tables.monitor import monitor_sentences
from harness.run import when

_QUALITY = "Recording quality"
_WHAT_IFS = "replay.what_ifs"
_SIGNS = {RecordingVerdict.GOOD: "note", RecordingVerdict.DOUBTFUL: "doubtful", RecordingVerdict.UNUSABLE: "unusable"}
_MOST_POINTS = 600  # of one line: a screen does not show more
_GIB = 2**30
_MOST_NODES = 16  # with plots: hundreds would fill the page
_PLOTS: tuple[tuple[str, str, float], ...] = (
    ("utilization_percent", "utilisation (%)", 1.0),
    ("sm_active_percent", "SM Active (%)", 1.0),
    ("tensor_active_percent", "Tensor Active (%)", 1.0),
    ("memory_used_bytes", "memory in use (GiB)", _GIB),
    ("power_watts", "power (W)", 1.0),
)


def title(s: Summary, inputs: Inputs) -> tuple[str, str]:
    """The title of the page, and a line with ranks, devices, backend and hosts."""
    heading = ""
    if inputs.run is not None:
        asked = experiment_of(s.experiment)
        heading = asked.heading if asked else "Run"
        name = " · ".join(filter(None, (inputs.run.job_id, asked_words(s)))) if s.run else inputs.run.name
    else:
        files = sorted({x.path for x in s.sources})
        name = Path(files[0]).name if len(files) == 1 else Path(files[0]).parent.name if files else "report"
    ranks = f"{len(s.ranks)} of {s.world_size} ranks" if s.world_size else ""
    return name, " · ".join(filter(None, (heading, ranks, device_names(s), s.backend, host_names(s))))


def quality_section(s: Summary) -> Section:
    """The verdict on the recording, with the evidence; and why there is no what-if, if the replay gives none."""
    q = s.quality
    rows = [[_SIGNS[f.severity], f.what, f.evidence] for f in q.problems]
    rows += [["not given", field_word(w.field), w.reason] for w in q.withheld]
    if s.replay is not None and not any(w.field == _WHAT_IFS for w in q.withheld) and (why := why_no_answer(s)):
        rows.append(["not given", field_word(_WHAT_IFS), why])
    rows = list(map(list, dict.fromkeys(map(tuple, rows))))  # two processes of one file can give the same row
    if not s.sources and not rows:
        note = f"Recording: {recording(s)}."
        if s.training:
            note += " The numbers are from the training's own clock."
        elif (asked := experiment_of(s.experiment)) and asked.without_trace:
            note += f" What is here, {asked.without_trace}."
        return Section("quality", _QUALITY, note=note)
    note = f"Recording: {recording(s)}." + ("" if rows else " No problem was found.")
    caption = "Problems of the recording, and numbers that are not given"
    return Section("quality", _QUALITY, note=note, tables=table(caption, ("", "what", "evidence"), rows, left=3))


def hang_section(s: Summary, inputs: Inputs) -> Section:
    """Where each rank of a stuck run was, and what to try; empty for any other."""
    hang = inputs.stuck
    seen = table(f"Try: {hang.advice}", ("",), ([line] for line in hang.lines)) if hang else []
    return Section("stuck", "Where each rank was", f"{hang.since_clock}." if hang else "", tables=seen)


def run_section(s: Summary, inputs: Inputs) -> Section:
    """The run's record; for traces without a run the files that were read."""
    facts = [(k, v) for k, v in _facts(s, inputs) if v]
    if inputs.run is None:
        return Section("run", "The traces", facts=facts, tables=[*_nodes(inputs), *_sources(s)])
    tables = [*_nodes(inputs), *_files(inputs.run.path)]
    return Section("run", "The run", facts=facts, tables=tables, listings=list(_edit(inputs)))


def _edit(inputs: Inputs) -> Iterator[Listing]:
    record = inputs.record
    edit = edit_of(record.edited) if record else None
    if record and edit:
        lines = [masked_text(line) for line in record.edited.removesuffix("\n").split("\n")]
        yield Listing(f"The run: its script was edited by hand ({edit.words})", lines)


def _facts(s: Summary, inputs: Inputs) -> Iterator[tuple[str, str]]:
    record, status = inputs.record, inputs.status
    if record is not None:
        yield "command", f"{COMMAND} {shlex.join(record.shown_command[1:])}"
        yield "from its shell", variables_in_words(record.inherited | unusual(record.limits) | record.for_sbatch)
        yield "job", f"{record.job_id} ({record.backend}), by {record.user} on {record.submit_host}"
        yield "site", " · ".join(filter(None, (record.site.name, record.site.partition, record.site.account)))
        yield "submitted", when(record.created_ns)
        if record.program is not None:
            yield "script", f"{record.program.script}, with {record.program.python}"
            yield "its code", _code(record.program.git)
        ours = "code" if record.program is None else "the harness's code"
        yield ours, _code(record.git, record.versions.get(DISTRIBUTION))
    if status is not None:
        ran = status.elapsed_ns
        missing = f"; missing: {', '.join(status.missing)}" if status.missing else ""
        yield "ended", f"{status.state}{f' after {duration(ran)}' if ran else ''}{missing}"
        yield "why", status.why
        yield "loss", inputs.bad_loss.sentence if inputs.bad_loss else ""
        if inputs.hang is not None and inputs.hang.until_ns is not None and inputs.stuck is None:
            yield "stuck", f"for {duration(inputs.hang.until_ns - inputs.hang.since_ns)} {inputs.hang.sentence}"
    yield "model", _model(s)
    micro = "micro-batch {}, gradient accumulation {}"
    batches = ((t.micro_batch_size, t.gradient_accumulation_steps or 1) for t in s.training if t.micro_batch_size)
    yield "batch", next((micro.format(*each) for each in batches), "")
    yield "versions", _versions(s, inputs)
    yield "left out", "; ".join(inputs.left_out)


def _code(git: dict[str, Any], version: str | None = None) -> str:
    commit = git.get("commit")
    if not commit:
        return f"version {version}" if version else "not under git"
    state = ", with changes that were not committed" if git.get("dirty") else ""
    return f"{str(commit)[:12]} on {git.get('branch')}{state}"


def _model(s: Summary) -> str:
    t = next((t for t in s.training if t.model), None)
    if t is None:
        return ""
    size = f", {t.parameters:,} parameters" if t.parameters else ""
    return f"{t.model}{size}, {t.dtype}, sequences of {t.seq_length} tokens"


def _versions(s: Summary, inputs: Inputs) -> str:
    versions = next((t.versions for t in s.training if t.versions), None)
    versions = versions or (inputs.record.versions if inputs.record else {})
    tools = sorted({f"{x.tool} {x.tool_version or ''}".strip() for x in s.sources})
    return ", ".join([*(f"{k} {v}" for k, v in versions.items()), *(tools if versions else [])])


def _nodes(inputs: Inputs) -> list[PageTable]:
    rows = [
        [str(n.node), n.host, f"exit code {n.exit}" if n.exit else "ok", duration(n.elapsed_ns)] for n in inputs.nodes
    ]
    return table("Nodes", ("node", "host", "status", "ran"), rows, left=3)


def _files(run: Path) -> list[PageTable]:
    known = (
        (NSYS_REPORTS.name, "nsys-ui {}"),
        ("**/*.prv*", "wxparaver {}, then a view from configs/paraver"),
        (KINETO.name, f"https://ui.perfetto.dev; {COMMAND} export perfetto merges the ranks"),
        (SCRIPT.name, "any editor; it is the exact script"),
        (RECORD.name, f"{COMMAND} run {{}}"),
        (SUMMARY.name, f"{COMMAND} compare {{}} OTHER"),
        (MONITOR_SAMPLES.name, "any spreadsheet"),
        (METRICS.name, "any editor; each line is a JSON object of one step"),
    )
    rows = []
    for pattern, how in known:
        if found := sorted(run.glob(pattern)):
            first = found[0].relative_to(run)
            shown = f"{first} … {found[-1].name}" if len(found) > 1 else str(first)
            rows.append((Link(shown, quote(str(first))), how.format(first)))
    return table("Files beside this page, and how to open them", ("file", "open it with"), rows, left=2)


def _sources(s: Summary) -> list[PageTable]:
    rows = [
        [
            x.path,
            "–" if x.rank is None else str(x.rank),
            x.host or "–",
            " ".join(filter(None, (x.tool, x.tool_version))),
        ]
        for x in s.sources
    ]
    return table("Traces that were read", ("file", "rank", "host", "recorded by"), rows, left=4)


def machine_section(s: Summary, inputs: Inputs) -> Section:
    """Utilisation, memory and power over time, one plot per node and quantity. Empty without any."""
    figures = [figure for recording in inputs.monitors[:_MOST_NODES] for figure in _node(recording, inputs)]
    lead = "Samples of every node during the training. Shaded: the counted steps."
    if len(inputs.monitors) > _MOST_NODES:
        lead += f" {_MOST_NODES} of {len(inputs.monitors)} nodes have plots; the table has all nodes."
    return Section(
        "machine",
        "Monitor",
        lead,
        figures,
        page_tables(s, "machine"),
        note="".join(f"{x}. " for x in monitor_sentences(s)),
    )


def _node(recording: NodeSamples, inputs: Inputs) -> Iterable[Figure]:
    for column, title, scale in _PLOTS:
        data = [x for d in recording.devices if (x := _line(recording, d, column, scale)) is not None]
        if not data:
            continue
        values = [v for trace in data for v in trace["y"] if v is not None]
        words = f"{title[0].upper()}{title[1:]} on node {recording.host}: from {min(values):.3g} to {max(values):.3g}."
        y = plotly_json.axis(title, rangemode="tozero")
        axes = plotly_json.layout("time since the monitor's start (s)", y, shapes=_window(recording, inputs))
        yield Figure(f"monitor-{column}-{recording.folder.name}", words, data, axes, 260)


def _line(recording: NodeSamples, device: DeviceSeries, column: str, scale: float) -> dict[str, Any] | None:
    points = _thinned(device, column)
    if not points:
        return None
    x = [round((at - recording.span_ns[0]) / 1e9, 2) for at, _ in points]
    y = [None if value is None else round(value / scale, 3) for _, value in points]
    name = f"GPU {device.index}" if recording.of_gpus else device.name
    return plotly_json.line(name, x, y, of_series(device.index))


def _thinned(device: DeviceSeries, column: str) -> list[tuple[int, float | None]]:
    """At most about _MOST_POINTS: the means of neighbours; in each gap one without a value, which ends the line."""
    points = device.points(column)
    size = max(1, -(-len(points) // _MOST_POINTS))
    found: list[tuple[int, float | None]] = []
    for piece in pieces(points, device.gaps):
        found += [(piece[0][0] - 1, None)] if found else []
        chunks = [piece[i : i + size] for i in range(0, len(piece), size)]
        found += [(chunk[0][0], fmean(v for _, v in chunk)) for chunk in chunks]
    return found


def _window(recording: NodeSamples, inputs: Inputs) -> list[dict[str, Any]]:
    steps = _profiled(inputs)
    if not steps:
        return []
    low, high = ((t - recording.span_ns[0]) / 1e9 for t in _span(steps))
    return [plotly_json.band(low, high, COMPUTE)]


def _profiled(inputs: Inputs) -> list[StepRecord]:
    return [x for steps in inputs.steps.values() for x in steps if x.phase == "active"]


def _span(steps: Sequence[StepRecord]) -> tuple[int, int]:
    """Unix nanoseconds from the first step's start to the last one's end."""
    return min(x.unix_ns for x in steps), max(x.unix_ns + x.step_ns for x in steps)


def host_section(s: Summary, inputs: Inputs) -> Section:
    return Section("host", "How the host feeds the devices", tables=page_tables(s, "host"))

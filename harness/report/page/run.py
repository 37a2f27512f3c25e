"""The page's sections about the recording and the run: command, site, time, versions, result and files."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from harness.analysis.summary import RecordingVerdict, Summary
from harness.common.paths import PROGRAM
from harness.experiment.base import Experiment
from harness.explain.findings import why_no_answer
from harness.format.format import duration
from harness.format.labels import device_names, field_word, host_names, recording
from harness.report.elements import Link, Section, Table, table
from harness.report.page.inputs import Inputs
from harness.run import when

_QUALITY = "Recording quality"
_WHAT_IFS = "replay.what_ifs"
_SIGNS = {
    RecordingVerdict.GOOD: "note",
    RecordingVerdict.DOUBTFUL: "doubtful",
    RecordingVerdict.UNUSABLE: "unusable",
}


def title(s: Summary, inputs: Inputs) -> tuple[str, str]:
    """The title of the page, and a line with ranks, devices, backend and hosts."""
    if inputs.run is not None:
        heading = s.experiment.heading if isinstance(s.experiment, Experiment) else "Run"
        name = f"{heading} · {inputs.run.name}"
    else:
        files = sorted({x.path for x in s.sources})
        name = Path(files[0]).name if len(files) == 1 else Path(files[0]).parent.name if files else "report"
    ranks = f"{len(s.ranks)} of {s.world_size} ranks" if s.world_size else ""
    return name, " · ".join(filter(None, (ranks, device_names(s), s.backend, host_names(s))))


def quality_section(s: Summary) -> Section:
    """The verdict on the recording, with the evidence; and why there is no what-if, if the replay gives none."""
    q = s.quality
    rows = [[_SIGNS[f.severity], f.what, f.evidence] for f in q.problems]
    rows += [["not given", field_word(w.field), w.reason] for w in q.withheld]
    if (
        s.replay is not None
        and not any(w.field == _WHAT_IFS for w in q.withheld)
        and (why := why_no_answer(s))
    ):
        rows.append(["not given", field_word(_WHAT_IFS), why])
    rows = list(map(list, dict.fromkeys(map(tuple, rows))))  # two processes of one file can give the same row
    if not s.sources and not rows:
        note = f"Recording: {recording(s)}."
        if s.training:
            note += " The numbers are from the training's own clock."
        elif isinstance(s.experiment, Experiment) and s.experiment.without_trace:
            note += f" What is here, {s.experiment.without_trace}."
        return Section("quality", _QUALITY, note=note)
    note = f"Recording: {recording(s)}." + ("" if rows else " No problem was found.")
    caption = "Problems of the recording, and numbers that are not given"
    return Section(
        "quality", _QUALITY, note=note, tables=table(caption, ("", "what", "evidence"), rows, left=3)
    )


def run_section(s: Summary, inputs: Inputs) -> Section:
    """The run's record; for traces without a run the files that were read."""
    facts = [(k, v) for k, v in _facts(s, inputs) if v]
    return Section(
        "run",
        "The run" if inputs.run is not None else "The traces",
        facts=facts,
        tables=[*_nodes(inputs), *_files(inputs), *_sources(s, inputs)],
    )


def _facts(s: Summary, inputs: Inputs) -> Iterator[tuple[str, str]]:
    record, status = inputs.record, inputs.status
    if record is not None:
        yield "command", shlex.join(record.shown_command)
        yield "job", f"{record.job_id} ({record.backend}), by {record.user} on {record.submit_host}"
        yield "site", " · ".join(filter(None, (record.site.name, record.site.partition, record.site.account)))
        yield "submitted", when(record.created_ns)
        if record.program is not None:
            yield "script", f"{record.program.script}, with {record.program.python}"
            yield "its code", _code(record.program.git)
        yield "code" if record.program is None else "the harness's code", _code(record.git)
    if status is not None:
        ran = status.ended_ns - status.started_ns if status.ended_ns and status.started_ns else None
        missing = f"; missing: {', '.join(status.missing)}" if status.missing else ""
        yield "ended", f"{status.state}{f' after {duration(ran)}' if ran else ''}{missing}"
        yield "why", status.why
    yield "model", _model(s)
    yield "batch", _batch(s)
    yield "versions", _versions(s, inputs)
    yield "left out", "; ".join(inputs.left_out)


def _code(git: dict[str, Any]) -> str:
    commit = git.get("commit")
    if not commit:
        return "not under git"
    state = ", with changes that were not committed" if git.get("dirty") else ""
    return f"{str(commit)[:12]} on {git.get('branch')}{state}"


def _model(s: Summary) -> str:
    t = next((t for t in s.training if t.model), None)
    if t is None:
        return ""
    size = f", {t.parameters:,} parameters" if t.parameters else ""
    return f"{t.model}{size}, {t.dtype}, sequences of {t.seq_length} tokens"


def _batch(s: Summary) -> str:
    t = next((t for t in s.training if t.micro_batch_size), None)
    if t is None:
        return ""
    return f"micro-batch {t.micro_batch_size}, gradient accumulation {t.gradient_accumulation_steps or 1}"


def _versions(s: Summary, inputs: Inputs) -> str:
    versions = next((t.versions for t in s.training if t.versions), None)
    versions = versions or (inputs.record.versions if inputs.record else {})
    tools = sorted({f"{x.tool} {x.tool_version or ''}".strip() for x in s.sources})
    return ", ".join([*(f"{k} {v}" for k, v in versions.items()), *(tools if versions else [])])


def _nodes(inputs: Inputs) -> list[Table]:
    rows = []
    for n in inputs.nodes:
        status = "ok" if n.exit == 0 else f"exit code {n.exit}"
        rows.append([str(n.node), n.host, status, duration(n.ended_ns - n.started_ns)])
    return table("Nodes", ("node", "host", "status", "ran"), rows, left=3)


def _files(inputs: Inputs) -> list[Table]:
    if inputs.run is None:
        return []
    rows = [[path, how] for path, how in _openers(inputs.run.path)]
    return table("Files beside this page, and how to open them", ("file", "open it with"), rows, left=2)


def _openers(run: Path) -> Iterator[tuple[str, str]]:
    known = (
        ("nsys/*.nsys-rep", "nsys-ui {}"),
        ("**/*.prv", "wxparaver {}, then a view from configs/paraver"),
        (
            "torch/rank*.json.gz",
            f"https://ui.perfetto.dev or chrome://tracing; {PROGRAM} perfetto merges the ranks",
        ),
        ("job.sbatch", "any editor; it is the exact script"),
        ("run.json", "slurm.sh rerun {}"),  # launches, so it needs the checkout
        ("summary.json", PROGRAM + " compare {} OTHER"),
        ("gpus-monitor/*/samples.csv", "any spreadsheet"),
        ("metrics/rank*.jsonl", "any editor; each line is a JSON object of one step"),
    )
    for pattern, how in known:
        found = sorted(run.glob(pattern))
        if not found:
            continue
        first = found[0].relative_to(run)
        shown = f"{first} … {found[-1].name}" if len(found) > 1 else str(first)
        yield Link(shown, quote(str(first))), how.format(first)


def _sources(s: Summary, inputs: Inputs) -> list[Table]:
    if inputs.run is not None:
        return []
    rows = []
    for x in s.sources:
        tool = " ".join(filter(None, (x.tool, x.tool_version)))
        rows.append([x.path, "–" if x.rank is None else str(x.rank), x.host or "–", tool])
    return table("Traces that were read", ("file", "rank", "host", "recorded by"), rows, left=4)

"""One self-contained report.html of one job: nothing is fetched, and it is readable without scripts."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import quote

from isal import igzip
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from harness.analysis.expected import resolved
from harness.analysis.labels import are_cpus, cause_word
from harness.analysis.summary import RecordingVerdict, Summary
from harness.common.bounded_read import read_bounded_json
from harness.common.errors import WorkError
from harness.common.format import about, amount, duration, shown_in_page, with_scripts
from harness.common.paths import COMMAND, ROOT, TEMPLATES
from harness.common.printable import printable, printable_json
from harness.explain.answer import Diagnosis, answer
from harness.explain.findings import label_of
from harness.measure.page_data import PageData
from harness.report.elements import Figure, Link, Page, Section, StepBar
from harness.report.exercise_0 import CollectiveResults, LinkVerdict, Result, read_results, read_verdict
from harness.report.first_screen import bar_of_answer
from harness.report.page import sections, steps
from harness.report.page.inputs import Inputs, gather
from harness.report.page.run import hang_section, host_section, machine_section, quality_section, run_section, title
from harness.report.palette import CAUSES, KINDS
from harness.report.plots.plots import gantt_figure, heat_figure
from harness.report.tables.catalogue import figure_table
from harness.report.tables.replay import first_moment
from harness.report.timeline.encode import pack_to_fit
from harness.report.timeline.timeline_model import TimelineModel, choose, draw, notes
from harness.report.words import PageWords
from harness.run import Run, all_runs, write_atomically
from harness.run.record import Record
from harness.traces.progress import OnProgress, silent

_PLACES = {"intra": "inside a node", "inter": "one per node", "world": "over all nodes"}
_File = TypeVar("_File")
_Found = dict[tuple[str, int], list[Result]]  # by scope and ranks
MOST_ROWS = 64  # shown rows of a table: the rows of a thousand ranks would hide the rest of the page
DOCS = {"words and numbers": "metrics.md", "finding a cause, and what would help": "investigate.md"}
_LONG_NAME = re.compile(r"(\S{20,})")
_AFTER_SIGN = re.compile(r"(?<=[_./:,<>()=@+-])(?=[^_./:,<>()=@+-])")
Make = Callable[[Summary, Inputs], Section]
_HELP: tuple[Make, ...] = (hang_section, steps.tests_section, sections.help_section)
_TIME: tuple[Make, ...] = (
    steps.steps_section,
    sections.split_section,
    sections.efficiency_section,
    sections.job_time_section,
)
_FOLDED: tuple[Make, ...] = (
    sections.work_section,
    sections.counters_section,
    steps.communication_section,
    steps.transport_section,
    sections.pipeline_section,
    sections.memory_section,
    host_section,
    machine_section,
)


@dataclass(frozen=True)
class LinkResults:
    """The results, a sentence for every damaged file that was skipped, and a note why some results are missing."""

    fits: Sequence[Result] = ()
    left_out: Sequence[str] = ()
    note: str = ""
    verdict: LinkVerdict | None = None  # of this run, when it is exercise 0


@dataclass(frozen=True)
class NodeLayout:
    """The number of nodes and of ranks on each, which say where a group of ranks can be."""

    nodes: int
    per_node: int

    def scopes(self, ranks: int) -> list[str]:
        """The scopes of exercise 0 in which a group of this size can be.

        >>> NodeLayout(2, 4).scopes(8), NodeLayout(2, 4).scopes(4), NodeLayout(2, 2).scopes(2)
        (['world'], ['intra'], ['intra', 'inter'])
        """
        several = self.nodes > 1
        found = {
            "intra": 1 < ranks <= self.per_node,
            "inter": several and ranks == self.nodes,
            "world": several and self.per_node > 1 and ranks == self.nodes * self.per_node,
        }
        return [scope for scope, holds in found.items() if holds]

    def command(self, scope: str, ranks: int) -> str:
        """The command that measures groups of this size."""
        nodes, per_node = (1, ranks) if scope == "intra" else (self.nodes, self.per_node)
        return f"{COMMAND} -e 0 -n {nodes} -g {per_node}"


def links_of_site(record: Record | None, summary: Summary) -> LinkResults:
    """For each group of this run the fits of the newest run of exercise 0 on as many ranks, scope, site and backend."""
    layout = _layout(summary)
    if record is None or layout is None:
        return LinkResults()
    groups = {c.group_size for c in summary.collectives if c.group_size}
    wanted = {ranks: layout.scopes(ranks) for ranks in sorted(groups)}
    left_out: list[str] = []
    found: _Found = {}
    for run, measured in _measured_on(record.site.name, summary.backend, left_out):
        if not _missing(wanted, found):
            break
        found = _by_place(_results(run, measured)) | found
    fits = [fit for ranks, scopes in wanted.items() for s in scopes for fit in found.get((s, ranks), [])]
    return LinkResults(fits, left_out, _note(layout, _missing(wanted, found)) if found else "")


def _by_place(results: Sequence[Result]) -> _Found:
    found: _Found = {}
    for result in results:
        if result.fit is not None:
            found.setdefault((result.scope, result.ranks), []).append(result)
    return found


def _missing(wanted: dict[int, list[str]], found: _Found) -> dict[int, list[str]]:
    """The groups with a scope for which no result was found."""
    lacks = {ranks for ranks, scopes in wanted.items() if not any((scope, ranks) in found for scope in scopes)}
    return {ranks: scopes for ranks, scopes in wanted.items() if scopes and ranks in lacks}


def _layout(summary: Summary) -> NodeLayout | None:
    asked = resolved(summary)
    if asked is None:
        return None
    per_node = asked.gpus_per_node or (summary.world_size or 0) // asked.nodes
    return NodeLayout(asked.nodes, per_node) if per_node else None


def _note(layout: NodeLayout, missing: dict[int, list[str]]) -> str:
    """A group of this run that exercise 0 has not measured on this site, and the command to measure it."""
    if not missing:
        return ""
    ranks, scopes = next(reversed(missing.items()))
    where = " or ".join(_PLACES[scope] for scope in scopes)
    return (
        f"There is no bandwidth to compare with: no run of exercise 0 on this site measured groups of {ranks} ranks "
        f"{where}. This command measures it: `{layout.command(scopes[-1], ranks)}`"
    )


def _measured_on(site: str, backend: str | None, left_out: list[str]) -> Iterator[tuple[Run, CollectiveResults]]:
    """Runs of exercise 0 on this site over this backend, the newest first; damaged ones go to `left_out`."""
    for run in reversed(all_runs()):
        if not run.collectives.is_file() or _site(run) != site:
            continue
        measured = _unless_damaged(read_results, run.path, left_out)
        if measured is not None and backend in (None, measured.backend):
            yield run, measured


def _site(run: Run) -> str | None:
    try:
        return str(read_bounded_json(run.record_file)["site"]["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def links_of_run(run: Run | None) -> LinkResults:
    """The results of this run itself; empty when it is not a run of exercise 0."""
    if run is None:
        return LinkResults()
    left_out: list[str] = []
    measured = _unless_damaged(read_results, run.path, left_out)
    verdict = _unless_damaged(read_verdict, run.path, left_out)
    return LinkResults(_results(run, measured) if measured else (), left_out, verdict=verdict)


def _unless_damaged(read: Callable[[Path], _File | None], run: Path, left_out: list[str]) -> _File | None:
    """The result of `read`; of a damaged file None, and the error's text is added to `left_out`."""
    try:
        return read(run)
    except WorkError as error:
        left_out.append(str(error))
        return None


def _results(run: Run, measured: CollectiveResults) -> list[Result]:
    """The collectives that were measured, each with the run's job id."""
    return [r.model_copy(update={"run": run.job_id}) for r in measured.results if r.points]


def write_page(
    run: Run | None,
    summary: Summary,
    path: Path,
    ranks: frozenset[int] | None = None,
    page_data: Sequence[PageData] = (),
    *,
    progress: OnProgress = silent,
) -> None:
    """Write the page of one job. ranks: those of the timeline; None: a choice. page_data: kept from measuring; other
    traces are read again. Raises WorkError: the page cannot be written, or Plotly's script is not installed."""
    inputs = read_inputs(run, summary, ranks, page_data, progress=progress)
    write_atomically(path, render_page(compose(summary, inputs), docs_from(path.parent)))


def read_inputs(
    run: Run | None,
    summary: Summary,
    ranks: frozenset[int] | None = None,
    page_data: Sequence[PageData] = (),
    *,
    progress: OnProgress = silent,
) -> Inputs:
    """The page's data besides the Summary, read from the run and from the page data of its traces."""
    inputs = gather(run)
    choice = choose(summary, ranks)
    drawn = draw(summary, choice, page_data, progress) if summary.devices else TimelineModel()
    communicates = any(d.communication_ns for d in summary.devices)
    hidden = sorted(drawn.hidden.items(), key=lambda item: -item[1][0])  # the longest first
    clocks = {c.host: c.offset_ns for c in summary.clocks}
    left_out = notes(summary, choice, drawn.tracks)
    elsewhere, own = links_of_site(inputs.record, summary), links_of_run(run)
    return replace(
        inputs,
        links=elsewhere.fits,
        links_note=elsewhere.note,
        tested=own.fits,
        verdict=own.verdict,
        left_out=list(dict.fromkeys([*inputs.left_out, *own.left_out, *elsewhere.left_out])),
        heat=heat_figure(drawn.bins, summary),
        gantt=gantt_figure(drawn.passes),
        hidden=[(kind, *times) for kind, times in hidden] if communicates else [],
        timeline=pack_to_fit(drawn.tracks, clocks, left_out) if drawn.tracks else b"",
    )


def compose(summary: Summary, inputs: Inputs) -> Page:
    name, subtitle = title(summary, inputs)
    diagnosis, tested, bar = answer(summary), steps.answer_sentences(inputs), bar_of_answer(summary)
    first, time, folded = (
        [_plotted(make(summary, inputs), summary) for make in part] for part in (_HELP, _TIME, _FOLDED)
    )
    quality, good = [quality_section(summary)], summary.quality.verdict is RecordingVerdict.GOOD
    # A problem of the recording comes before the numbers; a good recording is one of the run's facts.
    before = [*first, *([] if good else quality), *time]
    after = [*folded, *(quality if good else []), run_section(summary, inputs)]
    return Page(
        title=name,
        subtitle=subtitle,
        said=Diagnosis(tested) if tested else diagnosis,
        numbers=[] if tested else _numbers(summary, bar),
        step=None if tested else bar,
        moment=first_moment(summary) if inputs.timeline else None,
        before=[section for section in before if section.has_content],
        timeline=inputs.timeline,
        after=[section for section in after if section.has_content],
        on_cpu=are_cpus(summary.devices),
        code={said: [sections.code_of(summary, line) for line in lines] for said, lines in diagnosis.lines.items()},
    )


def _numbers(s: Summary, bar: StepBar | None) -> list[tuple[str, str]]:
    """The step, the speed and the largest loss, of those that are known."""
    found, speed = next(iter(s.findings), None), s.efficiency.tokens_per_s if s.efficiency else None
    known = [(duration(bar.whole_ns), bar.what)] if bar else []
    known += [(amount(speed, "tokens/s"), "all ranks together")] if speed else []
    if found is not None and found.basis == "replay":
        known.append((f"{duration(found.lost_ns)} ({about(found.share)})", f"lost by {label_of(found)}"))
    return known


def _plotted(section: Section, s: Summary) -> Section:
    """The section with the declared table under each figure without a table; of a bare figure only the table."""
    numbered = [replace(f, table=f.table or figure_table(s, f.id)) for f in section.figures]
    bare = [f.table for f in numbered if f.is_bare and f.table and f.table.rows]
    return replace(section, figures=[f for f in numbered if not f.is_bare], tables=[*bare, *section.tables])


def docs_from(folder: Path) -> list[Link]:
    """Links from a page in this folder to the documentation; none if it is not installed."""
    files = {name: ROOT / "docs" / file for name, file in DOCS.items()}
    return [
        Link(name, quote(os.path.relpath(file, folder.absolute()))) for name, file in files.items() if file.is_file()
    ]


def render_page(page: Page, docs: Sequence[Link] = ()) -> str:
    """The page as HTML, with its figures, styles and scripts inside. `docs`: the documentation that it links to."""
    scripts = [page_part(name) for name in ("words.js", "bytes.js", "paper.js", "runs.js", "timeline.js", "plots.js")]
    plotly = _plotly()
    drawn = {f.id: {"data": f.drawn, "layout": f.layout, "height": f.height} for f in figures(page)}
    template = page_environment().get_template("report.html.j2")
    return template.render(
        page=page,
        docs=docs,
        words=PageWords(),
        prose=_prose,
        most_rows=MOST_ROWS,
        style=page_part("page.css"),
        policy=with_scripts([*scripts, plotly.text]),
        scripts=scripts,
        timeline=packed(page.timeline) if page.timeline else "",
        colors=[*KINDS.items(), *((f"idle: {cause_word(c, page.on_cpu)}", color) for c, color in CAUSES.items())],
        figures=packed(printable_json(json.dumps(drawn)).encode()),
        plotly=plotly.packed,
    )


def figures(page: Page) -> list[Figure]:
    return [f for section in (*page.before, *page.after) for f in section.figures]


def packed(content: bytes) -> str:
    """Large data as a page carries it: gzip and base64, which has no character with a meaning in HTML."""
    return base64.b64encode(igzip.compress(content, 3, mtime=0)).decode("ascii")


class Packed(NamedTuple):
    text: str
    packed: str


@cache
def _plotly() -> Packed:
    """Plotly's own script. The package is not imported: that takes half a second."""
    spec = find_spec("plotly")
    folder = Path(spec.origin).parent if spec is not None and spec.origin else None
    script = folder / "package_data" / "plotly.min.js" if folder else None
    if script is None or not script.is_file():
        raise WorkError("the page needs plotly's script: pip install plotly")
    content = script.read_bytes()
    return Packed(content.decode("utf-8-sig"), packed(content))  # a browser's decoder leaves a mark of order out too


@cache
def page_environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        autoescape=True,
        finalize=shown_in_page,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"prose": _prose, "breakable": _breakable}
    return environment


def _prose(text: str, plain: Callable[[str], Markup] = escape) -> Markup:
    """A sentence; what is between two backticks is a command, which never breaks. plain: makes HTML of the rest."""
    parts = printable(text).split("`")
    if len(parts) % 2 == 0:
        return plain(printable(text))
    marked = (Markup("<code>{}</code>").format(part) if i % 2 else plain(part) for i, part in enumerate(parts))
    return Markup("").join(marked)


def _breakable(text: str) -> Markup:
    """A text whose long names may end a line after a sign, so that no word in them is cut in two."""
    parts = _LONG_NAME.split(printable(text))
    pieces = (_AFTER_SIGN.split(part) if i % 2 else [part] for i, part in enumerate(parts))
    return Markup("").join(Markup("<wbr>").join(map(escape, each)) for each in pieces)


@cache
def page_part(name: str) -> Markup:
    """A style or script of templates/report, not escaped."""
    return Markup((TEMPLATES / "report" / name).read_text(encoding="utf-8"))

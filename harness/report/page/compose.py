"""One self-contained report.html of one job: nothing is fetched, and it is readable without scripts."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from isal import igzip
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from harness.analysis.labels import are_cpus, cause_word
from harness.analysis.process.host_calls import HostCause
from harness.analysis.summary import RecordingVerdict, Summary
from harness.common.display.format import Scale, about, amount, duration, shown_in_page, with_scripts
from harness.common.display.printable import printable, printable_json
from harness.common.errors import WorkError
from harness.common.paths import TEMPLATES
from harness.explain.answer import Diagnosis, answer
from harness.explain.findings import label_of
from harness.explain.job_time import is_large, outside_ns, time_words
from harness.measure.page_data import KINDS, PageData
from harness.report.elements import Figure, Page, Section, StepBar
from harness.report.exercise_0.links import links_of_run
from harness.report.first_screen import bar_of_answer
from harness.report.page import sections, steps
from harness.report.page.inputs import Inputs, gather
from harness.report.page.run import hang_section, host_section, machine_section, quality_section, run_section, title
from harness.report.plots.pipeline import gantt_figure
from harness.report.tables.catalogue import figure_table
from harness.report.tables.replay import first_moment
from harness.report.timeline.encode import pack_to_fit
from harness.report.timeline.timeline_model import TimelineModel, choose, draw, notes
from harness.report.words import PageWords
from harness.run import Run, write_atomically
from harness.traces.progress import OnProgress, silent

MOST_ROWS = 64  # shown rows of a table: the rows of a thousand ranks would hide the rest of the page
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


def write_page(
    run: Run | None, summary: Summary, path: Path, page_data: Sequence[PageData] = (), *, progress: OnProgress = silent
) -> None:
    """Write the page of one job. page_data: kept from measuring; other traces are read again. Raises WorkError: the
    page cannot be written, or Plotly's script is not installed."""
    inputs = read_inputs(run, summary, page_data, progress=progress)
    write_atomically(path, render_page(compose(summary, inputs)))


def read_inputs(
    run: Run | None, summary: Summary, page_data: Sequence[PageData] = (), *, progress: OnProgress = silent
) -> Inputs:
    """The page's data besides the Summary, read from the run and from the page data of its traces."""
    inputs = gather(run)
    choice = choose(summary)
    drawn = draw(summary, choice, page_data, progress) if summary.devices else TimelineModel()
    clocks = {c.host: c.offset_ns for c in summary.clocks}
    left_out = notes(summary, choice, drawn.tracks)
    own = links_of_run(run)
    return replace(
        inputs,
        tested=own.measured,
        verdict=own.verdict,
        left_out=list(dict.fromkeys([*inputs.left_out, *own.left_out])),
        gantt=gantt_figure(drawn.passes),
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
        scale = Scale(bar.whole_ns if bar else found.lost_ns)  # as the sentence has it
        lost = f"{scale.text(found.lost_ns)} {scale.unit}"
        known.append((f"{lost} ({about(found.share)})", f"lost by {label_of(found)}"))
    if s.job_time is not None and is_large(s.job_time):
        known.append(
            (time_words(outside_ns(s.job_time)), f"of the job's {time_words(s.job_time.elapsed_ns)} outside of steps")
        )
    return known


def _plotted(section: Section, s: Summary) -> Section:
    """The section with the declared table under each figure without a table; of a bare figure only the table."""
    numbered = [replace(f, table=f.table or figure_table(s, f.id)) for f in section.figures]
    bare = [f.table for f in numbered if f.is_bare and f.table and f.table.rows]
    return replace(section, figures=[f for f in numbered if not f.is_bare], tables=[*bare, *section.tables])


def render_page(page: Page) -> str:
    """The page as HTML, with its figures, styles and scripts inside."""
    scripts = [page_part(name) for name in ("words.js", "bytes.js", "paper.js", "timeline.js", "plots.js")]
    plotly = _plotly()
    drawn = {f.id: {"data": f.drawn, "layout": f.layout, "height": f.height} for f in figures(page)}
    template = page_environment().get_template("report.html.j2")
    return template.render(
        page=page,
        words=PageWords(),
        prose=_prose,
        most_rows=MOST_ROWS,
        style=page_part("page.css"),
        policy=with_scripts([*scripts, plotly.text]),
        scripts=scripts,
        timeline=packed(page.timeline) if page.timeline else "",
        colors=[*KINDS.items(), *((f"idle: {cause_word(c.label, page.on_cpu)}", c.color) for c in HostCause)],
        figures=packed(printable_json(json.dumps(drawn)).encode()),
        plotly=plotly.packed,
    )


def figures(page: Page) -> list[Figure]:
    return [f for section in (*page.before, *page.after) for f in section.figures]


def packed(content: bytes) -> str:
    """Large data as a page carries it: gzip and base64, which has no character with a meaning in HTML."""
    return base64.b64encode(igzip.compress(content, 3, mtime=0)).decode("ascii")


class PackedPage(NamedTuple):
    text: str
    packed: str


@cache
def _plotly() -> PackedPage:
    """Plotly's own script. The package is not imported: that takes half a second."""
    spec = find_spec("plotly")
    folder = Path(spec.origin).parent if spec is not None and spec.origin else None
    script = folder / "package_data" / "plotly.min.js" if folder else None
    if script is None or not script.is_file():
        raise WorkError("the page needs plotly's script: pip install plotly")
    content = script.read_bytes()
    return PackedPage(
        content.decode("utf-8-sig"), packed(content)
    )  # a browser's decoder leaves a mark of order out too


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

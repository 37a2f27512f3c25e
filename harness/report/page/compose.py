"""One self-contained report.html of one job: everything inlined, nothing fetched, readable without scripts.

Composes; what is said is in the other modules here, how it looks in templates/report.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from harness.analysis.summary import Summary
from harness.common.errors import WorkError
from harness.common.paths import TEMPLATES
from harness.explain.rules import verdict
from harness.format.labels import are_cpus, cause_word
from harness.measure.condensed import Condensed
from harness.report.elements import Figure, Page, Section
from harness.report.page.communication import communication_section
from harness.report.page.exercise_0 import answer, tests_section
from harness.report.page.inputs import Inputs, gather
from harness.report.page.links import links_of_run, links_of_site
from harness.report.page.machine import host_section, machine_section
from harness.report.page.pipeline import pipeline_section
from harness.report.page.run import quality_section, run_section, title
from harness.report.page.steps import steps_section
from harness.report.page.time import split_section
from harness.report.page.work import work_section
from harness.report.palette import CAUSES, KINDS
from harness.report.plots.time import gantt_figure, heat_figure
from harness.report.tables.catalogue import figure_table
from harness.report.timeline.drawn import Drawn, choose, draw, notes
from harness.report.timeline.encode import pack_to_fit
from harness.run import Run, write_atomically
from harness.traces.progress import OnProgress, silent

MOST_ROWS = 64  # of a table: a thousand ranks must not bury what stands below
_BEFORE: tuple[Callable[[Summary, Inputs], Section], ...] = (
    run_section,
    tests_section,
    steps_section,
    split_section,
)
_AFTER: tuple[Callable[[Summary, Inputs], Section], ...] = (
    work_section,
    communication_section,
    pipeline_section,
    host_section,
    machine_section,
)


def write_page(
    run: Run | None,
    summary: Summary,
    path: Path,
    ranks: frozenset[int] | None = None,
    condensed: Sequence[Condensed] = (),
    *,
    progress: OnProgress = silent,
) -> None:
    """Write the page of one job. `run`: its directory when it is one of ours; `ranks`: whose timeline, None
    chooses; `condensed`: what was kept of the traces when they were measured, anything else is read again.

    Raises WorkError when it cannot be written, or when Plotly's script is not installed.
    """
    write_atomically(
        path, render_page(compose(summary, read_inputs(run, summary, ranks, condensed, progress=progress)))
    )


def read_inputs(
    run: Run | None,
    summary: Summary,
    ranks: frozenset[int] | None = None,
    condensed: Sequence[Condensed] = (),
    *,
    progress: OnProgress = silent,
) -> Inputs:
    """What the page needs besides the Summary, read from the run and from its condensed traces."""
    inputs = gather(run)
    choice = choose(summary, ranks)
    drawn = draw(summary, choice, condensed, progress) if summary.devices else Drawn()
    communicates = any(d.communication_ns for d in summary.devices)
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
        hidden=[(kind, *times) for kind, times in _longest_first(drawn.hidden)] if communicates else [],
        timeline=pack_to_fit(drawn.tracks, clocks, left_out) if drawn.tracks else b"",
    )


def _longest_first(hidden: dict[str, tuple[int, int]]) -> list[tuple[str, tuple[int, int]]]:
    return sorted(hidden.items(), key=lambda item: -item[1][0])


def compose(summary: Summary, inputs: Inputs) -> Page:
    """What the page says, without a word of HTML."""
    name, subtitle = title(summary, inputs)
    said = verdict(summary)
    sections = [[_numbered(make(summary, inputs), summary) for make in part] for part in (_BEFORE, _AFTER)]
    before, after = ([x for x in part if _is_worth_showing(x, inputs)] for part in sections)
    return Page(
        title=name,
        subtitle=subtitle,
        sentences=answer(inputs) or said.sentences,
        command=said.command,
        quality=quality_section(summary),
        before=before,
        timeline=inputs.timeline,
        after=after,
        on_cpu=are_cpus(summary.devices),
    )


def _numbered(section: Section, s: Summary) -> Section:
    """The section with the declared table under each figure that has none of its own."""
    numbered = [replace(f, table=f.table or figure_table(s, f.id)) for f in section.figures]
    return replace(section, figures=numbered)


def _is_worth_showing(section: Section, inputs: Inputs) -> bool:
    """What is missing from a training's page is said; exercise 0 trains nothing and misses nothing."""
    return section.has_content or (bool(section.note) and not inputs.tested)


def render_page(page: Page) -> str:
    """The page as HTML, with its figures, styles and scripts inside."""
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            page=page,
            most_rows=MOST_ROWS,
            style=_part("page.css"),
            scripts=[_part(name) for name in ("bytes.js", "paper.js", "runs.js", "timeline.js", "plots.js")],
            timeline=packed(page.timeline) if page.timeline else "",
            colors=[
                *KINDS.items(),
                *((f"idle: {cause_word(c, page.on_cpu)}", color) for c, color in CAUSES.items()),
            ],
            figures=packed(json.dumps({f.id: _drawn(f) for f in figures(page)}).encode()),
            plotly=_plotly(),
        )
    )


def figures(page: Page) -> list[Figure]:
    """Every figure, top to bottom."""
    return [f for section in (*page.before, *page.after) for f in section.figures]


def _drawn(figure: Figure) -> dict[str, object]:
    drawn = asdict(figure)
    return {name: drawn[name] for name in ("data", "layout", "height")}


def packed(content: bytes) -> str:
    """gzip and base64: what a page carries of everything large. Base64 has no character that HTML knows."""
    return base64.b64encode(gzip.compress(content, 6, mtime=0)).decode("ascii")


@cache
def _plotly() -> str:
    """Plotly's own script, packed. Found without importing the package, which would take half a second."""
    spec = find_spec("plotly")
    folder = Path(spec.origin).parent if spec is not None and spec.origin else None
    script = folder / "package_data" / "plotly.min.js" if folder else None
    if script is None or not script.is_file():
        raise WorkError("the page needs plotly's script: pip install plotly")
    return packed(script.read_bytes())


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment


@cache
def _part(name: str) -> Markup:
    """A style or script of ours, as it is."""
    return Markup((TEMPLATES / "report" / name).read_text(encoding="utf-8"))

"""One file that anyone may open: valid, whole, inert whatever a trace is called, readable without its plots."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import pytest

from harness.analysis.summary import Efficiency, Problem, Quality, RankTraining, RecordingVerdict, Summary
from harness.cli.main import main
from harness.explain.answer import Diagnosis
from harness.monitor.samples import DeviceSeries, NodeSamples
from harness.report.elements import Figure, Page, Section
from harness.report.page.compose import MOST_ROWS, compose, figures, render_page
from harness.report.page.inputs import Inputs
from harness.report.page.run import machine_section
from harness.report.plots.plotly_json import bars
from tests.report.conftest import Made
from tests.synthetic.job import HOSTILE, write_traces

html5lib = pytest.importorskip("html5lib", reason="pip install html5lib: it validates the page")
NAMESPACE = "{http://www.w3.org/1999/xhtml}"
GOLDEN = Path(__file__).parents[1] / "golden" / "report-page.json"
_ROWS = 3  # of each table


@cache
def parse(page: str) -> Element:
    """The page as a tree, which nobody changes. Raises on the first thing that is not valid HTML."""
    parser = html5lib.HTMLParser(strict=True, namespaceHTMLElements=True)
    tree: Element = parser.parse(page)
    return tree


def all_of(tree: Element, tag: str) -> list[Element]:
    return list(tree.iter(NAMESPACE + tag))


def texts(tree: Element, tag: str) -> list[str]:
    return ["".join(element.itertext()) for element in all_of(tree, tag)]


def unpacked(page: Path, name: str) -> bytes:
    found = re.search(rf'<script type="application/octet-stream" id="{name}">([^<]*)</script>', page.read_text())
    assert found is not None
    return gzip.decompress(base64.b64decode(found.group(1)))


def head_of(page: Path) -> dict[str, Any]:
    """What the timeline begins with: its strips, kinds and notes."""
    packed = unpacked(page, "timeline-data")
    return dict(json.loads(packed[4 : 4 + int.from_bytes(packed[:4], "little")]))


def _figure(figure: Figure) -> dict[str, Any]:
    axes = {axis: figure.layout[axis].get("title", {}).get("text") for axis in ("xaxis", "yaxis")}
    traces = [
        {name: trace[name] for name in ("type", "name", "marker", "line", "colorscale") if name in trace}
        | {"values": (trace.get("z") or trace[_values(trace)])[:_ROWS]}
        for trace in figure.drawn
    ]
    return {"caption": figure.caption, "axes": axes, "traces": traces, "table": figure.table and figure.table.caption}


def _values(trace: dict[str, Any]) -> str:
    return "x" if trace.get("orientation") == "h" else "y"


def _section(section: Section) -> dict[str, Any]:
    tables = [{"caption": t.caption, "head": t.head, "rows": t.rows[:_ROWS]} for t in section.tables]
    drawn = {figure.id: _figure(figure) for figure in section.figures}
    return {"lead": section.lead, "note": section.note, "facts": section.facts, "figures": drawn, "tables": tables}


def data_of(page: Page, folder: Path) -> dict[str, Any]:
    """What a page says and draws, without the numbers of long plots and tables; the folder has another name."""
    found = {
        "title": page.title,
        "subtitle": page.subtitle,
        "said": [*page.said.first, *page.said.rest],
        "numbers": page.numbers,
        "step": page.step and page.step.told,
        "before": {section.id: _section(section) for section in page.before},
        "after": {section.id: _section(section) for section in page.after},
    }
    return dict(json.loads(json.dumps(found).replace(json.dumps(str(folder))[1:-1], "FOLDER")))


def test_the_page_says_and_draws_what_is_written_down(made: Made) -> None:
    """HARNESS_WRITE_GOLDEN=1 writes it down anew: look at the difference."""
    found = data_of(compose(made.summary, Inputs()), made.page.parent)
    if os.environ.get("HARNESS_WRITE_GOLDEN"):
        GOLDEN.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert found == json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_the_page_is_valid_inert_and_small_and_each_plot_has_a_text(made: Made) -> None:
    text = made.page.read_text()
    tree = parse(text)
    assert len(text) < 6_000_000, "small enough to be sent"
    for element in tree.iter():
        for name, value in element.attrib.items():
            if name in ("src", "href", "action", "data", "poster", "srcset"):
                assert not re.match(r"[a-z]+:|//", value), f"{element.tag} {name}={value}"
    assert [tag for tag in ("link", "img", "i", "b") if all_of(tree, tag)] == []
    styles = "".join(texts(tree, "style"))
    assert "url(" not in styles and "@import" not in styles
    (policy,) = [e for e in all_of(tree, "meta") if e.get("http-equiv") == "Content-Security-Policy"]
    assert (policy.get("content") or "").startswith("default-src 'none'")
    assert HOSTILE not in text and not any("hacked" in script for script in texts(tree, "script"))
    assert any(cell.startswith("evil</script>") for cell in texts(tree, "td"))
    plots = [e for e in all_of(tree, "div") if e.get("class") == "plot"]
    assert len(plots) >= 4
    assert all(len(e.get("aria-label") or "") > 30 for e in plots)
    assert all(len(caption) > 30 for caption in texts(tree, "figcaption"))


def test_a_run_keeps_its_page_unless_refused_and_traces_of_others_have_one_where_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, traces, page = tmp_path / "run", tmp_path / "traces", tmp_path / "page.html"
    for path in write_traces(run / "torch"):
        (run / "torch" / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    (run / "metrics").mkdir()
    write_traces(traces)
    assert main(["report", str(run), "--no-html"]) == main(["report", str(traces)]) == 0
    assert (run / "summary.json").is_file() and not list(tmp_path.rglob("*.html"))
    assert main(["report", str(run)]) == 0
    assert "Kernels by kind" in (run / "report.html").read_text()
    assert main(["report", str(traces), "--html", str(page)]) == 0
    assert f"  page:    {page}\n" in capsys.readouterr().out
    assert [strip["rank"] for strip in head_of(page)["strips"]] == [0, 1]


def test_a_run_without_a_profile_shows_its_steps_by_phase(tmp_path: Path) -> None:
    metrics, page = tmp_path / "run" / "metrics", tmp_path / "run" / "report.html"
    metrics.mkdir(parents=True)
    start = {"event": "start", "rank": 0, "world_size": 1, "model": "tiny-llama", "flops_per_token": 6e6}
    steps = [
        {"event": "step", "rank": 0, "step": i, "phase": phase, "unix_ns": i * 10**9, "step_ns": 10**8, "tokens": 512,
         "samples": 2, "data_ns": 10**7}
        for i, phase in enumerate(["skip"] * 3 + ["wait"] + ["warmup"] * 2 + ["active"] * 4)
    ]  # fmt: skip
    (metrics / "rank0.jsonl").write_text("".join(json.dumps(e) + "\n" for e in [start, *steps]) + '{"event": "st')
    assert main(["report", str(tmp_path / "run")]) == 0
    cells = texts(parse(page.read_text()), "td")
    assert cells[cells.index("profiled") :][:3] == ["profiled", "4", "100 ms"]
    plot = json.loads(unpacked(page, "figures"))["step-time"]
    assert [(shape["x0"], shape["x1"]) for shape in plot["layout"]["shapes"]] == [(3.5, 5.5), (5.5, 9.5)]
    assert [trace["name"] for trace in plot["data"]] == ["rank 0", "profiler warms up", "profiled"]
    assert "annotations" not in plot["layout"], "words above the bands run into each other and into the legend"


def test_a_doubtful_recording_is_named_above_its_numbers() -> None:
    doubt = Problem(severity=RecordingVerdict.DOUBTFUL, what="a range is missing", evidence="3 of 4")
    doubtful = Quality(verdict=RecordingVerdict.DOUBTFUL, problems=[doubt])
    for quality, place in ((Quality(), "after"), (doubtful, "before")):
        page = compose(Summary(training=[RankTraining(rank=0)], quality=quality), Inputs())
        assert [x.title for x in getattr(page, place) if x.id == "quality"] == ["Recording quality"]


@pytest.mark.parametrize(
    ("trace", "bare"),
    [
        ({"type": "bar", "x": ["1 MiB"], "y": [20]}, True),
        ({"type": "bar", "orientation": "h", "y": ["a", "b"], "x": [3, 0]}, True),
        ({"type": "bar", "orientation": "h", "y": ["a", "b"], "x": [3, 1]}, False),
        ({"type": "scatter", "x": [1, 2], "y": [9.5, None]}, True),
        ({"type": "scatter", "x": [1, 2], "y": [9.5, 8]}, False),
        ({"type": "heatmap", "x": [10], "y": ["rank 0", "rank 1"], "z": [[1], [2]]}, True),
    ],
)
def test_a_plot_of_one_bar_or_one_point_is_bare(trace: dict[str, Any], bare: bool) -> None:
    assert Figure("one", "", [trace], {}).is_bare is bare


def test_bars_that_are_zero_everywhere_are_not_drawn() -> None:
    names = ["compute", "exposed communication", "idle"]
    stack = [bars(name, [5.0 * (i != 1), 0.0], ["rank 0", "rank 1"], "") for i, name in enumerate(names)]
    assert [trace["name"] for trace in Figure("stack", "", stack, {}).drawn] == ["compute", "idle"]


def test_a_plot_of_several_message_sizes_is_drawn_beside_its_table(made: Made) -> None:
    """Every message of the job has the same size: of a bare plot the page has the table alone."""
    two = [*made.summary.message_sizes, made.summary.message_sizes[0].model_copy(update={"bytes": 1 << 24})]
    shown = figures(compose(made.summary.model_copy(update={"message_sizes": two}), Inputs()))
    (times,) = [figure for figure in shown if figure.id == "transfer-times"]
    assert times.table is not None and times.table.caption == "Message sizes"


def test_an_empty_summary_has_a_valid_page_without_sections_for_what_is_missing(made: Made) -> None:
    empty = compose(Summary(), Inputs())
    assert [section.id for section in (*empty.before, *empty.after)] == ["quality"]
    parse(render_page(empty))
    gloo = made.summary.model_copy(update={"backend": "gloo", "nccl": None})
    assert not {"nccl", "machine"} & {section.id for section in compose(gloo, Inputs()).after}


def test_a_page_of_traces_without_a_run_has_no_command_that_needs_a_run(made: Made) -> None:
    """A run is called RUN, LAST or last in a command; these commands take nothing else."""
    (every,) = texts(parse(made.page.read_text()), "main")
    assert "What would help" in every
    needs_a_run = r"\b(RUN|LAST)\b|slurm\.sh (\S+ last|rerun|logs|status|mystery|reference|check)\b"
    assert not re.search(needs_a_run, every)


def test_a_sentence_shows_a_command_in_its_box_and_every_name_as_text() -> None:
    said = Diagnosis(["Try `bash slurm.sh -e 0 <b>` now.", "one ` <i> alone"])
    tree = parse(render_page(replace(compose(Summary(), Inputs()), said=said)))
    assert texts(tree, "code") == ["bash slurm.sh -e 0 <b>"]
    assert not all_of(tree, "b") and not all_of(tree, "i")


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        (
            {"mfu": 0.41, "peak_flops_per_s": 312e12, "peak_source": "the device table, bf16"},
            ["41.0 % of 312 TFLOP/s (the device table, bf16)"],
        ),
        ({}, []),
    ],
)
def test_mfu_is_shown_with_the_source_of_its_peak_and_a_long_table_is_cut(
    more: dict[str, Any], shown: list[str]
) -> None:
    ranks = [RankTraining(rank=rank) for rank in range(1000)]
    page = render_page(compose(Summary(training=ranks, efficiency=Efficiency(tokens_per_s=1000, **more)), Inputs()))
    (steps,) = [e for e in all_of(parse(page), "section") if e.get("id") == "steps"]
    cells = texts(steps, "td")
    assert [after for name, after in pairwise(cells) if name == "MFU"] == shown
    assert "936 more rows. The command export csv writes all rows." in "".join(steps.itertext())
    assert MOST_ROWS < len(all_of(steps, "tr")) < MOST_ROWS + 10


def test_no_line_of_the_monitor_bridges_a_gap() -> None:
    at = [second * 10**9 for second in (0, 1, 8, 9)]
    device = DeviceSeries(0, "GPU", None, at, {"power_watts": [1.0, 2.0, 3.0, 4.0]}, gaps=((10**9, 8 * 10**9),))
    recording = NodeSamples(Path("node1"), "node1", "nvml", 10**9, (device,), {}, 0, device.gaps)
    (figure,) = machine_section(Summary(), Inputs(monitors=[recording])).figures
    assert figure.data[0]["y"] == [1.0, 2.0, None, 3.0, 4.0]
    assert figure.caption.endswith("from 1 to 4.")

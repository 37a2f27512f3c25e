"""One file that anyone may open: valid, whole, inert whatever a trace is called, readable without its plots."""

from __future__ import annotations

import base64
import gzip
import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree.ElementTree import Element

import pytest

from harness.analysis.summary import Collective, Efficiency, Problem, Quality, RankTraining, RecordingVerdict, Summary
from harness.cli.main import main
from harness.common.palette import COMMUNICATION
from harness.explain.answer import Diagnosis
from harness.monitor.samples import DeviceSeries, NodeSamples
from harness.report.elements import Figure
from harness.report.exercise_0.links import links_of_run, links_of_site
from harness.report.page import compose as page_module
from harness.report.page.compose import MOST_ROWS, compose, docs_from, figures, render_page, write_page
from harness.report.page.inputs import Inputs
from harness.report.page.run import machine_section
from harness.report.plots.plotly_json import bars
from tests.report.conftest import Made, Named
from tests.report.given_summary import run
from tests.report.test_report_links import a_record
from tests.synthetic.job import HOSTILE, write_traces

html5lib = pytest.importorskip("html5lib", reason="pip install html5lib: it validates the page")
NAMESPACE = "{http://www.w3.org/1999/xhtml}"


@cache
def parse(page: str) -> Element:
    """The page as a tree, which nobody changes. Raises on the first thing that is not valid HTML."""
    parser = html5lib.HTMLParser(strict=True, namespaceHTMLElements=True)
    tree: Element = parser.parse(page)
    return tree


def all_of(tree: Element, tag: str) -> list[Element]:
    return list(tree.iter(NAMESPACE + tag))


def test_the_page_is_valid_html(made: Made) -> None:
    parse(made.page.read_text())


def test_a_summary_without_anything_still_gives_a_valid_page() -> None:
    page = render_page(compose(Summary(), Inputs()))
    assert len(all_of(parse(page), "section")) >= 2


def test_the_page_is_small_enough_to_be_sent(made: Made) -> None:
    assert made.page.stat().st_size < 6_000_000


def test_nothing_in_the_page_leads_outside(made: Made) -> None:
    tree = parse(made.page.read_text())
    for element in tree.iter():
        for name, value in element.attrib.items():
            if name in ("src", "href", "action", "data", "poster", "srcset"):
                assert not re.match(r"[a-z]+:|//", value), f"{element.tag} {name}={value}"
    assert not all_of(tree, "link")
    styles = "".join(e.text or "" for e in all_of(tree, "style"))
    assert "url(" not in styles and "@import" not in styles
    (policy,) = [e for e in all_of(tree, "meta") if e.get("http-equiv") == "Content-Security-Policy"]
    assert (policy.get("content") or "").startswith("default-src 'none'")


def test_hostile_names_are_text_and_nothing_else(made: Made) -> None:
    text = made.page.read_text()
    tree = parse(text)
    assert not all_of(tree, "img")
    assert all("hacked" not in (script.text or "") for script in all_of(tree, "script"))
    cells = ["".join(cell.itertext()) for cell in all_of(tree, "td")]
    assert any(cell.startswith("evil</script>") for cell in cells)
    assert HOSTILE not in text
    assert not all_of(tree, "i") and not all_of(tree, "b")


def test_every_plot_has_a_text_too(made: Made) -> None:
    shown = all_of(parse(made.page.read_text()), "figure")
    assert len(shown) >= 5
    for figure in shown:
        (plot,) = [e for e in figure.iter(NAMESPACE + "div") if e.get("class") == "plot"]
        (caption,) = all_of(figure, "figcaption")
        assert len(plot.get("aria-label") or "") > 30
        assert len("".join(caption.itertext())) > 30


def unpacked(page: Path, name: str) -> bytes:
    found = re.search(rf'<script type="application/octet-stream" id="{name}">([^<]*)</script>', page.read_text())
    assert found is not None
    return gzip.decompress(base64.b64decode(found.group(1)))


def drawn(made: Made) -> dict[str, Any]:
    return dict(json.loads(unpacked(made.page, "figures")))


def test_every_axis_of_every_plot_has_a_title(made: Made) -> None:
    for name, figure in drawn(made).items():
        assert figure["data"], name
        titles = [figure["layout"][axis].get("title", {}).get("text") for axis in ("xaxis", "yaxis")]
        assert any(titles), name
        numbers = [t for t in titles if t]
        assert all(re.search(r"\(.+\)|step|messages|size", t) for t in numbers), (name, numbers)


def test_communication_has_one_colour_everywhere(made: Made) -> None:
    plots = drawn(made)
    split = {trace["name"]: trace["marker"] for trace in plots["time-split"]["data"]}
    assert split["exposed communication"]["color"] == COMMUNICATION
    assert split["compute and communication"]["pattern"]["fgcolor"] == COMMUNICATION
    (kinds,) = plots["kinds"]["data"]
    assert dict(zip(kinds["y"], kinds["marker"]["color"], strict=True))["communication"] == COMMUNICATION
    assert plots["collectives-time"]["data"][0]["marker"]["color"] == COMMUNICATION
    head = unpacked(made.page, "timeline-data")
    said = json.loads(head[4 : 4 + int.from_bytes(head[:4], "little")])
    assert dict(said["kinds"])["communication"] == COMMUNICATION


def test_the_split_of_each_bar_adds_up_to_its_window(made: Made) -> None:
    bars = drawn(made)["time-split"]["data"]
    for device in range(2):
        assert sum(bar["x"][device] for bar in bars) == pytest.approx(100, abs=0.2)


def test_the_page_says_what_the_summary_says(made: Made) -> None:
    words = " ".join("".join(e.itertext()) for e in parse(made.page.read_text()).iter(NAMESPACE + "p"))
    assert "A step takes 1.00 ms on average: 53.0 % computing" in words
    assert "waiting for data costs 0.15 of 1.00 ms a step (15 %; the same in all steps), on both ranks." in words


def test_traces_of_others_get_a_page_only_where_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces = tmp_path / "traces"
    write_traces(traces)
    assert main(["report", str(traces)]) == 0
    assert not list(tmp_path.rglob("*.html"))
    assert main(["report", str(traces), "--html", str(tmp_path / "page.html")]) == 0
    assert f"  page:    {tmp_path / 'page.html'}\n" in capsys.readouterr().out and (tmp_path / "page.html").is_file()


def test_a_runs_page_lies_beside_its_summary_unless_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for path in write_traces(run / "torch"):
        (run / "torch" / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    (run / "metrics").mkdir()
    assert main(["report", str(run), "--no-html"]) == 0
    assert (run / "summary.json").is_file() and not (run / "report.html").exists()
    assert main(["report", str(run)]) == 0
    assert "Kernels by kind" in (run / "report.html").read_text()


def test_a_run_without_a_profile_shows_its_steps_by_phase(tmp_path: Path) -> None:
    metrics = tmp_path / "run" / "metrics"
    metrics.mkdir(parents=True)
    start = {"event": "start", "rank": 0, "world_size": 1, "model": "tiny-llama", "flops_per_token": 6e6}
    phases = ["skip"] * 3 + ["wait"] + ["warmup"] * 2 + ["active"] * 4
    steps = [
        {"event": "step", "rank": 0, "step": i, "phase": phase, "unix_ns": i * 10**9, "step_ns": 10**8, "tokens": 512,
         "samples": 2, "data_ns": 10**7}
        for i, phase in enumerate(phases)
    ]  # fmt: skip
    (metrics / "rank0.jsonl").write_text("".join(json.dumps(e) + "\n" for e in [start, *steps]) + '{"event": "st')
    assert main(["report", str(tmp_path / "run")]) == 0
    page = tmp_path / "run" / "report.html"
    cells = ["".join(e.itertext()) for e in all_of(parse(page.read_text()), "td")]
    assert cells[cells.index("profiled") : cells.index("profiled") + 3] == ["profiled", "4", "100 ms"]
    plot = json.loads(unpacked(page, "figures"))["step-time"]
    shaded = [(shape["x0"], shape["x1"]) for shape in plot["layout"]["shapes"]]
    assert shaded == [(3.5, 5.5), (5.5, 9.5)]
    assert [trace["name"] for trace in plot["data"]] == ["rank 0", "profiler warms up", "profiled"]
    assert "annotations" not in plot["layout"], "words above the bands run into each other and into the legend"


def test_after_the_answer_comes_what_would_help_and_the_runs_facts_are_last(made: Made) -> None:
    sections = [e.get("id") for e in all_of(parse(made.page.read_text()), "section")]
    assert sections[:3] == ["verdict", "help", "steps"]
    assert sections[-3:] == ["quality", "run", "words"]
    below = sections[sections.index("timeline") + 1 :]
    assert {"kernels", "collectives", "host"} <= set(below)


def test_a_doubtful_recording_is_named_above_its_numbers() -> None:
    doubt = Problem(severity=RecordingVerdict.DOUBTFUL, what="a range is missing", evidence="3 of 4")
    doubtful = Quality(verdict=RecordingVerdict.DOUBTFUL, problems=[doubt])
    for quality, place in ((Quality(), "after"), (doubtful, "before")):
        page = compose(Summary(training=[RankTraining(rank=0)], quality=quality), Inputs())
        (section,) = (x for x in getattr(page, place) if x.id == "quality")
        assert section.title == "Recording quality"


@pytest.mark.parametrize(
    ("trace", "bare"),
    [
        ({"type": "bar", "x": ["1 MiB"], "y": [20]}, True),
        ({"type": "bar", "orientation": "h", "y": ["a", "b"], "x": [3, 0]}, True),
        ({"type": "bar", "orientation": "h", "y": ["a", "b"], "x": [3, 1]}, False),
        ({"type": "scatter", "x": [1024], "y": [9.5]}, True),
        ({"type": "scatter", "x": [1, 2], "y": [9.5, None]}, True),
        ({"type": "scatter", "x": [1, 2], "y": [9.5, 8]}, False),
        ({"type": "scatter", "x": [1.1], "y": ["b"], "error_x": {}}, False),
        ({"type": "box", "y": [7.0]}, True),
        ({"type": "histogram", "x": [7.0, 8.0]}, False),
        ({"type": "heatmap", "x": [10], "y": ["rank 0", "rank 1"], "z": [[1], [2]]}, True),
    ],
)
def test_a_plot_of_one_bar_or_one_point_is_bare(trace: dict[str, Any], bare: bool) -> None:
    assert Figure("one", "", [trace], {}).is_bare is bare


def test_bars_and_layers_that_are_zero_everywhere_are_not_drawn() -> None:
    names = ["compute", "exposed communication", "idle"]
    stack = [bars(name, [5.0 * (i != 1), 0.0], ["rank 0", "rank 1"], "") for i, name in enumerate(names)]
    layers = [{"type": "heatmap", "x": [1, 2], "z": [[value, None]]} for value in (0.5, 0.0, 0.2)]
    assert [trace["name"] for trace in Figure("stack", "", stack, {}).drawn] == ["compute", "idle"]
    assert Figure("heat", "", layers, {}).drawn == [layers[0], layers[2]]


def test_a_bare_plot_is_left_out_and_its_table_is_shown(made: Made) -> None:
    """Every message of this job has the same size."""
    page = compose(made.summary, Inputs())
    assert not {"message-sizes", "transfer-times"} & {figure.id for figure in figures(page)}
    (collectives,) = (section for section in page.after if section.id == "collectives")
    assert "Message sizes" in [table.caption for table in collectives.tables]
    two = [*made.summary.message_sizes, made.summary.message_sizes[0].model_copy(update={"bytes": 1 << 24})]
    shown = figures(compose(made.summary.model_copy(update={"message_sizes": two}), Inputs()))
    assert {"message-sizes", "transfer-times"} <= {figure.id for figure in shown}


def test_a_section_that_would_only_say_that_something_is_missing_is_left_out(made: Made) -> None:
    empty = compose(Summary(), Inputs())
    assert [section.id for section in (*empty.before, *empty.after)] == ["quality"]
    gloo = made.summary.model_copy(update={"backend": "gloo", "nccl": None})
    assert not {"nccl", "machine"} & {section.id for section in compose(gloo, Inputs()).after}


def test_the_footer_links_to_documentation_that_exists(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    (footer,) = all_of(parse(made.page.read_text()), "footer")
    links = [unquote(a.get("href") or "") for a in all_of(footer, "a")]
    assert {Path(link).name for link in links} == {"metrics.md", "investigate.md"}
    assert all((made.page.parent / link).is_file() for link in links)
    monkeypatch.setattr(page_module, "ROOT", Path("/no/documents"))
    (footer,) = all_of(parse(render_page(compose(Summary(), Inputs()), docs_from(Path.cwd()))), "footer")
    assert not all_of(footer, "a") and "docs/metrics.md" in "".join(footer.itertext())


def test_a_page_of_traces_without_a_run_has_no_command_that_needs_a_run(made: Made) -> None:
    """A run is called RUN, LAST or last in a command; these commands take nothing else."""
    every = " ".join("".join(e.itertext()) for e in all_of(parse(made.page.read_text()), "main"))
    assert "What would help" in every
    needs_a_run = r"\b(RUN|LAST)\b|--verify|slurm\.sh (\S+ last|rerun|logs|status|mystery|reference|check)\b"
    assert not re.search(needs_a_run, every)
    ours = Summary.model_validate(made.summary.model_dump() | run(1))
    (section,) = (x for x in compose(ours, Inputs()).before if x.id == "help")
    assert "--verify` makes the run of the best change" in section.lead


def test_a_sentence_shows_a_command_in_its_box_and_every_name_as_text() -> None:
    page = compose(Summary(), Inputs())
    said = render_page(replace(page, said=Diagnosis(["Try `bash slurm.sh -e 0 <b>` now.", "one ` <i> alone"])))
    (command,) = (c for c in all_of(parse(said), "code"))
    assert command.text == "bash slurm.sh -e 0 <b>"
    assert not all_of(parse(said), "b") and not all_of(parse(said), "i")


def test_mfu_is_shown_with_its_peak_and_the_source_of_the_peak_or_not_at_all() -> None:
    known = Efficiency(tokens_per_s=1000, mfu=0.41, peak_flops_per_s=312e12, peak_source="the device table, bf16")
    for efficiency, shown in (
        (known, "41.0 % of 312 TFLOP/s (the device table, bf16)"),
        (Efficiency(tokens_per_s=1000), "not given: the peak of this device is not known"),
    ):
        page = render_page(compose(Summary(training=[RankTraining(rank=0)], efficiency=efficiency), Inputs()))
        cells = ["".join(e.itertext()) for e in all_of(parse(page), "td")]
        assert cells[cells.index("MFU") + 1] == shown


def test_a_table_of_a_thousand_ranks_is_cut_and_says_where_the_rest_is() -> None:
    page = render_page(compose(Summary(training=[RankTraining(rank=rank) for rank in range(1000)]), Inputs()))
    tree = parse(page)
    (steps,) = [e for e in all_of(tree, "section") if e.get("id") == "steps"]
    assert len(all_of(steps, "tr")) == 1 + MOST_ROWS
    assert "936 more rows. The command export csv writes all rows." in "".join(steps.itertext())


def test_the_timeline_shows_the_ranks_that_were_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_traces(tmp_path / "traces")
    page = tmp_path / "page.html"
    asked = ["report", str(tmp_path / "traces"), "--html", str(page), "--ranks"]
    assert main([*asked, "1"]) == 0
    head = unpacked(page, "timeline-data")
    said = json.loads(head[4 : 4 + int.from_bytes(head[:4], "little")])
    assert [strip["rank"] for strip in said["strips"]] == [1]
    assert "1 of 2 ranks are shown" in said["notes"][0]
    assert main([*asked, "7"]) == 2
    assert "--ranks 7: there is no such rank; the ranks are 0 to 1" in capsys.readouterr().err
    assert main([*asked, "all"]) == 2
    assert "as in --ranks 0,3" in capsys.readouterr().err


def test_the_page_of_exercise_0_shows_the_links(tmp_path: Path) -> None:
    fit = {"alpha_ns": 2000.0, "beta_ns_per_byte": 0.05}
    points = [
        {"message_bytes": 2**k, "time_ns": 2000 + 0.05 * 2**k, "busbw_gbytes_per_s": 2**k / 1e6, "correct": True}
        for k in (10, 20)
    ]
    result = {"collective": "all_reduce", "scope": "inter", "ranks": 4, "points": points, "fit": fit}
    (tmp_path / "run/comm").mkdir(parents=True)
    (tmp_path / "run/run.json").write_text('{"job_id": "7"}')
    (tmp_path / "run/comm/collectives.json").write_text(json.dumps({"results": [result]}))
    inputs = Inputs(tested=links_of_run(Named(tmp_path / "run")).fits)
    page = render_page(compose(Summary(), inputs))
    words = " ".join("".join(e.itertext()) for e in parse(page).iter(NAMESPACE + "p"))
    assert "An all-reduce of 4 ranks, one on each node, starts in 2.00 µs and reaches 1.05 GB/s" in words
    assert "messages of about 40.0 kB reach half of the highest bandwidth" in words


def test_a_damaged_run_of_exercise_0_on_the_same_site_is_named_and_costs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path))
    other = tmp_path / "exercise_0_Communication_Tests/profiler/other"
    (other / "comm").mkdir(parents=True)
    (other / "run.json").write_text('{"site": {"name": "local"}}')
    results = {"results": [{"collective": "all_reduce", "fit": {"alpha_ns": 1}}]}
    (other / "comm/collectives.json").write_text(json.dumps(results))
    reduced = Collective(kind="all_reduce", group_size=2, count=1, ranks=2, duration_ns=1, mean_ns=1)
    asked = {"exercise": 1, "nodes": 1, "gpus_per_node": 2}
    found = links_of_site(a_record("1", 1), Summary(experiment=asked, collectives=[reduced]))
    assert not found.fits
    page = render_page(compose(Summary(), Inputs(left_out=found.left_out)))
    words = " ".join("".join(e.itertext()) for e in parse(page).iter(NAMESPACE + "dd"))
    assert "comm/collectives.json is damaged (results.0.scope: Field required)" in words


def test_a_page_whose_traces_are_gone_keeps_its_numbers(made: Made, tmp_path: Path) -> None:
    sources = [x.model_copy(update={"path": str(tmp_path / "gone.json")}) for x in made.summary.sources]
    page = tmp_path / "page.html"
    write_page(None, made.summary.model_copy(update={"sources": sources}), page)
    tree = parse(page.read_text())
    assert not all_of(tree, "canvas")
    assert [e for e in all_of(tree, "section") if e.get("id") == "split"]


def test_no_line_of_the_monitor_bridges_a_gap() -> None:
    at = [second * 10**9 for second in (0, 1, 8, 9)]
    device = DeviceSeries(0, "GPU", None, at, {"power_watts": [1.0, 2.0, 3.0, 4.0]}, gaps=((10**9, 8 * 10**9),))
    recording = NodeSamples(Path("node1"), "node1", "nvml", 10**9, (device,), {}, 0, device.gaps)
    (figure,) = machine_section(Summary(), Inputs(monitors=[recording])).figures
    assert figure.data[0]["y"] == [1.0, 2.0, None, 3.0, 4.0]
    assert figure.caption.endswith("from 1 to 4.")

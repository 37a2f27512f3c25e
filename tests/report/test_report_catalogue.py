"""A table is declared once: what is registered in the catalogue is seen in terminal, page, files, compare and docs."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pages
import pytest
from pages import names
from pyarrow import parquet

from harness.analysis import metrics
from harness.analysis.metric_values import Facts
from harness.analysis.metrics import COLLECTIVES, Metric, metrics_by_name
from harness.analysis.summary import Summary, SummaryPart
from harness.common.format import duration
from harness.compare.summaries import compare, ratios
from harness.report.compare import tables
from harness.report.compare.page import ComparedRuns, compose_comparison
from harness.report.compare.terminal import render_comparisons
from harness.report.page.compose import compose, figures
from harness.report.page.inputs import Inputs
from harness.report.tables import catalogue
from harness.report.tables.catalogue import write_tables
from harness.report.tables.table import Column, TableOf, file_of
from harness.report.tables.terminal import render
from tests.report.conftest import Made


class Wakeup(SummaryPart, kw_only=True):
    """The row of an analysis that exists only in this test."""

    rank: int
    late_ns: int


class WithWakeups(Summary, kw_only=True):
    """A Summary with one field more."""

    wakeups: list[Wakeup] = []  # noqa: RUF012 - msgspec copies it


def latest_ns(facts: Facts) -> float | None:
    return max((float(w.late_ns) for w in getattr(facts.summary, "wakeups", ())), default=None)


WAKEUPS = TableOf[Wakeup](
    caption="How late each rank wakes up",
    rows=lambda s: getattr(s, "wakeups", ()),
    columns=(Column("rank", lambda w: str(w.rank)), Column("late", lambda w: duration(w.late_ns))),
    section="host",
    file=file_of("wakeups"),
)
LATEST = Metric("latest_wakeup_ns", latest_ns, "When the last rank begins to work.", "latest wake-up", "more")


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "TABLES", (*catalogue.TABLES, WAKEUPS))
    declared = (*metrics.METRICS, LATEST)
    for module in (metrics, tables, pages):
        monkeypatch.setattr(module, "METRICS", declared)


def woken(made: Made, late_ns: int) -> WithWakeups:
    rows = [{"rank": 0, "late_ns": late_ns}, {"rank": 1, "late_ns": 700}]
    return WithWakeups.model_validate(made.summary.model_dump() | {"wakeups": rows})


@pytest.mark.usefixtures("registered")
def test_terminal_and_page_show_a_table_that_is_only_registered(made: Made) -> None:
    s = woken(made, 1_500)
    whole = render(s)
    assert "How late each rank wakes up\n  rank     late\n  0     1.50 µs\n  1      700 ns" in whole
    (host,) = [section for section in compose(s, Inputs()).after if section.id == "host"]
    assert [list(row) for t in host.tables if t.caption == WAKEUPS.caption for row in t.rows] == [
        ["0", "1.50 µs"],
        ["1", "700 ns"],
    ]


@pytest.mark.usefixtures("registered")
def test_csv_and_parquet_hold_a_table_that_is_only_registered(made: Made, tmp_path: Path) -> None:
    write_tables([woken(made, 1_500)], tmp_path)
    write_tables([woken(made, 1_500)], tmp_path, parquet=True)
    with (tmp_path / "wakeups.csv").open() as file:
        assert [row["late_ns"] for row in csv.DictReader(file)] == ["1500", "700"]
    assert parquet.read_table(tmp_path / "wakeups.parquet").to_pylist()[0] == {"job": 0, "rank": 0, "late_ns": 1500}


@pytest.mark.usefixtures("registered")
def test_compare_knows_a_metric_that_is_only_declared(made: Made) -> None:
    a, b = woken(made, 1_000), woken(made, 3_000)
    pair = compare(a, b, ("a", "b"))
    assert ratios(pair)["latest_wakeup_ns"] == 3.0
    line = next(x for x in render_comparisons([pair]).splitlines() if "latest wake-up" in x)
    page = compose_comparison(ComparedRuns(("a", "b"), (a, b), (pair,)))
    (results,) = [section for section in page.before if section.id == "results"]
    row = next(row for row in results.tables[0].rows if row[0] == "latest wake-up")
    assert list(row) == ["latest wake-up", "1.00 µs", "3.00 µs", "3×"] and all(x in line for x in row)


def test_every_table_is_in_a_place_of_the_page_that_exists(made: Made) -> None:
    page = compose(made.summary, Inputs())
    there = {section.id for section in (*page.before, *page.after)}
    there |= {"phases", "machine", "nccl", "memory", "counters", "job-time"}
    drawn = {figure.id for figure in figures(page)} | {"pipeline-stages"}
    drawn |= {"message-sizes"}  # of one size here: no plot, but its table
    assert any(table.caption.startswith("Collectives by") for x in page.after for table in x.tables)
    assert {t.section for t in catalogue.TABLES if t.section} <= there
    assert {t.figure for t in catalogue.TABLES if t.figure} <= drawn


def test_every_list_of_the_summary_and_of_a_device_has_a_file() -> None:
    lists = {name for name in Summary.__struct_fields__ if isinstance(getattr(Summary(), name), list)}
    names = [file.name for file in catalogue.files()]
    assert lists - {"ranks", "hosts"} <= {*names} and len(names) == len({*names})


def test_a_column_that_is_a_list_in_some_rows_only_is_in_no_file(tmp_path: Path) -> None:
    """Like a run in which one rank stopped before it profiled."""
    rows = [{"rank": 0, "profiled_unix_ns": (1, 2)}, {"rank": 1, "profiled_unix_ns": None}]
    write_tables([Summary.model_validate({"training": rows})], tmp_path)
    with (tmp_path / "training.csv").open() as file:
        read = list(csv.DictReader(file))
    assert [row["rank"] for row in read] == ["0", "1"] and "profiled_unix_ns" not in read[0]


@pytest.mark.usefixtures("registered")
def test_docs_have_a_row_of_a_number_that_is_only_registered() -> None:
    assert "| `latest_wakeup_ns` | latest wake-up | When the last rank begins to work. |" in names()


def test_docs_define_every_number_that_a_summary_has(made: Made) -> None:
    kinds = re.compile(rf"^({'|'.join(sorted(COLLECTIVES, key=len, reverse=True))})(?=_)")
    found = {kinds.sub("<kind>", name) for name in metrics_by_name(made.summary)}
    defined = dict(re.findall(r"^\| `([\w<>]+)` \| [^|]+ \| (.*) \|$", names(), re.M))
    assert len(found) > 20 and all(defined.values())
    assert {*found, *(metric.name for metric in metrics.METRICS)} <= {*defined}

"""The tables are all in a place of the page that exists, the lists of a summary all in a file, and the numbers all in
the documents. That a table which is only registered is in all of them is shown by tests/repo/test_repo_additions.py."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from pages import names

from harness.analysis import metrics
from harness.analysis.metrics import COLLECTIVES, metrics_by_name
from harness.analysis.summary import Summary
from harness.analysis.summary.base import parts_of
from harness.report.page.compose import compose, figures
from harness.report.page.inputs import Inputs
from harness.report.tables import catalogue
from harness.report.tables.catalogue import write_tables
from tests.report.conftest import Made


def test_every_table_is_in_a_place_of_the_page_that_exists(made: Made) -> None:
    page = compose(made.summary, Inputs())
    there = {section.id for section in (*page.before, *page.after)}
    there |= {"phases", "machine", "pipeline", "nccl", "memory", "counters", "job-time"}
    drawn = {figure.id for figure in figures(page)} | {"transfer-times"}  # of one size here: no plot, but its table
    assert any(table.caption.startswith("Collectives by") for x in page.after for table in x.tables)
    assert {t.section for t in catalogue.TABLES if t.section} <= there
    assert {t.figure for t in catalogue.TABLES if t.figure} <= drawn


def test_a_column_names_a_field_that_a_part_of_the_summary_has() -> None:
    fields = {name for part in parts_of(Summary) for name in part.__struct_fields__}
    named = {column.cell for table in catalogue.TABLES for column in table.columns if isinstance(column.cell, str)}
    assert len(named) > 80 and named <= fields


def test_every_list_of_the_summary_and_of_a_device_has_a_file() -> None:
    lists = {name for name in Summary.__struct_fields__ if isinstance(getattr(Summary(), name), list)}
    names = [file.name for file in catalogue.files()]
    assert lists - {"ranks", "hosts"} <= {*names} and len(names) == len({*names})


def test_a_column_that_is_a_list_in_some_rows_only_is_in_no_file(tmp_path: Path) -> None:
    """Like a run in which one rank stopped before it profiled."""
    rows = [{"rank": 0, "profiled_unix_ns": (1, 2)}, {"rank": 1, "profiled_unix_ns": None}]
    given = [Summary.model_validate({"training": rows})]
    write_tables(given, tmp_path)
    with (tmp_path / "training.csv").open() as file:
        read = list(csv.DictReader(file))
    assert [row["rank"] for row in read] == ["0", "1"] and "profiled_unix_ns" not in read[0]


def test_docs_define_every_number_that_a_summary_has(made: Made) -> None:
    kinds = re.compile(rf"^({'|'.join(sorted(COLLECTIVES, key=len, reverse=True))})(?=_)")
    found = {kinds.sub("<kind>", name) for name in metrics_by_name(made.summary)}
    defined = dict(re.findall(r"^\| `([\w<>]+)` \| [^|]+ \| (.*) \|$", names(), re.M))
    assert len(found) > 20 and all(defined.values())
    assert {*found, *(metric.name for metric in metrics.METRICS)} <= {*defined}

"""Each Paraver view is well-formed and looks for event types that our traces, or nsys2prv's, really have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.export.prv_labels import TYPE_LABELS, EventType, ranges_label
from tests.export.both_writers import DATA, VERSIONS
from tests.export.paraver_cfg import View, filters, functions, read_prv, read_view

FOLDER = Path(__file__).parents[2] / "configs" / "paraver"
PAGE = FOLDER.parents[1] / "docs" / "timelines.md"
VIEWS = sorted(FOLDER.glob("*.cfg"))
# Names as Paraver's kernel spells them; a misspelt name makes it ignore the whole view.
KNOWN = {"Active Thd", "Adding", "Maximum", "Last Evt Val", "Send Messages in Transit", "All", "="}
KNOWN |= {"As Is", "Sign", "1-Sign", "Stacked Val", "Burst Time"}
EACH = pytest.mark.parametrize("path", VIEWS, ids=lambda path: path.stem)
NO_NUMBER = 9499  # of what has another number in each trace: only its label finds it
BY_LABEL = ("gpu_counters", "nccl_message_size")


def view_of(path: Path) -> View:
    return read_view(path.read_text(encoding="ascii"))


def known_types() -> dict[str, int]:
    """Of our traces and of nsys2prv's, whose counters are numbered by the GPU."""
    ours = {label: int(number) for number, label in TYPE_LABELS.items()} | {ranges_label(""): int(EventType.RANGES)}
    theirs = read_prv(DATA / VERSIONS[0] / "trace.prv").types
    return ours | {label: n for label, n in theirs.items() if not EventType.METRICS <= n < EventType.METRICS + 100}


def test_the_page_has_a_row_for_each_view_and_no_other() -> None:
    listed = re.findall(r"^\| `([\w]+)\.cfg` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == [path.stem for path in VIEWS]


def test_the_views_of_the_slide_are_there() -> None:
    slide = {"gpu_gaps", "gpu_active", "useful", "useful_time", "kernel_time_percent", "kernels_in_flight"}
    slide |= {"nccl_calls", "nccl_kernel_concurrency", "overlap", "threads_per_kernel", "gpu_counters"}
    assert slide <= {path.stem for path in VIEWS}


@EACH
def test_header_and_number_of_windows(path: Path) -> None:
    lines, windows = path.read_text(encoding="ascii").splitlines(), view_of(path).windows
    assert lines[:2] == ["#ParaverCFG", "ConfigFile.Version: 3.4"]
    assert lines[2] == f"ConfigFile.NumWindows: {len(windows)}"
    assert [window["window_id"] for window in windows] == [[str(index + 1)] for index in range(len(windows))]
    assert ["true"] in [window["window_open"] for window in windows]
    assert {name for window in windows for name in functions(window).values()} <= KNOWN


@EACH
def test_event_types_are_those_of_the_traces_by_number_and_by_label(path: Path) -> None:
    for window in view_of(path).windows:
        words = filters(window)
        if window["window_type"] == ["composed"]:
            assert words == {}
            continue
        numbers, labels = [int(number) for number in words["evt_type"]], words["evt_type_label"]
        if path.stem in BY_LABEL:
            assert set(numbers) == {NO_NUMBER}
            assert labels[0] in (f"{labels[1]} [Throughput %]", f"NCCL {labels[1]}")
        else:
            assert [known_types()[label] for label in labels] == numbers
        for text in window["window_filter_module"]:
            assert len(re.findall(r'"[^"]*"|\S+', text)) == 2 + int(text.split()[1])


@EACH
def test_a_table_has_the_unit_that_the_view_and_the_page_say(path: Path) -> None:
    text, table = path.read_text(encoding="ascii"), view_of(path).table
    page = re.search(rf"^\| `{path.stem}\.cfg` .*\| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert page and ("table" in page[1]) == bool(table) == ("The table: " in text.replace("\n", " "))
    if table:
        said = text.split("The table: ")[1].split("ConfigFile.EndDescription")[0]
        percent = "%" in table["Statistic"] or path.stem == "gpu_counters"
        assert ("percent" in said, "percent" in page[1]) == (percent, percent)

"""Each Paraver view is well-formed and looks for event types that our traces, and nsys2prv's, really have."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from harness.export.prv_labels import TYPE_LABELS, EventType, ranges_label

FOLDER = Path(__file__).parents[2] / "configs" / "paraver"
VIEWS = sorted(FOLDER.glob("*.cfg"))
# Names as Paraver's kernel spells them; a misspelt name makes it ignore the whole view.
LEVEL_FUNCTIONS = {"Adding", "Maximum", "Active Thd", "Last Evt Val", "All", "="}
COMPOSE_FUNCTIONS = {"As Is", "Sign", "1-Sign", "Stacked Val"}
OPERATIONS = {"add", "product", "substract", "divide", "maximum", "minimum", "different"}
DRAW_MODES = {"draw_maximum", "draw_randnotzero"}
LEVELS = {"thread", "task", "appl", "node", "cpu"}


def known_types() -> dict[str, int]:
    return {label: int(number) for number, label in TYPE_LABELS.items()} | {ranges_label(""): int(EventType.RANGES)}


def windows(text: str) -> list[dict[str, list[str]]]:
    """Tag to values, per window, in file order."""
    found: list[dict[str, list[str]]] = []
    for line in text.split("< NEW ANALYZER2D >", maxsplit=1)[0].splitlines():
        tag, _, value = line.partition(" ")
        if tag == "window_name":
            found.append({})
        if tag.startswith("window_"):
            found[-1].setdefault(tag, []).append(value)
    return found


def test_the_views_that_are_promised_are_there() -> None:
    promised = {"kernels", "useful", "nccl_by_kind", "overlap", "gpu_gaps", "bubble", "ranges"}
    assert promised <= {view.stem for view in VIEWS}
    readme = (FOLDER / "README.md").read_text()
    assert all(f"`{view.name}`" in readme for view in VIEWS)


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.stem)
def test_header_and_number_of_windows(view: Path) -> None:
    lines = view.read_text(encoding="ascii").splitlines()
    assert lines[:2] == ["#ParaverCFG", "ConfigFile.Version: 3.4"]
    found = windows("\n".join(lines))
    assert lines[2] == f"ConfigFile.NumWindows: {len(found)}"
    assert [window["window_id"] for window in found] == [[str(index + 1)] for index in range(len(found))]
    assert found[-1]["window_open"] == ["true"]


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.stem)
def test_event_types_are_those_we_write_by_number_and_by_label(view: Path) -> None:
    for window in windows(view.read_text()):
        if window["window_type"] == ["composed"]:
            continue
        numbers, labels = (shlex.split(value) for value in window["window_filter_module"])
        assert numbers[0] == "evt_type" and labels[0] == "evt_type_label"
        assert int(numbers[1]) == int(labels[1]) == len(numbers) - 2 == len(labels) - 2
        assert [known_types()[label] for label in labels[2:]] == [int(number) for number in numbers[2:]]


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.stem)
def test_functions_are_ones_that_paraver_knows(view: Path) -> None:
    for window in windows(view.read_text()):
        assert window["window_level"][0] in LEVELS
        assert {*window["window_drawmode"], *window["window_drawmode_rows"]} <= DRAW_MODES
        for tag, allowed in (("selected", LEVEL_FUNCTIONS), ("compose", COMPOSE_FUNCTIONS)):
            (value,) = window[f"window_{tag}_functions"]
            named = re.findall(r"\{(\w+), ([^}]+)\}", value)
            assert int(value.split()[1].rstrip(",")) == len(named)
            assert {function for _, function in named} <= allowed
        if window["window_type"] == ["composed"]:
            assert window["window_operation"][0] in OPERATIONS
            assert all(
                0 < int(number) < int(window["window_id"][0]) for number in window["window_identifiers"][0].split()
            )


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.stem)
def test_a_table_is_of_a_window_that_exists_and_counts_each_value(view: Path) -> None:
    text = view.read_text()
    tables = dict(re.findall(r"^Analyzer2D\.(\w+): (.*)$", text, re.MULTILINE))
    if not tables:
        assert "< NEW ANALYZER2D >" not in text
        return
    assert int(tables["ControlWindow"]) == int(tables["DataWindow"]) == len(windows(text))
    assert tables["Statistic"] == "% Time" and float(tables["Delta"]) == 1.0
    assert float(tables["Maximum"]) == float(windows(text)[-1]["window_maximum_y"][0])

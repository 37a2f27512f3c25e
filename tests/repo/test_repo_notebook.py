"""The Python API in a notebook: a Summary shows itself, and its tables and events become frames."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args

import html5lib
import pandas
import polars
import pytest
from msgspec.structs import fields

import harness
from harness.analysis.summary import Problem, Quality, RecordingVerdict, Summary, SummaryPart
from harness.common.errors import RequestError, WorkError
from tests.synthetic import kineto, nsys
from tests.synthetic.job import GEMM, HOSTILE, NCCL, STEPS, write_traces
from tests.waiting import limit_s

RANKS = 2
FRAMES: list[Callable[[Any], Any]] = [pandas.DataFrame, lambda rows: polars.DataFrame(rows, infer_schema_length=None)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("job") / "<b>traces"
    write_traces(place, RANKS)
    return place


# --- a Summary shows itself -------------------------------------------------------------------------------------------


def shown(summary: Summary) -> str:
    html = summary._repr_html_()
    assert html is not None
    html5lib.HTMLParser(strict=False).parseFragment(html)
    return html


def test_a_summary_shows_its_answer_briefly_and_untrusted_names_are_text(folder: Path) -> None:
    summary = harness.analyse(folder)
    hostile = Problem(severity=RecordingVerdict.DOUBTFUL, what=f"\x1b[31m{HOSTILE}", evidence="3 of 9")
    quality = Quality(verdict=RecordingVerdict.DOUBTFUL, problems=[hostile])
    many = [summary.devices[0].model_copy(update={"rank": rank}) for rank in range(1000)]
    html = shown(summary.model_copy(update={"quality": quality, "devices": many}))
    tree = html5lib.parseFragment(html)
    text = "".join(tree.itertext())
    assert "of 1.00 ms a step" in text and "These numbers are doubtful: " in text
    tags = {node.tag.rpartition("}")[2] for node in tree.iter() if isinstance(node.tag, str)}
    assert tags <= {"DOCUMENT_FRAGMENT", "div", "p", "pre"}
    assert "evil&lt;/script&gt;" in html and "\x1b" not in html
    assert html.count("<p>") < 15, "of a thousand ranks too"
    assert "Nothing that was recorded shows where the time of a step went" in shown(Summary())


# --- tables for data frames -------------------------------------------------------------------------------------------


def filled(annotation: Any, number: int) -> Any:  # noqa: PLR0911  # one for each kind of type
    """A value of a field's type with every part filled; None where `number` is 0 and the type allows it."""
    if hasattr(annotation, "__metadata__"):  # with limits
        return filled(annotation.__origin__, number)
    inner = get_args(annotation)
    if type(None) in inner:
        return None if number == 0 else filled(inner[-2], number)  # of an experiment, the mapping
    if isinstance(annotation, UnionType):  # of stragglers, the list
        return filled(inner[0], number)
    if isinstance(annotation, type) and issubclass(annotation, SummaryPart):
        return a_part(annotation, number)
    origin = getattr(annotation, "__origin__", None)
    if origin is Literal:
        return inner[number % len(inner)]
    if origin is list:
        return [filled(inner[0], n) for n in (0, 1, 2)] if number else []
    if origin is tuple:
        return tuple(filled(each, number) for each in inner)
    if origin is dict:
        return {filled(inner[0], n): filled(inner[1], n) for n in range(number)}
    known: dict[Any, Any] = {int: number, float: number / 2, str: f"text {number}", bool: bool(number), Any: number}
    members: Any = annotation if isinstance(annotation, type) and annotation not in known else (1,)
    return known.get(annotation, next(iter(members)))


def a_part(cls: type[SummaryPart], number: int) -> SummaryPart:
    return cls.model_validate({field.name: filled(field.type, number) for field in fields(cls)})


def lists_in(value: Any, place: str = "") -> Iterator[tuple[str, list[Any]]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from lists_in(inner, f"{place}.{key}")
    elif isinstance(value, list):
        yield place, value
        for inner in value:
            yield from lists_in(inner, place)


def test_pandas_and_polars_take_every_list_of_a_dump() -> None:
    whole = a_part(Summary, 3)
    assert Summary.model_validate(whole.model_dump()) == whole == Summary.model_validate_json(whole.model_dump_json())
    assert list(whole.model_dump()["collectives"][2]["last_arrivals"].items()) == [("0", 0), ("1", 1)]
    tables = list(lists_in(whole.model_dump()))
    assert {f".{field.name}" for field in fields(Summary) if "list" in str(field.type)} <= {p for p, _ in tables}
    for place, rows in tables:
        for frame in FRAMES:
            assert len(frame(rows)) == len(rows), place
            assert len(frame(rows[::-1])) == len(rows), place


# --- events for data frames -------------------------------------------------------------------------------------------

COLUMNS = {"start_ns", "duration_ns", "name", "kind", "rank", "device", "stream", "correlation", "range"}


@pytest.mark.parametrize("frame", FRAMES, ids=["pandas", "polars"])
def test_the_events_of_all_ranks_are_one_frame_as_the_traces_have_them(
    folder: Path, frame: Callable[[Any], Any]
) -> None:
    table = frame(harness.events(folder))
    assert set(table.columns) == COLUMNS
    rows = list(zip(*(table[column].to_list() for column in sorted(COLUMNS)), strict=True))
    assert len(rows) == RANKS * STEPS * 13  # a copy, ten products, a hostile kernel, an all-reduce
    named = [dict(zip(sorted(COLUMNS), row, strict=True)) for row in rows]
    assert {row["rank"] for row in named} == set(range(RANKS))
    assert {row["kind"] for row in named} == {"gemm", "communication", "copy H2D", "other"}
    gemms = [row for row in named if (row["rank"], row["name"]) == (0, GEMM)]
    assert Counter(row["range"] for row in gemms) == {"forward": 5 * STEPS, "backward": 5 * STEPS}
    assert {row["duration_ns"] for row in gemms} == {50_000}
    sent = next(row for row in named if (row["rank"], row["name"]) == (1, NCCL))
    assert (sent["start_ns"], sent["duration_ns"]) == (1_700_000_000_000_840_000, 60_000)
    assert (sent["stream"], sent["device"], sent["correlation"], sent["range"]) == (20, 1, 1_000_013, "backward")


def test_on_a_cpu_an_operator_that_another_interrupts_is_several_rows_of_one_correlation(tmp_path: Path) -> None:
    records = [
        kineto.said("forward", 500, 9_000),
        kineto.operator("aten::linear", 1_000, 6_000),
        kineto.operator("aten::mm", 2_000, 3_000),
        kineto.operator("aten::zero_", 9_600, 1_000),
    ]
    header = kineto.HEADER | {"deviceProperties": [], "baseTimeNanoseconds": 1_700_000_000_000_000_000}
    kineto.kineto(tmp_path / "rank3.json", records, header=header)
    rows = list(polars.DataFrame(harness.events(tmp_path)).sort("start_ns").iter_rows(named=True))
    assert [(r["name"], r["start_ns"] % 1_000_000, r["duration_ns"]) for r in rows] == [
        ("aten::linear", 1_000, 1_000),
        ("aten::mm", 2_000, 3_000),
        ("aten::linear", 5_000, 2_000),
        ("aten::zero_", 9_600, 1_000),
    ]
    assert rows[0]["correlation"] == rows[2]["correlation"] != rows[1]["correlation"]
    assert {r["rank"] for r in rows} == {3}
    assert [r["range"] for r in rows] == ["forward"] * 3 + [None], "the last is in no range"


def test_two_nodes_reports_of_a_run_are_one_frame_with_the_ranks_that_the_training_wrote_down(tmp_path: Path) -> None:
    """nsys makes one report per node; its processes may have no rank."""
    (tmp_path / "nsys").mkdir()
    (tmp_path / "metrics").mkdir()
    (tmp_path / "run.json").write_text("{}")
    for node in (0, 1):
        made = nsys.Nsys()
        for rank in (2 * node, 2 * node + 1):
            made.kernel("gemm", 1_000 + rank, 10, pid=100 + rank, device=rank % 2)
            start = {"event": "start", "rank": rank, "world_size": 4, "pid": 100 + rank}
            (tmp_path / "metrics" / f"rank{rank}.jsonl").write_text(json.dumps(start) + "\n")
        made.saved(tmp_path / "nsys" / f"profile_node{node}.sqlite")
    table = pandas.DataFrame(harness.events(tmp_path))
    origin = 1_700_000_000_000_000_000
    assert (table.start_ns - origin - 1_000 == table["rank"]).all()
    assert table[["rank", "device"]].to_numpy().tolist() == [[0, 0], [1, 1], [2, 0], [3, 1]]
    assert table["range"].isna().all()


def test_traces_of_two_jobs_are_refused(folder: Path, tmp_path: Path) -> None:
    other = write_traces(tmp_path / "again", 1)[0]
    other.rename(tmp_path / "a.json")
    (first, *_) = write_traces(tmp_path / "b", RANKS)
    with pytest.raises(RequestError, match=r"are both of rank 0: give the traces of one job"):
        harness.events(tmp_path)
    assert len(harness.events(first)["name"]) == STEPS * 13
    (tmp_path / "none").mkdir()
    with pytest.raises(WorkError, match="no trace was found"):
        harness.events(tmp_path / "none")


def test_importing_the_package_costs_nothing() -> None:
    code = "import harness, sys; print(sorted({'numpy', 'pydantic', 'typer'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
        timeout=limit_s(),
    )
    assert done.stdout.strip() == "[]"

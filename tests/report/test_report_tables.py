"""A table of the report is declared once: terminal and page show the same head and the same cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from harness.analysis.summary import (
    Collective,
    CollectiveFit,
    CollectivePhase,
    MessageSize,
    RangeTime,
    RankSteps,
    Steps,
    Summary,
    Traffic,
)
from harness.common.display.format import short
from harness.compare.summaries import compare
from harness.report.compare.tables import collective_table
from harness.report.elements import Page, PageTable
from harness.report.page.compose import compose
from harness.report.page.inputs import Inputs
from harness.report.page.steps import communication_section
from harness.report.tables.communication import COLLECTIVES, ISSUED, TRAFFIC
from harness.report.tables.ranges import RANGES
from harness.report.tables.terminal import render
from tests.report.conftest import Made
from tests.report.given_summary import of_devices, summary


def tables_of(page: Page) -> list[PageTable]:
    sections = (*page.before, *page.after)
    drawn = [f.table for section in sections for f in section.figures if f.table is not None]
    return [*drawn, *(table for section in sections for table in section.tables)]


def words(cells: Sequence[str]) -> list[str]:
    return " ".join(cells).split()


def test_a_table_that_both_show_has_one_head_and_one_set_of_rows(made: Made) -> None:
    lines = render(made.summary).splitlines()
    shared = [t for t in tables_of(compose(made.summary, Inputs())) if t.caption in lines]
    assert len(shared) >= 7
    for table in shared:
        head = words(table.head)
        at = lines.index(table.caption)
        assert set(lines[at + 1].split()) <= set(head), table.caption
        shown = lines[at + 2 : [*lines, ""].index("", at)]
        for cells, line in zip(table.rows, shown, strict=True):
            assert set(line.split()[-2:]) <= set(words(cells)), (table.caption, line)


def test_nothing_is_launched_on_a_cpu_so_no_idle_time_there_is_called_launch_bound() -> None:
    given = of_devices(summary(idle={"launch-bound": 40}), device_kind="cpu")
    page = compose(given, Inputs())
    cells = [cell for table in tables_of(page) for row in table.rows for cell in row]
    drawn = page.step.told if page.step else []
    for text in (render(given), " ".join([*cells, *page.said.first, *page.said.rest]), " ".join(drawn)):
        assert "between operators" in text and "launch-bound" not in text
    assert page.on_cpu


def exchanged(includes_waiting: bool) -> Summary:
    reduced = Collective(
        kind="all_reduce", count=120, ranks=2, min_rank_count=5, max_rank_count=120, bytes=1200,
        duration_ns=250, mean_ns=2,
    )  # fmt: skip
    size = MessageSize(kind="all_reduce", bytes=10, count=120, median_transfer_ns=2, includes_waiting=includes_waiting)
    fit = CollectiveFit(
        kind="all_reduce", points=3, alpha_ns=None, beta_ns_per_byte=None, r_squared=0.02,
        includes_waiting=includes_waiting,
    )  # fmt: skip
    return Summary(
        collectives=[reduced],
        collective_phases=[
            CollectivePhase(kind="all_reduce", phase="backward", count=125, bytes=2400, duration_ns=250)
        ],
        message_sizes=[size],
        collective_fits=[fit],
        steps=Steps(source="made", per_rank=[RankSteps(rank=r, durations_ns=[1] * 5) for r in (0, 1)]),
    )


def test_ranks_that_disagree_are_shown_and_every_table_of_collectives_is_of_one_rank() -> None:
    s = exchanged(includes_waiting=False)
    whole, issued = COLLECTIVES.on_page(s), ISSUED.on_page(s)
    assert "calls of one rank" in whole.caption
    shown = dict(zip(whole.head, whole.rows[0], strict=True))
    assert (shown["calls"], shown["bytes each"]) == ("5 to 120", "10 B")
    assert issued.caption.endswith("per rank and step")
    assert list(issued.rows[0]) == ["all_reduce", "backward", "12.5", "240 B", "25 ns"]


def test_calls_that_do_not_come_in_every_step_are_counted_in_steps() -> None:
    rare = exchanged(False).model_copy(
        update={
            "collective_phases": [
                CollectivePhase(kind="all_reduce", phase="backward", count=2, bytes=2400, duration_ns=320)
            ],
            "steps": Steps(source="made", per_rank=[RankSteps(rank=r, durations_ns=[1] * 16) for r in (0, 1)]),
        }
    )
    assert ISSUED.on_page(rare).rows[0][2] == "1 in 16 steps"
    often = exchanged(False)
    (row,) = collective_table([compare(often, rare, ("a", "b"))]).rows
    assert row[1:3] == ("12.5", "1 in 16 steps")


@pytest.mark.parametrize(("waits", "word"), [(True, "time, waiting included"), (False, "transfer")])
def test_a_time_with_waiting_inside_is_not_called_transfer(waits: bool, word: str) -> None:
    page = compose(exchanged(waits), Inputs())
    (section,) = [x for x in page.after if x.id == "collectives"]
    (sizes,) = [t for t in section.tables if t.caption == "Message sizes"]
    (fits,) = [t for t in section.tables if t.caption.startswith("This run's own")]
    every = communication_section(exchanged(waits), Inputs()).figures  # one size is no plot of the page
    times = next(f for f in every if f.id == "transfer-times")
    assert sizes.rows[0][-1] == fits.rows[0][-1] == word
    assert word in times.layout["yaxis"]["title"]["text"]
    assert "0.020" in fits.rows[0] and "–" not in fits.rows[0]


def test_columns_without_a_value_and_rows_of_no_share_are_left_out() -> None:
    table = PageTable(
        "c", ["kind", "where", "share", "exposed"], [["gemm", "–", "99.9 %", "–"], ["copy", "", "0.0 %", "1"]], 2
    )
    assert table.shown() == PageTable("c", ["kind", "share"], [["gemm", "99.9 %"]], 1)
    assert PageTable("c", ["kind", "share"], [["gemm", "0.0 %"]]).shown().rows == [["gemm", "0.0 %"]], (
        "or there is no table"
    )


def fsdp_ranges(names: Sequence[str]) -> Summary:
    """Ranges as FSDP names them."""
    row = RangeTime(name="", instances=2, host_ns=4, kernels=1, kernel_ns=1)
    return Summary(ranges=[row.model_copy(update={"name": name}) for name in names])


@pytest.mark.parametrize("width", [80, 118])
def test_ranges_that_differ_look_different_on_the_page_and_in_a_terminal_that_cuts_them(width: int) -> None:
    names = [f"FSDP::{hook}_forward (_fsdp.model.layers.{n}._checkpoint_wrapped_module)"
             for hook in ("pre", "post") for n in (9, 10, 11)]  # fmt: skip
    given = fsdp_ranges(names)
    shown = replace(RANGES.columns[0], page=44).cells(RANGES.rows(given), on_page=True)
    assert len(set(shown)) == len(names) and all(len(name) <= 44 for name in shown)
    printed = [line for line in render(given, width).splitlines() if "FSDP" in line]
    assert all(f".{n}." in line and len(line) <= width for n, line in zip((9, 10, 11) * 2, printed, strict=True))


def test_kernels_that_differ_far_inside_their_names_are_shown_as_texts_that_differ() -> None:
    tiles = [f"void xmma::stage_{s}<xmma::Kernel_traits<(int){t}, (int)64>, xmma::Gmem_tile<(int){t}, (int)16>>(Params)"
             for s in (0, 1) for t in (64, 128, 256)]  # fmt: skip
    shown = short(tiles, 56)
    assert len(set(shown)) == len(tiles)
    assert max(map(len, shown)) <= 56
    assert short(["void gemm(A*)", "void gemm(B*)"], 20) == ["gemm", "gemm"], "arguments are left out as before"


def test_messages_are_listed_by_their_time() -> None:
    times = (3, 9, 5)
    traffic = [
        Traffic(
            rank=0, kind="all_reduce", phase="backward", bytes=1, count_per_step=1, pass_count_per_step=1,
            used_pass_count_per_step=1, step_duration_ns=ns, step_exposed_ns=0,
        )
        for ns in times
    ]  # fmt: skip
    assert [row.step_duration_ns for row in TRAFFIC.rows(Summary(traffic=traffic))] == sorted(times, reverse=True)

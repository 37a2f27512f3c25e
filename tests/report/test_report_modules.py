"""The table of modules: from the ranges of `--module-ranges`, layers of one kind in one row."""

from __future__ import annotations

from harness.analysis.job.summarise import summarise_job
from harness.analysis.process.kinds import load_rules
from harness.analysis.summary import Summary, Window
from harness.common.run_folder.module_ranges import module_of
from harness.report.tables.ranges import MODULES, RANGES
from tests.analysis.measuring import measure_trace
from tests.synthetic.columns import GEMM, Made

RULES = load_rules()


def summary_of(made: Made) -> Summary:
    return summarise_job(measure_trace(made.trace(), Window.STEPS, RULES))


def a_model(layers: int = 3, steps: int = 2) -> Made:
    """Each layer: 10 of forward, 20 of backward with an all-reduce of 500 bytes, and 5 of it recomputed."""
    made = Made()
    for step in range(steps):
        at = 10_000 * step
        made.step(at, at + 10_000, step).range(at, at + 3000, "forward").range(at + 3000, at + 9000, "backward")
        made.range(at, at + 2900, "Net").range(at + 3100, at + 8900, "Net (backward)")
        for i in range(layers):
            begin, back = at + 100 + 300 * i, at + 3200 + 600 * i
            made.range(begin, begin + 200, f"net.layers.{i}").event(begin + 50, begin + 60, GEMM, launch_ns=begin + 10)
            made.range(back, back + 400, f"net.layers.{i} (backward)")
            made.range(back + 10, back + 40, f"net.layers.{i} (recomputed)")
            made.event(back + 20, back + 25, GEMM, launch_ns=back + 20)
            made.event(back + 50, back + 65, GEMM, launch_ns=back + 50).collective(back + 100, back + 150, size=500)
    return made


def test_layers_of_one_kind_are_one_row_per_rank_and_step() -> None:
    s = summary_of(a_model())
    shown = MODULES.on_page(s)
    assert [tuple(row[:2]) for row in shown.rows] == [("Net", "–"), ("net.layers.*", "3")]
    net, layer = (dict(zip(shown.head, row, strict=True)) for row in shown.rows)
    assert (layer["forward"], layer["recomputed"]) == ("30 ns", "15 ns")
    assert layer["messages"] == net["messages"] == "3"
    assert layer["bytes"] == "1.50 kB"
    assert net["share"] == "37.5 %", "90 of 240: this trace does not say who launched its collectives"
    assert [row[0] for row in RANGES.on_page(s).rows] == ["ProfilerStep#", "backward", "forward"]
    assert {r.name for r in s.ranges} >= {"net.layers.0", "net.layers.2 (recomputed)"}, "the file has each of them"
    assert len(MODULES.on_page(summary_of(a_model(layers=9))).rows) == 2


def test_without_a_gpu_and_operators_the_time_is_that_of_the_host() -> None:
    made = Made()
    made.events.clear()
    for step in range(2):
        made.step(1000 * step, 1000 * step + 1000, step).range(1000 * step, 1000 * step + 300, "Net")
        made.range(1000 * step + 400, 1000 * step + 900, "Net (backward)")
    shown = MODULES.on_page(summary_of(made))
    (row,) = [dict(zip(shown.head, row, strict=True)) for row in shown.rows]
    assert shown.caption.startswith("Modules: time on the host")
    assert (row["forward"], row["backward"]) == ("300 ns", "500 ns") and not {"share", "on the host"} & {*row}


def test_a_module_is_known_by_its_two_passes_or_by_the_module_around_it() -> None:
    names = {"model", "model (backward)", "model.rotary", "forward", "a.b", "a.b.c"}
    assert {name for name in names if module_of(name, names)} == {"model", "model (backward)", "model.rotary"}

"""The page's section about kernels: kinds with their precision, the longest kernels, work that hides communication."""

from __future__ import annotations

from harness.analysis.summary import Summary
from harness.format.format import duration, of, percent
from harness.format.labels import work_word
from harness.report.elements import Figure, Section, Table, table
from harness.report.page.inputs import Inputs
from harness.report.palette import of_kind
from harness.report.plots import plotly_json
from harness.report.tables.catalogue import page_tables
from harness.report.tables.time import kind_label


def work_section(s: Summary, inputs: Inputs) -> Section:
    """The work that fills the devices' time; empty without any."""
    if not s.kinds:
        return Section("kernels", "Kernels by kind")
    lead = (
        f"Sum of the times of all {work_word(s.devices)} on all devices. If two run at the same time, both count. "
        f"{_products(s)}"
    )
    tables = [*page_tables(s, "phases"), *_overlap(inputs), *page_tables(s, "kernels")]
    return Section("kernels", "Kernels by kind", lead.strip(), [_kinds(s)], tables)


def _kinds(s: Summary) -> Figure:
    kinds = [k for k in s.kinds if k.share >= 0.0005]
    data = [
        plotly_json.bars(
            "time",
            [k.duration_ns / 1e6 for k in kinds],
            [kind_label(k) for k in kinds],
            "",
            marker={"color": [of_kind(k.kind) for k in kinds]},
            text=[percent(k.share) for k in kinds],
            textposition="outside",
            cliponaxis=False,
        )
    ]
    axes = plotly_json.layout("time on all devices (ms)", plotly_json.NAMES, showlegend=False)
    words = f"Time by kind of work: {', '.join(f'{kind_label(k)} {percent(k.share)}' for k in kinds[:5])}."
    return Figure("kinds", words, data, axes, plotly_json.bars_height(len(kinds)))


def _products(s: Summary) -> str:
    """The share of matrix products, and of them the share by precision."""
    total = sum(k.duration_ns for k in s.kinds if k.kind != "communication")
    products = [k for k in s.kinds if k.kind == "gemm"]
    if not products or not total:
        return ""
    whole = sum(k.duration_ns for k in products)
    unknown = "a precision that was not recorded"
    by = ", ".join(f"{of(k.duration_ns, whole)} in {k.precision or unknown}" for k in products)
    alone = f"all in {products[0].precision or unknown}" if len(products) == 1 else by
    return f"Matrix products (GEMM) take {of(whole, total)} of the time without communication, {alone}."


def _overlap(inputs: Inputs) -> list[Table]:
    rows = [[kind, duration(whole), duration(part), of(part, whole)] for kind, whole, part in inputs.hidden]
    head = ("kind", "time", "during communication", "share")
    return table("Work that runs at the same time as communication, and hides it", head, rows)

"""docs/communication.md: its methods, what they send, and its multiples of α/β."""

from __future__ import annotations

from math import ceil, log2
from pathlib import Path

import pytest
from method_table import RANKS, methods

from harness.common.model.alpha_beta import bus_factor

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/communication.md").read_text(encoding="utf-8")


def test_the_table_has_a_section_for_each_of_its_methods() -> None:
    titles = "".join(line for line in PAGE.splitlines() if line.startswith("### "))
    assert [row.name for row in methods() if row.name not in titles] == []


def test_what_the_page_says_of_the_links_load() -> None:
    load = {row.name: sum(t.message_bytes * bus_factor(t.kind, RANKS) for t in row.sent) for row in methods()}
    assert load["ZeRO-1"] == load["ZeRO-2"] == pytest.approx(load["ZeRO-3"])
    assert 1.5 * load["DDP"] == pytest.approx(2 * load["ZeRO-2"]), "DDP reduces float32, and DeepSpeed bf16"


def test_the_multiples_of_alpha_over_beta() -> None:
    # Of a ring α = 2(P−1)·α', and β = 2(P−1)/P·β' of one link, so α'/β' = α/β / P.
    border = {ranks: ranks - 1 - ceil(log2(ranks)) for ranks in (2, 3, 4, 8, 16, 32, 64)}
    assert border[2] == border[3] == 0
    said = " | ".join(f"{size:.0f} · α/β" for ranks, size in border.items() if ranks > 3)
    assert f"| never | {said} |" in PAGE

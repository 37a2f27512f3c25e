"""The efficiencies of one job in terminal and page: all factors, and why one is not known."""

from __future__ import annotations

from harness.analysis.job.pop import with_ideal_network
from harness.analysis.summary import PopEfficiency, Summary, Withheld
from harness.analysis.summary.replay import NO_REPLAY
from harness.report.page.compose import compose
from harness.report.page.inputs import Inputs
from harness.report.tables.efficiency import EFFICIENCY
from harness.report.tables.terminal import render
from tests.report.conftest import Made


def known(s: Summary) -> PopEfficiency:
    assert s.pop is not None
    return s.pop


def without_replay(s: Summary) -> Summary:
    """As where no rank's events could be replayed."""
    nothing = {"ideal_elapsed_ns": None, "transfer": None, "serialisation": None, "split_unknown": NO_REPLAY}
    return s.model_copy(update={"pop": known(s).model_copy(update=nothing)})


def replayed(s: Summary) -> Summary:
    """With an ideal network half of the loss to communication is gone."""
    p = known(s)
    ideal_ns = round(p.elapsed_ns * (1 + p.communication) / 2)
    return s.model_copy(update={"pop": with_ideal_network(p, ideal_ns)})


def cells(s: Summary) -> dict[str, list[str]]:
    return {row[0]: list(row[1:]) for row in EFFICIENCY.on_page(s).rows}


def test_terminal_and_page_name_every_factor_and_why_one_is_not_known(made: Made) -> None:
    s = without_replay(made.summary)
    (section,) = [x for x in compose(s, Inputs()).before if x.id == "efficiency"]
    (table,) = section.tables
    whole = render(s)
    for row in table.rows:
        assert any(line.split() == " ".join(row).split() for line in whole.splitlines()), row
    assert cells(s)["· · transfer"] == ["not known", NO_REPLAY]
    shown = cells(replayed(made.summary))
    assert all(value.endswith(" %") for value, _ in shown.values()) and len(shown) == 6
    assert NO_REPLAY not in render(replayed(made.summary))
    assert "Only compute is useful" in section.lead and "operators stand in" not in section.lead
    assert "operators stand in" not in whole


def test_where_it_is_withheld_no_table_is_shown_and_the_reason_is(made: Made) -> None:
    quality = made.summary.quality.model_copy(update={"withheld": [Withheld(field="pop", reason="2 of 4 were read")]})
    s = made.summary.model_copy(update={"pop": None, "quality": quality})
    assert "not given: efficiency as POP defines it: 2 of 4 were read" in render(s)
    assert "parallel efficiency" not in render(s)
    assert "efficiency" not in [x.id for x in compose(s, Inputs()).before]

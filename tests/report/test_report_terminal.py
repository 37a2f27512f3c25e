"""The report in a terminal: its first screen is the answer, the split, the doubt; nothing is wider than the screen."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest

from harness.analysis.summary import Device, Summary, Withheld
from harness.cli.main import main
from harness.report.elements import Table
from harness.report.tables.table import NAME, facts, fitted, table
from harness.report.tables.terminal import render, render_short
from tests.report.conftest import Made
from tests.synthetic.job import write_traces

WIDE = "x" * 60


@pytest.mark.parametrize("width", [60, 80, 100, 118, 200])
def test_no_line_is_wider_than_the_terminal(made: Made, width: int) -> None:
    for text in (render(made.summary, width), render_short(made.summary, width)):
        assert max(map(len, text.splitlines())) <= width


def test_the_first_screen_is_the_answer_the_split_and_the_doubt(made: Made) -> None:
    doubtful = deepcopy(made.summary)
    doubtful.quality.withheld.append(Withheld(field="idle_ns", reason="steps are missing"))
    lines = render_short(doubtful, 80).splitlines()
    found = [
        next(i for i, line in enumerate(lines) if line.startswith(head))
        for head in ("A step takes", "Where the time went", "Recording: ", "More: ")
    ]
    assert found == sorted(found) and len(lines) <= 30
    assert any("not given: idle time: steps are missing" in line for line in lines)
    assert not any(line.startswith(("Kinds of work", "Collectives in", "The program's")) for line in lines)


def test_what_the_first_screen_leaves_out_is_named_and_is_in_the_whole(made: Made) -> None:
    short, whole = " ".join(render_short(made.summary).split()), render(made.summary)
    assert (
        "efficiency, kinds of work, " in short.rpartition("More: --full shows ")[2]
        and "the page shows all of it" in short
    )
    for name, caption in (("kernels", "kernels that take most"), ("collectives", "Collectives in the window")):
        assert name in short and caption not in short and caption in whole
    assert "the monitor" not in short  # this run has no monitor
    nothing = render_short(Summary())
    assert "More:" not in nothing


def test_a_column_that_did_not_fit_is_not_lost_in_silence(made: Made) -> None:
    said = "Some columns do not fit into 80 characters"
    assert said in render(made.summary, 80)
    assert "Some columns do not fit" not in render(made.summary, 400)


def test_of_many_ranks_the_first_screen_shows_the_busiest_and_the_idlest() -> None:
    devices = [
        Device(
            window_ns=1000, compute_ns=1000 - n, communication_ns=0, exposed_communication_ns=0, memory_ns=0,
            exposed_memory_ns=0, overlapped_communication_ns=0, idle_ns=n, rank=n, device=0, source="x",
            gpu_events=1, kernels=1, idle_causes=[], longest_gaps=[],
        )
        for n in range(40)
    ]  # fmt: skip
    text = render_short(Summary(devices=devices), 80)
    ranks = [int(line.split()[1]) for line in text.splitlines() if line.startswith("  rank ")]
    assert ranks == [0, 1, 2, 37, 38, 39]
    assert "the 3 busiest and the 3 idlest of 40 are shown" in text


def test_report_prints_the_short_form_as_wide_as_the_terminal_and_full_prints_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_traces(tmp_path)
    monkeypatch.setenv("COLUMNS", "72")
    assert main(["report", "--no-html", str(tmp_path)]) == 0
    short = capsys.readouterr().out
    assert main(["report", "--no-html", "--full", str(tmp_path)]) == 0
    whole = capsys.readouterr().out
    assert max(map(len, (short + whole).splitlines())) <= 72
    assert "Kinds of work" not in short and "Kinds of work" in whole
    assert "More: --full" in short and "More: --full" not in whole
    assert "docs/words.md explains the words." in short


@pytest.mark.parametrize("page", [True, False])
def test_the_page_is_pointed_to_only_where_one_was_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], page: bool
) -> None:
    write_traces(tmp_path)
    flags = ["--html", str(tmp_path / "page.html")] if page else []
    assert main(["report", *flags, str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert ("the page shows all of it" in said) == page == (tmp_path / "page.html").is_file()
    assert ("--html FILE writes a page with all of it" in said) != page


def test_empty_columns_go_before_spare_ones_and_those_before_the_right_end_and_names_are_cut_last() -> None:
    shown = Table("c", ["name", "a", "empty", "spare", "last"], [[WIDE, "1", "–", "2", "3"]])
    natural = len(table(shown.head, shown.rows)[1])
    assert fitted(shown, natural) == Table("c", list(shown.head), [list(shown.rows[0])], 1)
    least = natural - len(WIDE) + NAME
    cut = fitted(shown, least, ["spare"])
    assert list(cut.head) == list(shown.head) and len(cut.rows[0][0]) == NAME and "…" in cut.rows[0][0]
    assert list(fitted(shown, least - 1, ["spare"]).head) == ["name", "a", "spare", "last"]
    assert list(fitted(shown, least - 8, ["spare"]).head) == ["name", "a", "last"]
    assert list(fitted(shown, 10, ["spare"]).head) == ["name", "a"]


def test_names_get_the_room_that_the_numbers_leave() -> None:
    wide = fitted(Table("c", ["name", "a"], [[WIDE, "1"]]), 50)
    assert len(table(wide.head, wide.rows)[1]) == 50


def test_a_command_to_paste_is_never_cut() -> None:
    site = "/a/long/path/" * 8 + "my-site.yaml"
    run = {
        "job_id": "local-1",
        "command": ["slurm.sh", "-e", "1", "--slow-dataloading", "--site", site],
        "site": {"name": "mine", "defaults": {}},
    }
    device = Device(
        window_ns=1000, compute_ns=500, communication_ns=0, exposed_communication_ns=0, memory_ns=0,
        exposed_memory_ns=0, overlapped_communication_ns=0, idle_ns=500, rank=0, device=0, source="x",
        gpu_events=1, kernels=1, idle_causes=[], longest_gaps=[],
    )  # fmt: skip
    causes = [{"cause": "data loading", "duration_ns": 500, "share": 1.0}]
    asked = {"exercise": 1, "slow_dataloading": True}
    summary = Summary.model_validate({"devices": [device], "idle_causes": causes, "experiment": asked, "run": run})
    assert any(site in line for line in render_short(summary, 80).splitlines())


def test_facts_are_wrapped_below_themselves_and_nothing_of_them_is_cut() -> None:
    said = "a sentence of some length that does not fit beside its name on a narrow terminal"
    lines = facts([["a name", said], ["", ""]], 40)
    assert max(map(len, lines)) <= 40
    assert " ".join(" ".join(lines[:-1]).split()) == f"a name {said}"
    assert lines[-1].strip() == "–"

"""The report in a terminal: its first screen is the answer, with a step to scale; nothing is wider than the screen."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from harness.analysis.summary import (
    CodeLocation,
    Device,
    LineShare,
    Problem,
    Quality,
    RecordingVerdict,
    Remainder,
    Replay,
    Summary,
    TimeLost,
    WhatIf,
)
from harness.cli.main import main
from harness.report.elements import PageTable
from harness.report.first_screen import first_screen
from harness.report.tables.table import NAME, facts, fitted, table
from harness.report.tables.terminal import render
from tests.report.conftest import Made
from tests.report.given_summary import MS, run
from tests.report.given_summary import summary as given_summary
from tests.synthetic.job import write_traces

WIDE = "x" * 60
BUSY = given_summary(
    world_size=2,
    ranks=[0, 1],
    backend="gloo",
    quality=Quality(
        verdict=RecordingVerdict.DOUBTFUL,
        problems=[Problem.doubt("others used the cores while this was measured", "…")],
    ),
    findings=[
        TimeLost(
            cause="data-stall", ranks=[0, 1], lost_ns=61 * MS, low_ns=52 * MS, high_ns=72 * MS, share=61 / 141,
            standing=True, evidence="…",
            lines=[LineShare(where=CodeLocation(file="train.py", line=42, function="train"), share=0.31)],
        ),
        TimeLost(
            cause="noisy-neighbour", ranks=[0, 1], lost_ns=50 * MS, low_ns=4 * MS, high_ns=60 * MS, share=50 / 141,
            evidence="…",
        ),
    ],
    replay=Replay(
        steps=19, processes=2, step_ns=141 * MS, replayed_ns=141 * MS, error=0.0, unexplained_ns=80 * MS,
        remainder=Remainder(
            work_ns=44 * MS, communication_ns=19 * MS, copies_ns=0, known_idle_ns=10 * MS, unknown_idle_ns=7 * MS
        ),
        what_ifs=[
            WhatIf(
                name="no-data-stall", meaning="…", step_ns=82 * MS, low_ns=64 * MS, high_ns=99 * MS, gain=0.42
            )
        ],
    ),
    **(run(1, slow_dataloading=True) | {"run": {"command": ["slurm.sh", "-e", "1"], "job_id": "local-1"}}),
)  # fmt: skip


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(made: Made, width: int) -> None:
    for text in (render(made.summary, max(width, 60)), first_screen(made.summary, width).plain):
        assert max(map(len, text.splitlines())) <= max(width, 60)


def told_of(s: Summary, width: int = 80) -> list[str]:
    return first_screen(s, width, more="bash slurm.sh report local-1 --full", page=Path("/p/report.html")).plain.split(
        "\n"
    )


def test_the_first_screen_says_what_to_believe_what_is_lost_and_what_to_type_in_twelve_lines() -> None:
    """The five questions: what is slow, what to type, is it good enough to show, how much is there to gain and where,
    may I believe it."""
    lines = told_of(BUSY)
    assert [line.rstrip() for line in lines] == [
        "local-1   -e 1 --slow-dataloading · 2 ranks · gloo",
        "These numbers are doubtful: others used the cores while this was measured. It is",
        "  certain that both ranks lose at least 52.0 ms per step on average.",
        "",
        "Waiting for data costs 61 of 141 ms a step (43 %; 52 to 72 ms), on both ranks.",
        "  where:   31 % at train.py:42 in train",
        "  a step   ████████ compute 44 │ ▓▓▓▓ exposed communication 19",
        "           ░░░░░░░░░░░ data 61 │ ··· other 17 ms",
        "  try:     bash slurm.sh -e 1   predicted 82 ms (64 to 99 ms)",
        "  also:    cores used by others 50 ms",
        "  page:    /p/report.html",
        "  more:    bash slurm.sh report local-1 --full",
        "",
    ]


@pytest.mark.parametrize("width", [40, 80, 118])
def test_the_parts_of_a_step_add_up_to_it_on_every_screen(width: int) -> None:
    drawn = " ".join(told_of(BUSY, width))
    numbers = [int(n) for n in re.findall(r"(?:compute|exposed communication|data|other) (\d+)", drawn)]
    assert sum(numbers) == 141 and len(numbers) == 4
    assert max(map(len, told_of(BUSY, width)[:-3])) <= width


def test_a_loss_has_one_number_in_the_sentence_and_in_the_bar() -> None:
    (found, *others), replay = BUSY.findings, BUSY.replay
    assert replay is not None and replay.remainder is not None
    rest = replay.remainder.model_copy(update={"work_ns": 43_600_000, "communication_ns": 18_600_000})
    odd = found.model_copy(update={"lost_ns": 61_500_001})
    changed = replay.model_copy(update={"unexplained_ns": 79_499_999, "remainder": rest})
    lines = told_of(BUSY.model_copy(update={"findings": [odd, *others], "replay": changed}))
    assert any("costs 62 of 141 ms" in line for line in lines) and any("░ data 62 │" in line for line in lines)


def test_a_bar_that_fits_is_one_line_in_its_colours() -> None:
    for width in range(92, 119):
        (bar,) = [line for line in first_screen(BUSY, width).split("\n") if "compute" in line.plain]
        assert bar.plain.endswith("other 17 ms") and len(bar) <= width
        assert not bar.style, "its labels are as bright as other text"


@pytest.mark.parametrize("width", [80, 100, 118])
def test_a_screen_with_too_many_lines_leaves_out_blank_ones_first_and_the_loss_never(width: int) -> None:
    """What is left out is in the whole report."""
    (found, *others), (line,) = BUSY.findings, BUSY.findings[0].lines
    long = line.model_copy(update={"where": line.where.model_copy(update={"function": "named_at_length_" * 4})})
    full = BUSY.model_copy(update={"findings": [found.model_copy(update={"lines": [long] * 3}), *others]})
    lines = told_of(full, width)[:-1]
    assert len(lines) <= 12 and "" not in lines
    text = "\n".join(lines)
    assert all(word in text for word in ("costs 61", "where:", "try:", "page:", "more:"))


def test_what_a_bar_is_of_is_apart_from_it_and_a_window_is_no_period() -> None:
    assert BUSY.replay is not None
    steps = BUSY.steps.model_copy(update={"duration": None})
    (bar,) = [line for line in told_of(BUSY.model_copy(update={"steps": steps}), 118) if "compute" in line]
    assert bar.startswith("  window   █")


def test_a_number_and_its_unit_stay_in_one_line() -> None:
    for width in range(60, 119):
        text = "\n".join(told_of(BUSY, width))
        assert not re.search(r"\d\n *(%|ms|s)\b", text)


def test_a_line_with_little_of_the_loss_is_not_on_the_first_screen() -> None:
    (found, *others), (line,) = BUSY.findings, BUSY.findings[0].lines
    little = found.model_copy(update={"lines": [line.model_copy(update={"share": 0.24})]})
    assert not any("train.py" in row for row in told_of(BUSY.model_copy(update={"findings": [little, *others]})))


def test_colours_and_links_are_for_a_terminal_that_has_them() -> None:
    """As rich decides: none in a pipe or with TERM=dumb, no colour with NO_COLOR."""
    screen = first_screen(BUSY, page=Path("/p/report.html"))
    terminal: dict[str, Any] = {"force_terminal": True, "color_system": "truecolor"}
    coloured, plain = printed(screen, **terminal, no_color=False), printed(screen, **terminal, no_color=True)
    assert "\x1b]8;" in coloured and "file:///p/report.html" in coloured
    assert "38;2;" in coloured and "38;2;" not in plain
    assert printed(screen, force_terminal=False) == screen.plain


def printed(screen: Text, **given: Any) -> str:
    console = Console(file=io.StringIO(), width=300, soft_wrap=True, highlight=False, **given)
    with console.capture() as captured:
        console.print(screen, end="")
    return captured.get()


def test_two_recordings_are_told_with_the_line_that_compares_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        write_traces(tmp_path / name)
    assert main(["report", "--no-html", str(tmp_path / "a" / "rank0.json"), str(tmp_path / "b" / "rank0.json")]) == 0
    files = f"{tmp_path / 'a' / 'rank0.json'} {tmp_path / 'b' / 'rank0.json'}"
    assert f"\nHow the two differ: bash slurm.sh compare {files}\n" in capsys.readouterr().out


def test_nothing_recorded_is_one_sentence() -> None:
    lines = first_screen(Summary()).plain.splitlines()
    assert lines[-1] == "The recording does not show where the time went."


def test_a_column_that_did_not_fit_is_not_lost_in_silence(made: Made) -> None:
    said = "Some columns do not fit into 80 characters"
    assert said in render(made.summary, 80)
    assert "Some columns do not fit" not in render(made.summary, 400)


def test_of_many_ranks_the_whole_report_shows_the_busiest_and_the_idlest() -> None:
    devices = [
        Device(
            window_ns=1000, compute_ns=1000 - n, communication_ns=0, exposed_communication_ns=0, memory_ns=0,
            exposed_memory_ns=0, overlapped_communication_ns=0, idle_ns=n, rank=n, device=0, source="x",
            gpu_events=1, kernels=1, idle_causes=[], longest_gaps=[],
        )
        for n in range(40)
    ]  # fmt: skip
    text = render(Summary(devices=devices), 80)
    ranks = [int(line.split()[1]) for line in text.splitlines() if line.startswith("  rank ")]
    assert ranks[:10] == [0, 1, 2, 3, 4, 35, 36, 37, 38, 39]
    assert "the 5 busiest and the 5 idlest of 40 are shown" in text


def test_report_prints_the_short_form_as_wide_as_the_terminal_and_full_prints_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_traces(tmp_path)
    monkeypatch.setenv("COLUMNS", "72")
    assert main(["report", "--no-html", str(tmp_path)]) == 0
    short = capsys.readouterr().out
    assert main(["report", "--no-html", "--full", str(tmp_path)]) == 0
    whole = capsys.readouterr().out
    assert max(len(line) for line in (short + whole).splitlines() if str(tmp_path) not in line) <= 72
    assert "Kinds of work" not in short and "Kinds of work" in whole
    assert f"more:    bash slurm.sh report --no-html {tmp_path} --full".replace(" --no-html", "") in short
    assert "  more:" not in whole


@pytest.mark.parametrize("page", [True, False])
def test_the_page_is_pointed_to_only_where_one_was_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], page: bool
) -> None:
    write_traces(tmp_path)
    flags = ["--html", str(tmp_path / "page.html")] if page else []
    assert main(["report", *flags, str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert (f"\n  page:    {tmp_path / 'page.html'}\n" in said) == page == (tmp_path / "page.html").is_file()


def test_spare_columns_go_before_the_right_end_and_names_are_cut_last() -> None:
    shown = PageTable("c", ["name", "a", "spare", "last"], [[WIDE, "1", "2", "3"]])
    natural = len(table(shown.head, shown.rows)[1])
    assert fitted(shown, natural) == PageTable("c", list(shown.head), [list(shown.rows[0])], 1)
    least = natural - len(WIDE) + NAME
    cut = fitted(shown, least, ["spare"])
    assert list(cut.head) == list(shown.head) and len(cut.rows[0][0]) == NAME and "…" in cut.rows[0][0]
    assert list(fitted(shown, least - 1, ["spare"]).head) == ["name", "a", "last"]
    assert list(fitted(shown, 10, ["spare"]).head) == ["name", "a"]


def test_names_get_the_room_that_the_numbers_leave() -> None:
    wide = fitted(PageTable("c", ["name", "a"], [[WIDE, "1"]]), 50)
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
    assert any(site in line for line in first_screen(summary, 80).plain.splitlines())


def test_facts_are_wrapped_below_themselves_and_nothing_of_them_is_cut() -> None:
    said = "a sentence of some length that does not fit beside its name on a narrow terminal"
    lines = facts([["a name", said], ["", ""]], 40)
    assert max(map(len, lines)) <= 40
    assert " ".join(" ".join(lines[:-1]).split()) == f"a name {said}"
    assert lines[-1].strip() == "–"

"""The report in a terminal: its first screen is the answer, with a step to scale; nothing is wider than the screen."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.summary import (
    CodeLocation,
    JobTime,
    JobTimePart,
    LineShare,
    Problem,
    Quality,
    RecordingVerdict,
    Replay,
    Summary,
    TimeLost,
    WhatIf,
)
from harness.cli.main import main
from harness.replay.attribute.causes import CAUSES
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
    31, 14, 0, {"data loading": 44, "other": 11},
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
        "  a step   ████████ compute 44 │ ▓▓▓▓ exposed communication 20",
        "           ░░░░░░░░░░░ idle: data loading 62, 61 avoidable │ ··· other 15 ms",
        "  try:     bash slurm.sh -e 1   predicted 82 ms (64 to 99 ms)",
        "  also:    cores used by others 50 ms · all together 61 of 141 ms",
        "  page:    /p/report.html",
        "  more:    bash slurm.sh report local-1 --full",
        "",
    ]


def test_on_every_screen_the_parts_add_up_a_number_keeps_its_unit_and_a_bar_that_fits_is_one_line() -> None:
    for width in range(60, 119):
        lines = told_of(BUSY, width)
        numbers = [
            int(n) for n in re.findall(r"(?:compute|exposed communication|data loading|other) (\d+)", " ".join(lines))
        ]
        assert sum(numbers) == 141 and len(numbers) == 4
        assert max(map(len, lines[:-3])) <= width
        assert not re.search(r"\d\n *(%|ms|s)\b", "\n".join(lines))
        bars = [line for line in first_screen(BUSY, width).split("\n") if "compute" in line.plain]
        assert width < 118 or (bars[0].plain.endswith("other 15 ms") and not bars[0].style), "its labels are bright"


def lost(cause: str, ms: float, ranks: list[int] | None = None) -> TimeLost:
    """A loss of both ranks, or of these."""
    every = [0, 1] if ranks is None else ranks
    return TimeLost(cause=cause, ranks=every, lost_ns=round(ms * MS), share=ms / 141, standing=True, evidence="…")


PARTS = {  # the losses -> what the bar says of its parts, and what `also` does
    "a part of its part": (["communication 8", "data-stall 61"], ["communication 20, 8 avoidable", "62, 61 avoidable"]),
    "all of it": (["data-stall 61.500001"], ["costs 62 of 141 ms", "data loading 62, all avoidable"]),
    "more than it, with the work in it": (["data-stall 80"], ["data loading 62, all avoidable"]),
    "beside the first": (["data-stall 61", "communication 8"], ["exposed communication 8 of 20 ms"]),
    "two of one part": (["extra-compute 20", "long-sequences 10"], ["compute 44, 30 avoidable"]),
    "in no part": (["noisy-neighbour 50"], ["compute 44 │", "communication 20 │", "data loading 62 │"]),
    "of one rank, for which the other waits": (["data-stall 61 alone"], ["communication 20 │", "data loading 62 │"]),
}


@pytest.mark.parametrize("case", PARTS)
def test_the_bar_is_the_measured_split_and_a_loss_has_one_number_on_a_screen(case: str) -> None:
    losses = [lost(cause, float(ms), [0] if alone else None) for cause, ms, *alone in map(str.split, PARTS[case][0])]
    lines = told_of(BUSY.model_copy(update={"findings": losses}), 118)
    said = " ".join(re.sub("[█▓▒░·]+", "", " ".join(lines)).split())
    assert [words for words in PARTS[case][1] if words not in said.replace("│ ", "│")] == [], said


@pytest.mark.parametrize("width", [60, 80, 100, 110, 120])
def test_no_cause_and_no_part_of_the_job_falls_off_a_screen_however_many_lines_there_are(width: int) -> None:
    """What is shortened is words: of the heading, the doubt and the places."""
    causes, first = ("communication", "copies", "gc", "evaluation", "slow-device"), BUSY.findings[0]
    doubts = [Problem.doubt(f"a problem of the recording, number {i}", "…") for i in range(3)]
    more: dict[str, Any] = {
        "findings": [first.model_copy(update={"lines": first.lines * 3}), *(lost(cause, 40) for cause in causes)],
        "quality": Quality(verdict=RecordingVerdict.DOUBTFUL, problems=doubts),
        "job_time": JobTime(
            elapsed_ns=10**11, useful_share=0.4, parts=[JobTimePart(part="imports", duration_ns=6 * 10**10, share=0.6)]
        ),
        "run": {"command": ["slurm.sh"], "job_id": "local-1-with-a-long-name-" * 5},
    }
    lines = told_of(BUSY.model_copy(update=more), width)[:-1]
    said = " ".join(" ".join(lines).split())
    named = ["aiting for data", *(CAUSES[cause].label for cause in causes), "job:", "imports 1 min 0 s"]
    assert [word for word in named if word not in said] == [], said
    assert len(lines) <= 12 or lines[2].startswith("Waiting for data"), "words go first"


def test_what_a_bar_is_of_is_apart_from_it_and_a_window_is_no_period() -> None:
    assert BUSY.replay is not None
    steps = BUSY.steps.model_copy(update={"duration": None})
    (bar,) = [line for line in told_of(BUSY.model_copy(update={"steps": steps}), 118) if "compute" in line]
    assert bar.startswith("  window   █")


def test_two_recordings_are_told_with_the_line_that_compares_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, ranks in {"a": 1, "b": 2}.items():
        write_traces(tmp_path / name, ranks)
    assert main(["report", "--no-html", str(tmp_path / "a" / "rank0.json"), str(tmp_path / "b" / "rank0.json")]) == 0
    files = f"{tmp_path / 'a' / 'rank0.json'} {tmp_path / 'b' / 'rank0.json'}"
    assert f"\nHow the two differ: bash slurm.sh compare {files}\n" in capsys.readouterr().out


def test_a_column_that_did_not_fit_is_not_lost_in_silence(made: Made) -> None:
    said = "Some columns do not fit into 80 characters"
    assert said in render(made.summary, 80)
    assert "Some columns do not fit" not in render(made.summary, 400)


def test_of_many_ranks_the_whole_report_shows_the_busiest_and_the_idlest() -> None:
    (device,) = given_summary().devices
    devices = [device.model_copy(update={"rank": n, "compute_ns": 1000 - n, "idle_ns": n}) for n in range(40)]
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


def test_spare_columns_go_before_the_right_end_and_names_are_cut_last() -> None:
    shown = PageTable("c", ["name", "a", "spare", "last"], [[WIDE, "1", "2", "3"]])
    natural = len(table(shown.head, shown.rows)[1])
    assert fitted(shown, natural) == PageTable("c", list(shown.head), [list(shown.rows[0])], 1)
    least = natural - len(WIDE) + NAME
    cut = fitted(shown, least, ["spare"])
    assert list(cut.head) == list(shown.head) and len(cut.rows[0][0]) == NAME and "…" in cut.rows[0][0]
    assert list(fitted(shown, least - 1, ["spare"]).head) == ["name", "a", "last"]
    assert list(fitted(shown, 10, ["spare"]).head) == ["name", "a"]
    wide = fitted(PageTable("c", ["name", "a"], [[WIDE, "1"]]), 50)
    assert len(table(wide.head, wide.rows)[1]) == 50, "names get the room that the numbers leave"


def test_a_command_to_paste_is_never_cut() -> None:
    site = "/a/long/path/" * 8 + "my-site.yaml"
    given = run(1, "--slow-dataloading", "--site", site, slow_dataloading=True)
    given["run"] |= {"job_id": "local-1", "site": {"name": "mine", "defaults": {}}}
    summary = given_summary(idle={"data loading": 40}, **given)
    assert any(site in line for line in first_screen(summary, 80).plain.splitlines())


def test_facts_are_wrapped_below_themselves_and_nothing_of_them_is_cut() -> None:
    said = "a sentence of some length that does not fit beside its name on a narrow terminal"
    lines = facts([["a name", said], ["", ""]], 40)
    assert max(map(len, lines)) <= 40
    assert " ".join(" ".join(lines[:-1]).split()) == f"a name {said}"
    assert lines[-1].strip() == "–"

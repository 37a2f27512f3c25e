"""The report's first sentence is the cause that loses most time: who, how much, by what, and what to try."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.summary import (
    Collective,
    Problem,
    Quality,
    RecordingVerdict,
    Replay,
    Summary,
    TimeLost,
    TraceSource,
    Traffic,
    WhatIf,
)
from harness.analysis.summary.problem_texts import CROWDED
from harness.cli.main import main
from harness.common.faults.fault import FAULTS
from harness.explain.answer import verdict
from harness.explain.commands import FIELDS, command_of_what_if
from harness.replay.attribute.causes import CAUSES
from harness.replay.attribute.suspect import Cause
from harness.replay.attribute.what_ifs import WHAT_IFS
from harness.report.elements import Moment
from harness.report.page.compose import compose, render_page
from harness.report.page.inputs import Inputs
from harness.report.tables.catalogue import write_tables
from harness.report.tables.terminal import render
from tests.report.conftest import Made
from tests.report.given_summary import MS, of_devices, run, summary, text


def lost(cause: str = "host-stall", ms: float = 22.7, **more: Any) -> TimeLost:
    given: dict[str, Any] = {
        "ranks": [1], "phase": "forward", "every": 1, "share": ms / 90.1, "evidence": "20.6 ms in 19 of 20 steps",
        "low_ns": round((ms - 2.6) * MS), "high_ns": round((ms + 2.2) * MS), "at_ns": 5, "at_rank": 1,
    }  # fmt: skip
    return TimeLost(cause=cause, lost_ns=round(ms * MS), **given | more)


def replay(steps: int = 20, processes: int = 4, error: float = 0.0, *what_ifs: WhatIf) -> Replay:
    ns = round(90.1 * MS)
    return Replay(steps=steps, processes=processes, step_ns=ns, replayed_ns=ns, error=error, what_ifs=list(what_ifs))


def what_if(name: str, **more: Any) -> WhatIf:
    given: dict[str, Any] = {"step_ns": 70 * MS, "low_ns": 68 * MS, "high_ns": 72 * MS, "gain": 0.22}
    return WhatIf(name=name, meaning=name, **given | more)


def job(*findings: TimeLost, replayed: Replay | None = None, **more: Any) -> Summary:
    return summary(findings=list(findings), replay=replayed or replay(), idle={"launch-bound": 40}, **run(1) | more)


def faulty(*faults: str) -> dict[str, Any]:
    return run(1, "--fault", *faults, faults=faults)


def gain_of(name: str, share: float, **more: Any) -> WhatIf:
    return what_if(name, gain=share, step_ns=round((1 - share) * 90.1 * MS), **more)


def without_marks(s: Summary) -> Summary:
    return s.model_copy(update={"steps": s.steps.model_copy(update={"duration": None})})


EVERY, FOREIGN = [0, 1, 2, 3], {"run": None, "experiment": None}
CROWD = Quality(verdict=RecordingVerdict.DOUBTFUL, problems=[Problem.doubt(CROWDED, "4 ranks on 2 cores")])
UNKNOWN = {"low_ns": None, "high_ns": None}
TO_BF16 = gain_of("products-x2", 0.158, ranged=True, low_ns=40 * MS)
GAIN = "To gain: products-x2: 75.9 ms instead of 90.1 ms (15.8 % less, at best 40.0 ms)."
GRADIENTS = Traffic(
    rank=0, kind="all_reduce", phase="backward", bytes=25_000_000, count_per_step=4, pass_count_per_step=4,
    used_pass_count_per_step=4, step_duration_ns=5 * MS, step_exposed_ns=4 * MS,
)  # fmt: skip
NEEDLESS = (
    "Gradients are reduced in every micro-batch: 4 times per step, 25.0 MB each time (all-reduce, group not "
    "recorded, 20 GB/s)."
)
ONE_OF_EIGHT: dict[str, Any] = FOREIGN | {
    "world_size": 8,
    "ranks": [0],
    "collectives": [Collective(kind="all_reduce", count=1, ranks=1, duration_ns=1, mean_ns=1)],
    "sources": [TraceSource(path="rank0.json", tool="kineto", rank=0)],
}
OWN_CORES = "bind each rank to its own cores"
SAID: dict[str, tuple[Summary, tuple[str, ...], tuple[str, ...]]] = {  # given, said in this order, not said
    "the largest loss comes first": (
        job(lost(), lost("data-stall", 3, phase="data loading")),
        ("A stall of the host in forward costs 22.7 of 90.1 ms a step (25 %; 20.1 to 24.9 ms), on rank 1, in every "
         "step.", "Also: waiting for data 3.0 ms.", "The other ranks wait for it.",
         "Also: waiting for data costs 3.0 of 90.1 ms a step (3.3 %; 0.4 to 5.2 ms), on rank 1, in every step.",
         "A step takes 90.1 ms on average (median 10.0 ms): "), (),
    ),
    # As the replay sorts them.
    "the usual course of the program is behind what departs from it": (
        job(lost(), lost("tiny-kernels", 40, standing=True, ranks=EVERY, phase=None)),
        ("A stall of the host in forward costs", "Also: many small operators"), (),
    ),
    "needless communication": (
        job(lost("communication", 20, phase=None, ranks=EVERY), traffic=[GRADIENTS], **FOREIGN),
        ("in every step. Try: reduce the gradients once per step: no_sync()", NEEDLESS), (),
    ),
    "needless communication where another cause is first": (
        job(lost(), lost("communication", 20, phase=None, ranks=EVERY), traffic=[GRADIENTS], **FOREIGN),
        (f"in every step. {NEEDLESS}",), (),
    ),
    "one rank alone": (
        job(lost("communication", 20, phase=None, ranks=[0]), **ONE_OF_EIGHT),
        ("the trace of any other rank of the group shows it.",), (),
    ),
    "every third step": (job(lost(every=3)), ("on rank 1, in every 3rd step.",), ()),
    "no period": (job(lost(every=None)), ("Seen: 20.6 ms in 19 of 20 steps.",), ()),
    "all ranks": (job(lost(ranks=EVERY)), ("(25 %; 20.1 to 24.9 ms), on all 4 ranks",), ("wait for",)),
    "two ranks": (job(lost(ranks=[1, 2])), (", on ranks 1 and 2, ",), ()),
    "three of four ranks": (job(lost(ranks=[0, 1, 3])), ("The other rank waits for them.",), ()),
    "a process without a rank": (job(lost(ranks=[None])), (", on one process, ",), ()),
    "few steps": (
        job(lost(**UNKNOWN), lost(ms=3, **UNKNOWN), replayed=replay(steps=1)),
        ("(25 %; too few steps for an interval)", "(3.3 %; too few steps for an interval)"), (),
    ),
    "no marked steps": (
        without_marks(job(lost())),
        ("costs 22.7 of the 90.1 ms from the device's first to last work (25 %; 20.1 to 24.9 ms), on rank 1",), (),
    ),
    "ranks of their own cores": (job(lost("noisy-neighbour")), (OWN_CORES,), ()),
    "more ranks than cores": (
        job(lost("noisy-neighbour"), quality=CROWD),
        ("start no more ranks than there are cores (-n, -g)",), (OWN_CORES,),
    ),
    "no replay": (
        job().model_copy(update={"replay": None}), ("The largest avoidable part is launch-bound",), (),
    ),
    "a replay without a loss": (job(), ("No part that could be avoided",), ("launch-bound idle time",)),
    "a change that no finding tells": (
        job(replayed=replay(20, 4, 0.0, gain_of("no-tiny-kernels", 0.4, bound=True), TO_BF16)),
        ("No cause of lost time is above 3.0 % of the time.", GAIN), ("No part",),
    ),
    "a change beside a finding": (job(lost(), replayed=replay(20, 4, 0.0, TO_BF16)), (GAIN,), ()),
    "a change that a finding tells": (job(lost("fp32"), replayed=replay(20, 4, 0.0, TO_BF16)), (), ("To gain",)),
    "a change for twice the work": (
        job(replayed=replay(20, 4, 0.0, gain_of("micro-batch-x2", 0.1, per=2))),
        ("predicted 162 ms (136 to 144 ms) for the work of 2 steps of today, 10.0 % less.",), (),
    ),
    "a change that gains little": (
        job(replayed=replay(20, 4, 0.0, gain_of("products-x2", 0.02))), ("No part that could be avoided",), ("Try:",),
    ),
    "no kernel": (
        summary(compute=0, copying=10, idle={"other": 90}, findings=[], replay=replay()),
        ("No kernel that computes is in this recording, so what a step loses cannot be known from it",), (),
    ),
    "a cause of a later version": (job(lost("cosmic-rays")), ("Cosmic rays costs 22.7 of 90.1 ms",), ()),
}  # fmt: skip


@pytest.mark.parametrize("name", SAID)
def test_what_is_said_of_a_loss(name: str) -> None:
    given, said, unsaid = SAID[name]
    whole = text(verdict(given))
    places = [whole.find(words) for words in said]
    assert -1 not in places and places == sorted(places), whole
    assert [words for words in unsaid if words in whole] == []


def test_every_cause_has_its_words_and_every_change_its_option() -> None:
    slow = {name for name, kind in FAULTS.items() if not kind.ends and kind.per == "step"}  # others: the job's time
    assert {cause.value for cause in Cause} | slow <= set(CAUSES)
    assert {kind.name for kind in WHAT_IFS} == set(FIELDS)


def test_every_further_cause_is_named_and_three_are_explained() -> None:
    found = verdict(job(*(lost(ms=ms) for ms in (9, 8, 7, 6, 5))))
    assert (found.also.count("host stall"), text(found).count("Also: a stall")) == (4, 3)


@pytest.mark.parametrize(
    ("found", "given", "command"),
    [
        (lost(), faulty("host-stall,ms=20,rank=1"), "-e 1"),
        (
            lost(),
            faulty("data-stall,ms=5", "host-stall,ms=20", "host-stall,ms=9,in=backward"),
            "-e 1 -- --fault data-stall,ms=5 --fault host-stall,ms=9,in=backward",
        ),
        (lost(), faulty("host-stall,ms=20,rank=0"), None),  # the fault is another rank's
        (lost("data-stall"), run(1, "--slow-dataloading", slow_dataloading=True), "-e 1"),
        (lost("tiny-kernels"), run(1), "-e 1 -- --micro-batch-size 4"),
        (lost("pause"), run(1), None),
    ],
)
def test_the_next_command_is_the_run_without_what_it_made_slow(
    found: TimeLost, given: dict[str, Any], command: str | None
) -> None:
    answer = verdict(job(found, **given))
    assert answer.command == (command and f"bash slurm.sh {command}")
    assert answer.attempt is not None and answer.attempt.predicted == "at best 67.4 ms"


@pytest.mark.parametrize(
    ("name", "given", "command"),
    [
        (
            "no-host-stall-forward",
            faulty("host-stall,ms=9,in=backward", "host-stall,ms=20"),
            "--fault host-stall,ms=9,in=backward",
        ),
        ("gas-x4", run(1, gradient_accumulation_steps=2), "--gradient-accumulation-steps 8"),
        ("micro-batch-x2", run(1), "--micro-batch-size 4"),
        ("no-data-stall", faulty("data-stall,ms=9"), ""),
        ("no-data-stall", run(1, "--slow-dataloading", slow_dataloading=True), ""),
        ("rank-like-others", faulty("extra-compute,ms=9,rank=1"), ""),
        ("no-extra-compute", faulty("extra-compute,ms=9,every=3"), ""),
        ("no-pause", faulty("pause,ms=9", "gc"), "--fault gc"),
        ("no-noisy-neighbour", faulty("pinned-together"), ""),
        ("no-slow-link", faulty("slow-link,ms=9,rank=0"), ""),
        ("no-checkpoint", faulty("checkpoint"), ""),
        ("one-bucket", faulty("small-buckets,kb=4"), ""),
        ("products-x2", run(1), "--mixed-precision"),
        ("products-x2", run(1, mixed_precision=True), None),
        ("no-data-stall", run(1), None),
        ("no-communication", run(1), None),
    ],
)
def test_a_what_if_has_the_command_that_makes_it(name: str, given: dict[str, Any], command: str | None) -> None:
    expected = None if command is None else " -- ".join(filter(None, ("bash slurm.sh -e 1", command)))
    assert command_of_what_if(job(**given), what_if(name)) == expected
    if name == "products-x2":
        assert command_of_what_if(of_devices(job(**given), device_kind="cpu"), what_if(name)) is None


def test_terminal_page_and_files_have_both_tables(tmp_path: Path) -> None:
    given = job(
        lost(),
        replayed=replay(20, 4, 0.0, what_if("no-host-stall-forward"), what_if("no-tiny-kernels", bound=True)),
        **faulty("host-stall,ms=20"),
    )
    (section,) = [x for x in compose(given, Inputs()).before if x.id == "help"]
    causes, changes = section.tables
    assert list(causes.rows[0])[:5] == ["host stall", "1", "forward", "22.7 ms", "20.1 to 24.9 ms"]
    assert [tuple(row[-2:]) for row in changes.rows] == [("prediction", "bash slurm.sh -e 1"), ("a bound", "–")]
    whole = render(given, 160)
    assert "host stall  1      forward" in whole and "bash slurm.sh -e 1" in whole
    write_tables([given], tmp_path)
    with (tmp_path / "findings.csv").open() as file:
        assert next(csv.DictReader(file))["lost_ns"] == str(round(22.7 * MS))
    with (tmp_path / "what_ifs.csv").open() as file:
        assert [row["bound"] for row in csv.DictReader(file)] == ["False", "True"]


def test_a_replay_that_does_not_repeat_the_run_answers_nothing_and_waiting_of_nobody_is_said() -> None:
    page = compose(job(replayed=replay(error=0.031)), Inputs())
    assert not [x for x in page.before if x.id == "help"]
    (section,) = [x for x in (*page.before, *page.after) if x.id == "quality"]
    (row,) = section.tables[0].rows
    assert row[0] == "not given"
    assert "the replay differs from the run by 3.1 % of the step: no answer" in row[2]
    alone = replay().model_copy(update={"unknown_ns": round(18 * MS)})
    (section,) = [x for x in compose(job(lost(), replayed=alone), Inputs()).before if x.id == "help"]
    assert section.note.startswith("20.0 % of the step is spent in collectives whose ranks were not all read")


def test_a_change_that_gains_less_than_2_percent_is_in_the_files_but_not_on_page_and_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = replay(20, 4, 0.0, what_if("no-host-stall-forward", gain=0.02), what_if("gas-x2", gain=0.019))
    given = job(lost(), replayed=few)
    (section,) = [x for x in compose(given, Inputs()).before if x.id == "help"]
    assert [row[0] for row in section.tables[1].rows] == ["no-host-stall-forward"]
    stored = tmp_path / "summary.json"
    stored.write_text(given.model_dump_json())
    assert main(["whatif", str(stored)]) == 0
    for whole in (render(given), capsys.readouterr().out):
        assert "no-host-stall-forward" in whole and "gas-x2" not in whole
    assert main(["whatif", str(stored), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["what_ifs"]
    assert [row["name"] for row in listed] == ["no-host-stall-forward", "gas-x2"]
    write_tables([given], tmp_path)
    assert len((tmp_path / "what_ifs.csv").read_text().splitlines()) == 3


def test_a_cause_on_the_page_leads_to_its_step(made: Made) -> None:
    """The browser's test clicks it."""
    found = made.summary.findings[0]
    cell = next(x for x in compose(made.summary, Inputs()).before if x.id == "help").tables[0].rows[0][0]
    assert isinstance(cell, Moment) and (cell.rank, cell.at_ns) == (found.at_rank, found.at_ns)
    page = compose(made.summary, Inputs(timeline=b"packed"))
    assert f'<a href="#timeline" data-at="{found.at_ns}" data-rank="0">see it in' in render_page(page)
    assert compose(made.summary, Inputs()).moment is None, "no timeline to show it in"


def test_a_change_that_takes_a_cause_out_has_its_name() -> None:
    changes = [one.name for one in WHAT_IFS if one.name.startswith("no-")]
    assert [name for name in changes if not any(f"{name}-".startswith(f"no-{cause}-") for cause in CAUSES)] == []

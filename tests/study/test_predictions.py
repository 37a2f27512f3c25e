"""`slurm.sh whatif`: the table, its commands, and when there is no answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness import what_if as replayed
from harness.analysis.summary import Quality, WhatIf, Withheld
from harness.experiment.exercises import DDP
from harness.run import Run
from tests.report.test_report_causes import faulty, job, replay, what_if
from tests.study.kit import Say, completed
from tests.synthetic.job import write_traces

STALLED = faulty("host-stall,ms=20")
CHANGES = (what_if("no-tiny-kernels", bound=True), what_if("no-host-stall-forward"), what_if("gas-x2", per=2))


def stored(run: Run, *changes: WhatIf, **more: Any) -> None:
    """Give the run a summary with these what-ifs."""
    summary = job(replayed=replay(20, 4, 0.0, *changes), **STALLED).model_copy(update=more)
    run.summary.write_text(summary.model_dump_json(), encoding="utf-8")


@pytest.fixture
def run(runs: Path) -> Run:
    """A completed run with a stored summary."""
    made = completed(runs, "local-1", DDP(gpus_per_node=2, faults=STALLED["experiment"]["faults"]))
    stored(made, *CHANGES)
    return made


def test_each_change_that_an_option_makes_has_its_command_below(run: Run, say: Say) -> None:
    said = say("whatif", "local-1")
    lines = said.out.splitlines()
    row = next(i for i, line in enumerate(lines) if line.startswith("  no-host-stall-forward"))
    assert said.code == 0 and " ".join(lines[row].split()) == (
        "no-host-stall-forward 70.0 ms 68.0 to 72.0 ms 22.0 % prediction"
    )
    assert lines[row + 1].strip() == "bash slurm.sh -e 1"
    assert lines[row - 1].split()[-2:] == ["a", "bound"], "a bound has no command"
    told = say("whatif", "local-1", "--json").json
    assert (told["no_answer"], told["error"]) == (None, 0)
    assert [change["command"] for change in told["what_ifs"]] == [
        None,
        "bash slurm.sh -e 1",
        "bash slurm.sh -e 1 -- --fault host-stall,ms=20 --gradient-accumulation-steps 2",
    ]


HIDDEN = Quality(withheld=[Withheld(field="replay.what_ifs", reason="find it")])


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            {"replay": replay(error=0.034)},
            "the replay differs from the run by 3.4 % of the step: no answer (at most 2.0 % is",
        ),
        ({"replay": None}, "no replay is possible"),
        ({"quality": HIDDEN}, "find it"),
    ],
)
def test_a_replay_that_differs_and_a_mystery_give_no_answer(
    run: Run, say: Say, more: dict[str, Any], words: str
) -> None:
    stored(run, *CHANGES, **more)
    said = say("whatif", "local-1")
    assert said.code == 1 and words in said.words and "no-host-stall-forward" not in said.out


def test_traces_of_any_origin_are_answered_without_commands(tmp_path: Path, say: Say) -> None:
    write_traces(tmp_path / "traces")
    said = say("whatif", str(tmp_path / "traces"))
    assert said.code == 0 and "prediction" in said.out and "slurm.sh" not in said.out
    assert "micro-batch-x2" in [change.name for change in replayed(tmp_path / "traces").what_ifs]

"""A lesson answers from the numbers of its two runs, 4a and 4b from how these ended: yes, no, or why it cannot."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from harness.analysis.metric_values import Metrics
from harness.analysis.summary import Problem, Quality, RecordingVerdict, Summary
from harness.cli.study.lesson_answer import again, answer_lines, doubts_of, give_answer, together, what_to_do
from harness.common.run_folder.run_files import HEARTBEATS
from harness.experiment.exercises import DDP, Experiment
from harness.heartbeats.hang import Hang, hang_file
from harness.run import Run
from harness.study.lessons import load_lesson
from harness.study.relations import (
    LessonArm,
    RelationOutcome,
    RelationResult,
    decide,
    ending_of,
    needed_pairs,
    step_time,
)
from tests.study.kit import Say, completed
from tests.study.reference_runs import made_run
from tests.study.test_lessons import answers


def test_an_answer_shows_its_numbers_with_their_units() -> None:
    numbers = {
        "a.step_ns": 3.064e7,
        "b.data_loading_share": 0.281,
        "b.parameter_bytes": 13e9,
        "a.all_reduce_count": 7.0,
        "b.message_bytes / a.message_bytes": 2.3163,
        "by theory": 2.4,
    }
    (_, said) = answer_lines(RelationResult(load_lesson("1a").relations[0], RelationOutcome.HOLDS, numbers, ""))
    assert said.strip() == (
        "run a: 30.6 ms a step, run b: data loading share 28.1 %, run b: parameter bytes 13.0 GB, "
        "run a: all reduce count 7, b.message_bytes / a.message_bytes: 2.32, by theory: 2.4"
    )


def failed(name: str, a: Metrics, b: Metrics) -> list[RelationResult]:
    return answers(load_lesson(name), a, b, on_gpu=True, over_network=True)


FAST, SLOW = {"step_ns": 10.0, "data_loading_share": 0.1}, {"step_ns": 20.0, "data_loading_share": 0.4}


AGAIN = "bash slurm.sh lesson 1a --site 'my x.yaml' --again --answer"
BUSY = "    local-7: others used the cores (job 40 %, machine 100 %)"


def test_what_a_student_is_told_to_do_after_a_relation_that_failed_and_where_a_recording_is_in_doubt() -> None:
    assert again(load_lesson("1a"), "my x.yaml") == AGAIN
    problems = [
        Problem(severity=RecordingVerdict.GOOD, what="seen on GPUs only", evidence="x"),
        Problem(severity=RecordingVerdict.DOUBTFUL, what="others used the cores", evidence="job 40 %, machine 100 %"),
    ]
    doubts = doubts_of("local-7", Summary(quality=Quality(problems=problems)))
    counted = {"all_reduce_count": 7.0, "all_reduce_bytes": 7e6}
    times, counts, right = failed("1a", SLOW, FAST), failed("1c", counted, counted), failed("1a", FAST, SLOW)
    commands = AGAIN, "compare"
    assert what_to_do(right, [], commands, None) == []
    assert what_to_do(times, [], commands, None)[-1] == "    compare", "a quiet pair would say the same again"
    assert what_to_do(counts, doubts, commands, None)[-1] == "    compare", "a quiet machine counts the same"
    told = ["", "Problems of these recordings:", BUSY]
    assert what_to_do(right, doubts, commands, None) == told, "also where all relations hold"
    assert what_to_do(times, doubts, commands, None)[:3] == told
    assert what_to_do(times, doubts, commands, None)[-1] == f"    {AGAIN}"


def timed(name: str, *runs: Sequence[float], shares: Sequence[float] = ()) -> LessonArm:
    """Runs with these steps, of which a share is data loading: of a a tenth, of b a half."""
    each = [
        LessonArm(name, {"step_ns": median(run), "data_loading_share": share}, False, False, [], steps_ns=[run])
        for run, share in zip(runs, shares or [0.5 if name == "b" else 0.1] * len(runs), strict=True)
    ]
    return together(each)


EVENLY, NOISY = [100.0, 101, 99, 100, 102, 98], [102.0, 140, 75, 100, 130, 110]


@pytest.mark.parametrize(
    ("a", "b", "outcome"),
    [
        ([EVENLY], [[x * 1.2 for x in EVENLY]], RelationOutcome.HOLDS),
        ([EVENLY], [[x * 0.8 for x in EVENLY]], RelationOutcome.FAILS),
        ([EVENLY], [NOISY], RelationOutcome.UNKNOWN),
        ([EVENLY], [EVENLY], RelationOutcome.UNKNOWN),
        (
            [EVENLY, [x * 0.95 for x in EVENLY]],
            [[x * 3.3 for x in EVENLY], [x * 3 for x in NOISY]],
            RelationOutcome.HOLDS,
        ),
        ([EVENLY, [130.0] * 6], [[x * 1.2 for x in EVENLY], [115.0] * 6], RelationOutcome.UNKNOWN),
        ([EVENLY, [101.0] * 6], [[x * 1.2 for x in EVENLY], [121.0] * 6], RelationOutcome.HOLDS),
    ],
)
def test_a_relation_of_times_holds_only_if_compare_sees_a_difference(
    a: list[list[float]], b: list[list[float]], outcome: RelationOutcome
) -> None:
    shares, times = decide(load_lesson("1a"), timed("a", *a), timed("b", *b))
    assert (times.outcome, shares.outcome) == (outcome, RelationOutcome.HOLDS), "a share is no time"


def test_a_second_pair_that_agrees_narrows_the_interval_and_one_that_does_not_widens_it_to_itself() -> None:
    slower = [x * 1.1 for x in NOISY]
    one, two = (step_time(timed("a", *[EVENLY] * k), timed("b", *[slower] * k)) for k in (1, 2))
    apart = step_time(timed("a", EVENLY, EVENLY), b := timed("b", EVENLY, slower))
    assert one and two and apart and one.interval and two.interval and apart.interval
    assert one.interval.low < two.interval.low < two.ratio == pytest.approx(one.ratio) and two.b.n == 2
    assert 0.9 < apart.interval.low < 1 < apart.interval.high < 1.4 and b.metrics["step_ns"] == pytest.approx(
        apart.b.value
    ), "no decades, and one number for an arm"


def test_shares_and_the_jobs_times_are_judged_without_the_interval_of_the_steps_by_whether_the_pairs_agree() -> None:
    a, b = timed("a", NOISY, NOISY), timed("b", NOISY, NOISY, shares=[0.5, 0.2])
    shares = decide(load_lesson("1a"), a, b)[0]
    assert (shares.outcome, shares.why) == (RelationOutcome.UNKNOWN, "the pairs of runs do not agree")
    ends = ("a", 60e9), ("b", 66e9)
    arms = (timed(name, NOISY)._replace(metrics={"job_elapsed_ns": ns, "job_steps_ns": 9e9}) for name, ns in ends)
    assert decide(load_lesson("1o"), *arms)[0].outcome is RelationOutcome.HOLDS


@pytest.mark.parametrize(
    ("a", "b", "doubts", "said"),
    [
        ([EVENLY], [[x * 1.06 for x in NOISY]], [], r"About [2-8] pairs of runs would tell\. .*\n    again"),
        ([EVENLY], [EVENLY], [], "Even 8 pairs like these would not tell: .*do[.]"),
        (
            [EVENLY],
            [EVENLY],
            [{"run": "local-7", "what": "others used the cores", "evidence": "x"}],
            "Repeat both runs when it is quiet; .*\n    again",
        ),
        ([EVENLY[:3]], [[x * 1.2 for x in EVENLY[:3]]], [], "launch both with --active-steps 4 or more[.]"),
        ([EVENLY] * 8, [EVENLY] * 8, [], "Even 8 pairs .*[.]"),
    ],
)
def test_the_advice_to_measure_again_has_an_end(
    a: list[list[float]], b: list[list[float]], doubts: list[dict[str, str]], said: str
) -> None:
    arms = timed("a", *a), timed("b", *b)
    decided = [one for one in decide(load_lesson("1a"), *arms) if one.outcome is RelationOutcome.UNKNOWN]
    lines = what_to_do(decided, doubts, ("again", "compare"), needed_pairs(decided, arms))
    assert decided and re.search(f"{said}$", "\n".join(lines)), lines


def test_again_answers_from_both_pairs_unless_only_the_first_was_disturbed(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def pair(first: int, **more: Any) -> tuple[Run, Run]:
        asked = DDP(), DDP(slow_dataloading=True)
        a, b = (made_run(runs, each, 100 * i + first, loading=0.4 * i, **more) for i, each in enumerate(asked, 1))
        return a, b

    quiet, later, disturbed = pair(1), pair(3), pair(5, doubts=["others used the cores"])
    for pairs, named in (
        ([quiet, later], "(a: local-1 and local-3, b: local-2 and local-4)"),
        ([disturbed, later], "(a: local-3, b"),
    ):
        give_answer(load_lesson("1a"), pairs, None, as_json=False)
        assert named in capsys.readouterr().out
    give_answer(load_lesson("1a"), [disturbed], None, as_json=False)
    assert "local-5: others used the cores (node1)" in capsys.readouterr().out


def stages(micro_batches: int, gathered: float = 2.0) -> tuple[Metrics, Metrics]:
    """What ZeRO-2 and ZeRO-3 move in a micro-batch of a model with 1 MB of parameters."""
    size = {"parameter_bytes": 1e6, "expected_all_gather_bytes": 2e6}
    two = {"all_gather_count": 1 / micro_batches, "all_gather_bytes": 1e6 / micro_batches}
    three = {"all_gather_count": 32.0, "all_gather_bytes": gathered * 1e6}
    return (
        size | two | {"message_bytes": 1e6 + 1e6 / micro_batches},
        size | three | {"message_bytes": (gathered + 1) * 1e6},
    )


@pytest.mark.parametrize("micro_batches", [1, 4, 16])
def test_the_bytes_of_zero_2_and_3_are_compared_with_the_accumulation_that_was_run(micro_batches: int) -> None:
    decided = failed("2a", *stages(micro_batches))
    assert [one.outcome for one in decided] == [RelationOutcome.HOLDS] * 3
    ratio = 3 * micro_batches / (micro_batches + 1)
    assert decided[-1].numbers["measured"] == pytest.approx(ratio)
    assert decided[-1].numbers["by theory"] == pytest.approx(ratio)
    assert failed("2a", *stages(micro_batches, gathered=1.0))[-1].outcome is RelationOutcome.FAILS


def test_an_answer_says_yes_no_or_cannot() -> None:
    lesson = load_lesson("1b")
    a, b = {"gemm_bf16_share": 0.0, "step_ns": 10.0}, {"gemm_bf16_share": 0.9, "step_ns": 20.0}
    on_gpu, on_cpu = (answers(lesson, a, b, on_gpu=gpu, over_network=False) for gpu in (True, False))
    assert [one.outcome for one in on_gpu] == [RelationOutcome.HOLDS, RelationOutcome.FAILS]
    assert on_cpu[1][1::2] == (RelationOutcome.NOT_COMPARABLE, "this machine cannot show it: it needs runs on GPUs")
    assert "a.gemm_bf16_share was not measured" in answers(lesson, {}, b, on_gpu=True, over_network=False)[0].why


# ---- Runs that ended as stuck or failed


COLLECTIVES = Hang("other collective", (0, 1), (), 5, 1, None, "in step 5: they differ", "look", (), found_ns=2)
LOCK = COLLECTIVES._replace(kind="lock", ranks=(1,), waiting=(0,), sentence="in step 5: rank 1 waits")


def stuck(root: Path, job_id: str, asked: Experiment, hang: Hang) -> Run:
    run = completed(root, job_id, asked, state="stuck")
    hang_file(run.path).parent.mkdir()
    hang_file(run.path).write_text(json.dumps(hang._asdict()))
    return run


def died(root: Path, job_id: str, asked: Experiment, left: bool) -> Run:
    """Rank 1 raises or leaves, and then rank 0 finds its connection broken."""
    run = completed(root, job_id, asked, state="failed")
    own = {"type": "os._exit", "message": "0"} if left else {"type": "ValueError", "message": "wrong"}
    broken = {"type": "RuntimeError", "message": "Connection reset by peer"}
    file = HEARTBEATS.path(run.path, "here")
    file.parent.mkdir()
    lines = [
        {"event": "gone", "rank": rank, "pid": rank, "step": 5, "unix_ns": at, "error": error | {"unix_ns": at}}
        for rank, at, error in ((0, 30, broken), (1, 20, own))
    ]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return run


def test_the_numbers_of_a_run_that_was_stuck_that_failed_and_that_nobody_saw(runs: Path) -> None:
    hangs, deaths = load_lesson("4a"), load_lesson("4b")
    numbers = {"stuck_rank": 1, "stuck_ranks_count": 1, "stuck_waiting_count": 1, "stuck_in_collective": 0}
    found = ending_of(stuck(runs, "1", hangs.a, LOCK))
    assert found.numbers == numbers and found.sentence.endswith("in step 5: rank 1 waits")
    for left in (False, True):
        numbers = {"failed_rank": 1, "failed_by_error": not left, "failed_others_count": 1}
        assert ending_of(died(runs, f"2{left}", deaths.a, left)).numbers == numbers
    assert ending_of(completed(runs, "3", deaths.b, state="failed")) == ("", {})


def test_both_lessons_answer_from_such_runs(runs: Path, say: Say) -> None:
    hangs, deaths = load_lesson("4a"), load_lesson("4b")
    stuck(runs, "1", hangs.a, COLLECTIVES)
    stuck(runs, "2", hangs.b, LOCK)
    died(runs, "3", deaths.a, left=False)
    died(runs, "4", deaths.b, left=True)
    for name in ("4a", "4b"):
        said = say("lesson", name, "--answer", "--json").json
        assert [each["outcome"] for each in said["answers"]] == ["yes", "yes"] and all(said["endings"])
    assert "rank that causes it: 1, ranks that wait for it: 1" in say("lesson", "4a", "--answer").out


def test_runs_that_ended_otherwise_are_to_be_repeated(runs: Path, say: Say) -> None:
    lesson = load_lesson("4a")
    for number, asked in enumerate((lesson.a, lesson.b)):
        stuck(runs, str(number), asked, LOCK)
    said = say("lesson", "4a", "--answer").out
    assert "✗ in run a both ranks wait in collectives" in said
    assert "    bash slurm.sh lesson 4a --again --answer\n" in said


def test_a_completed_run_is_no_arm_of_a_lesson_about_ends(runs: Path, say: Say) -> None:
    completed(runs, "1", load_lesson("4a").a)
    assert say("lesson", "4a", "--no-run", "--json").json["a"] is None

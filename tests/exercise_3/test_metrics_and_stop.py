"""What exercise 3 writes down, how it ends when it is stopped, and what it says when it cannot begin."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.exercise_3.megatron_runs import SCRIPT, command, train
from tests.exercises.launching import Run, completed, environment
from tests.waiting import limit_s, wait_until

pytestmark = pytest.mark.train

EXIT_2 = re.compile(r"exitcode +: 2 ")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two pipeline stages, with all defaults except the size."""
    folder = tmp_path_factory.mktemp("metrics") / "run"
    return completed(train(folder, "--pp", 2, "--seq-length", 32, "--micro-batch-size", 2))


def test_what_happens_before_the_first_iteration_is_said_once_and_in_order(run: Run) -> None:
    said = [line for line in run.log.splitlines() if line.endswith(" …")]
    assert [line.split()[0] for line in said] == ["starting", "building"]
    assert run.log.index(said[-1]) < run.log.index("iteration 1/10")


def test_tokens_of_all_ranks_are_those_of_the_global_batch_of_eight_micro_batches(run: Run) -> None:
    assert [run.lines(rank)[0]["gradient_accumulation_steps"] for rank in (0, 1)] == [8, 8]
    for steps in zip(run.steps(0), run.steps(1), strict=True):
        assert [step["tokens_global"] for step in steps] == [16 * 32, 16 * 32]
        assert sum(step["tokens"] for step in steps) == 16 * 32
        assert sum(step["samples"] for step in steps) == 16
    assert sorted(path.name for path in (run.folder / "data").iterdir()) == ["instructions.bin", "instructions.idx"]


def test_the_parts_of_an_iteration_fit_into_it(run: Run) -> None:
    for rank in (0, 1):
        for step in run.steps(rank):
            parts = [step[f"{part}_ns"] for part in ("data", "forward", "backward", "optimizer")]
            assert all(part > 0 for part in parts)
            assert sum(parts) < step["step_ns"]


def test_sigterm_ends_it_after_a_step_with_everything_written(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    flags = ("--pp", 2, "--iters", 10_000, "--skip", 0, "--wait", 0, "--warmup", 0, "--active", 9_000)
    rank1 = folder / "metrics" / "rank1.jsonl"
    with ThreadPoolExecutor() as threads:
        training = threads.submit(
            train, folder, *flags, "--profiler", "torch", "--seq-length", 32, "--global-batch-size", 2
        )
        wait_until(
            lambda: training.done() or (rank1.exists() and rank1.read_text().count('"step_ns"') >= 2), "two steps"
        )
        if not training.done():
            launcher = psutil.Process(Run(folder, 0, "").lines(1)[0]["pid"]).parent()
            launcher.send_signal(signal.SIGTERM)
        run = training.result()
    assert run.exit_code == 1, run.log[-3000:]
    assert "got signal: 15" in run.log, "as torchrun says it"
    ends = [run.lines(rank)[-1] for rank in (0, 1)]
    assert [(end["event"], end["status"], end["reason"]) for end in ends] == [("end", "stopped", "SIGTERM")] * 2
    assert ends[0]["steps"] == ends[1]["steps"] > 0
    assert sorted(path.name for path in (folder / "torch").iterdir()) == ["rank0.json.gz", "rank1.json.gz"]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--gradient-accumulation-steps", 4), "set --global-batch-size instead"),
        (("--data-path", "/nowhere/text"), "--data-path /nowhere/text: there is no /nowhere/text.idx"),
    ],
)
def test_a_request_that_does_not_fit_is_one_sentence_and_exit_2(
    tmp_path: Path, flags: tuple[object, ...], sentence: str
) -> None:
    run = train(tmp_path / "run", *flags)
    assert EXIT_2.search(run.log), "as torchrun, whose own status is 1, says it of a rank"
    assert sentence in run.log


def test_without_a_launcher_it_says_how_to_start_it(tmp_path: Path) -> None:
    argv = command(tmp_path / "run")
    alone = {name: text for name, text in environment().items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    done = subprocess.run(
        [sys.executable, *argv[argv.index(str(SCRIPT)) :]], cwd=os.sep, env=alone, capture_output=True, text=True,
        check=False, timeout=limit_s(),
    )  # fmt: skip
    assert done.returncode == 2
    assert "torchrun" in done.stderr

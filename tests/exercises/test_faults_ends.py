"""A training with `hang` really hangs where it says, one with `crash` or `oom` dies as it says, and NaN is NaN."""

from __future__ import annotations

import math
import resource
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("accelerate", reason="the training scripts need their libraries")

import torch

from exercises.utils.faults import ends
from exercises.utils.faults.inject import injected
from tests.exercises.ending_ranks import STEP, STEPS, Rank, ranks_with
from tests.exercises.small_training import arguments, loop, prepared
from tests.waiting import wait_until

LOOKED_AT_S = 0.5  # in which a hanging rank makes no step


def waits_in(rank: Rank, function: str) -> None:
    """The rank comes to wait in this function."""
    wait_until(lambda: function in rank.stacks(), f'"{function}" in the stacks of rank {rank.number}', rank.stacks)


# All kinds hang in tests/own/test_own_endings.py.
@pytest.mark.parametrize(
    ("kind", "functions"),
    [("lock", ["_lock"]), ("worker-stopped", ["_try_get_data"]), ("missing-collective", ["backward", "barrier"])],
)
def test_the_last_rank_hangs_where_it_says_and_the_others_wait(kind: str, functions: list[str], tmp_path: Path) -> None:
    last = len(functions) - 1
    with ranks_with(f"hang,kind={kind},step={STEP},rank={last}", tmp_path, world_size=len(functions)) as ranks:
        faulty = ranks[last]
        wait_until(lambda: bool(faulty.lines), "the fault", lambda: faulty.log)
        time.sleep(LOOKED_AT_S)  # one that does not hang makes steps meanwhile
        assert faulty.steps == STEP, "what comes before the fault's step is done"
        assert max(rank.steps for rank in ranks) == STEP, "and that step never ends"
        assert f'"step": {STEP}, "fault": "hang", "rank": {last}, "ns": 0' in faulty.lines
        assert [bool(rank.lines) for rank in ranks] == [rank is faulty for rank in ranks]
        for rank, function in zip(ranks, functions, strict=True):
            waits_in(rank, f"in {function}")


@pytest.mark.parametrize(("kind", "code"), [("exception", 1), ("segv", -signal.SIGSEGV)])
def test_a_rank_ends_as_it_says(kind: str, code: int, tmp_path: Path) -> None:
    with ranks_with(f"crash,kind={kind},step={STEP}", tmp_path) as (rank,):
        assert rank.exit_code() == code
        assert rank.steps == STEP
        assert f'"step": {STEP}, "fault": "crash"' in rank.lines
    assert not list(tmp_path.glob("core*"))
    assert ("RuntimeError: this step failed" in rank.log) == (kind == "exception")


def test_the_host_s_memory_ends_with_a_memory_error_and_is_there_afterwards(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_AS)
    training = prepared(arguments(tmp_path, "oom,step=1"), steps=3)
    done = 0
    with pytest.raises(MemoryError), injected(training, training.model, training.optimizer) as faulty:
        for _ in loop(faulty):
            done += 1
    assert done == 1
    assert resource.getrlimit(resource.RLIMIT_AS) == limits
    assert '"step": 1, "fault": "oom"' in (tmp_path / "faults" / "rank0.jsonl").read_text()
    assert len(bytearray(2**29)) == 2**29


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_loss_or_gradient_is_nan_from_its_step_on(what: str, tmp_path: Path) -> None:
    training = prepared(arguments(tmp_path, f"nan,in={what},step={STEP}"), steps=STEPS)
    losses, weights = [], []
    with injected(training, training.model, training.optimizer) as faulty:
        for batch in faulty.loader:
            loss = faulty.model(batch).loss
            losses.append(math.isnan(loss.item()))
            loss.backward()
            training.optimizer.step()
            weights.append(any(bool(each.isnan().any()) for each in training.model.parameters()))
    assert losses == [False, False, what == "loss", True]
    assert weights == [False, False, True, True]
    assert len((tmp_path / "faults" / "rank0.jsonl").read_text().splitlines()) == STEPS - STEP
    assert not training.model._forward_hooks


def test_nan_is_in_the_loss_or_else_in_every_float_that_a_model_returns() -> None:
    one, whole = torch.ones(1), torch.ones(1, dtype=torch.int64)
    named = SimpleNamespace(loss=one, logits=one)
    assert ends.changed(named, ends._times_nan) is named
    assert named.loss.isnan() and not named.logits.isnan()
    nested = ends.changed({"logits": one, "rest": (one, [whole, None])}, ends._times_nan)
    assert nested["logits"].isnan() and nested["rest"][0].isnan()
    assert nested["rest"][1] == [whole, None]

"""A training with `hang` really hangs where it says, one with `crash` or `oom` dies as it says, and NaN is NaN."""

from __future__ import annotations

import math
import resource
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("accelerate", reason="the training scripts need their libraries")

import torch

from exercises.utils.faults import ends
from exercises.utils.faults.inject import injected
from harness.common.declared_faults import CRASHES, FAULTS, HANGS_ALONE, HANGS_IN_COLLECTIVE, HANGS_TOGETHER
from tests.exercises.ending_ranks import STEP, STEPS, Rank, ranks_with, state_of
from tests.exercises.small_training import arguments, loop, prepared
from tests.waiting import wait_until

LOOKED_AT_S = 0.5  # in which a hanging rank makes no step
# The function in which a rank waits; where it waits for others, in which function of PyTorch.
WAITS_IN = {
    "sleep": "in _sleep",
    "loop": "in _loop",
    "lock": "in _lock",
    "file": "in _file",
    "socket": "in _socket",
    "child": "in wait",
    "worker-hangs": "in _try_get_data",
    "worker-stopped": "in _try_get_data",
    "missing-collective": "in barrier",
    "other-collective": "in broadcast",
    "other-size": "in all_reduce",
    "order": "in all_reduce",
    "left-early": "in _shutdown",
    "no-receive": "in recv",
}


def waits_in(rank: Rank, function: str) -> None:
    """The rank comes to wait in this function."""
    wait_until(lambda: function in rank.stacks(), f'"{function}" in the stacks of rank {rank.number}', rank.stacks)


def comes_to(states: Callable[[], list[str]], wanted: list[str]) -> None:
    """Processes come to these states."""
    wait_until(lambda: states() == wanted, f"the states {wanted}", states)


def check_hangs(ranks: list[Rank], faulty: Rank) -> None:
    """No rank makes a step any more, and the fault was recorded before."""
    wait_until(lambda: bool(faulty.lines), "the fault", lambda: faulty.log)
    before = [rank.steps for rank in ranks]
    time.sleep(LOOKED_AT_S)  # one that does not hang makes steps meanwhile
    assert faulty.steps == before[faulty.number] == STEP, "what comes before the fault's step is done"
    assert all(rank.state for rank in ranks), "no process has ended"
    assert max(rank.steps for rank in ranks) <= STEP, (
        "what comes before the fault's step is done, and that step never ends"
    )
    assert f'"step": {STEP}, "fault": "hang", "rank": {faulty.number}, "ns": 0' in faulty.lines
    assert [bool(rank.lines) for rank in ranks] == [rank is faulty for rank in ranks]


def shown_by(short: tuple[str, ...], kinds: Iterable[str]) -> list[Any]:
    """All kinds; those that are not in `short` are long."""
    return [pytest.param(kind, marks=[] if kind in short else pytest.mark.long) for kind in kinds]


@pytest.mark.parametrize("kind", shown_by(("lock", "worker-stopped"), HANGS_ALONE))
def test_a_rank_that_hangs_waits_where_it_says(kind: str, tmp_path: Path) -> None:
    with ranks_with(f"hang,kind={kind},step={STEP}", tmp_path) as ranks:
        (rank,) = ranks
        check_hangs(ranks, rank)
        if kind != "stopped":
            waits_in(rank, WAITS_IN[kind])
        comes_to(lambda: [rank.state], [{"loop": "R", "stopped": "T"}.get(kind, "S")])
        children = rank.children
        assert bool(children) == kind.startswith(("child", "worker"))
        wanted = ["T" if kind == "worker-stopped" else "S"] * len(children)
        comes_to(lambda: [state_of(pid) for pid in children], wanted)
    assert not list(tmp_path.glob("*.fifo")), "nothing is left in the run"


@pytest.mark.parametrize("kind", shown_by(("missing-collective",), HANGS_IN_COLLECTIVE))
def test_ranks_hang_that_wait_for_each_other(kind: str, tmp_path: Path) -> None:
    with ranks_with(f"hang,kind={kind},step={STEP},rank=1", tmp_path, world_size=2) as ranks:
        check_hangs(ranks, ranks[1])
        waits_in(ranks[1], WAITS_IN[kind])
        # With another size gloo had all that it expected, and this rank waits in its next collective; else in the
        # wrong one, or where DDP sends its gradients.
        waits_in(ranks[0], "in all_reduce" if kind in HANGS_TOGETHER and kind != "other-size" else "in backward")


def test_every_kind_of_hang_is_tried_here() -> None:
    key = FAULTS["hang"].key("kind")
    assert key is not None
    assert set(key.words) == {*WAITS_IN, "stopped"} == {*HANGS_ALONE, *HANGS_IN_COLLECTIVE}


CODES = {
    "exception": 1,
    "segv": -signal.SIGSEGV,
    "abort": -signal.SIGABRT,
    "kill": -signal.SIGKILL,
    "exit": 3,
    "gone": 0,
}


@pytest.mark.parametrize("kind", shown_by(("exception", "segv"), CRASHES))
def test_a_rank_ends_as_it_says(kind: str, tmp_path: Path) -> None:
    with ranks_with(f"crash,kind={kind},step={STEP}", tmp_path) as (rank,):
        assert rank.exit_code() == CODES[kind]
        assert rank.steps == STEP
        assert f'"step": {STEP}, "fault": "crash"' in rank.lines
    assert not list(tmp_path.glob("core*"))
    if kind == "exception":
        assert "RuntimeError: this step failed" in (tmp_path / "log0").read_text()


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

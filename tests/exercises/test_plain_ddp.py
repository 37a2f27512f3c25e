"""What is wrong with a DDP training that marks nothing is named from torch.profiler's traces of its ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.analysis.summary import Summary
from harness.explain.messages import excess
from harness.measure.paths import measure_one
from tests.exercises.launching import ROOT, TIMEOUT_S, free_port
from tests.waiting import limit_s

SCRIPT = Path(__file__).with_name("plain_ddp.py")


def trained(what: str, folder: Path) -> Summary:
    """The summary of the traces of two ranks."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}"]
    folder.mkdir(exist_ok=True)
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(
        [*launcher, str(SCRIPT), what, str(folder)], cwd=ROOT, env=one_thread, check=True, timeout=limit_s(TIMEOUT_S)
    )
    return measure_one([folder])


@pytest.mark.train
@pytest.mark.long  # only on a machine that does nothing else: another program can slow a rank more
@pytest.mark.parametrize(("what", "cause"), [("sleep", "host-stall"), ("samples", "long-sequences")])
def test_a_rank_that_sleeps_or_has_more_samples_is_named(what: str, cause: str, tmp_path: Path) -> None:
    found = trained(what, tmp_path).findings
    assert "pause" not in {row.cause for row in found}
    assert (cause, 1) in {(row.cause, *row.ranks) for row in found}, found


@pytest.mark.train
@pytest.mark.parametrize(
    ("what", "said"),
    [
        *(
            pytest.param(what, said, marks=pytest.mark.long)  # tests/analysis has the same of traces that are made
            for what, said in {
                "accumulate": "Gradients are reduced in every micro-batch: 4 times per step, 17.1 MB each time",
                "norms": "52 all-reduces of 4 B are sent in each step",
                "extra": "An additional all-reduce of 16.8 MB per step comes beside the gradients' 17.1 MB",
                "buffers": "DDP broadcasts the model's buffers in each forward pass, 16.8 MB per step",
                "nothing": None,
            }.items()
        )
    ],
)
def test_what_a_model_does_not_need_to_send_is_named(what: str, said: str | None, tmp_path: Path) -> None:
    found = excess(trained(what, tmp_path))
    assert said == (None if found is None else found.what[: len(said or found.what)])

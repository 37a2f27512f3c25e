"""The operators that the exercises run on a CPU, each with the kind that a person gave it, and the largest share of a
run's time that it took. Recorded with PyTorch 2.13 from exercise 1, 2 (ZeRO-2 and 3) and 3 (tensor and pipeline
parallel), with and without mixed precision and activation checkpointing. `aten::new_empty_strided` comes only now and
then: autograd copies a gradient that something else still holds, such as Gloo's thread after an all-reduce."""

from __future__ import annotations

from pathlib import Path

from harness.analysis.summary import Summary

NOTICEABLE = 0.01  # of a run's time
LIST = Path(__file__).with_suffix(".tsv")
EXPECTED = {
    name: kind for kind, _share, name in (line.split("\t") for line in LIST.read_text(encoding="utf-8").splitlines())
}


def misplaced(run: Summary) -> list[str]:
    """Operators of a run that have another kind than the list's or stand in no list, and the whole of `other`, where
    that takes a noticeable share of the run's time.

    An operator's own share does not excuse it: a run's operators are those of the list each time, but on a busy
    machine the smallest may be interrupted and take a noticeable share.
    """
    wrong = [
        f"{k.name}: {k.kind}, {k.share:.1%}, expected {EXPECTED.get(k.name, 'a line in the list')}"
        for k in run.kernels
        if k.kind != EXPECTED.get(k.name)
    ]
    other = sum(k.share for k in run.kinds if k.kind == "other")
    return wrong + ([f"other: {other:.1%}"] if other > NOTICEABLE else [])

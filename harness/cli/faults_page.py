"""docs/faults.md, generated from the declarations: `python -m harness.cli.faults_page > docs/faults.md`."""

from __future__ import annotations

from collections.abc import Iterator

from harness.cli.launch.faults import where
from harness.common.faults import FAULTS, FaultKind

HEAD = """\
# Faults on purpose

`--fault` makes a training slow in a way that you know, so that you see what it looks like, and so that a diagnosis can
be held against the truth. It can be given several times, in exercises 1, 2 and 3:

```bash
bash slurm.sh -e 1 -g 2 --fault data-stall,ms=50
bash slurm.sh -e 2 -g 2 --fault host-stall,ms=20,in=backward,rank=1 --fault pause,ms=30,every=3
bash slurm.sh faults
bash slurm.sh faults pause
```

A run with faults is a run like any other: no range and no operator of its trace carries a fault's name. `run.json`
has the faults, and so has the run's name. A request that cannot work (a rank that is not there, a fault of another
exercise, a device on which it has no effect) is refused before anything starts.

Steps count from 0, as in the metrics; an iteration of exercise 3 is one step. `every=K` means the K-th step, the
2·K-th, and so on: steps K−1, 2·K−1, … Where a step has several micro-batches, the fault comes with the first. `rank`
counts the ranks of the whole job; `all` is every rank. A step without the phase of a fault stays as it is: there is no
optimizer's step while gradients accumulate in exercise 1, and the stages in the middle of a pipeline read no batches.

Written from `harness/common/declared_faults.py`; a test keeps it so.
"""
RECORD = """\
## How much was really injected

Each rank writes `faults/rank<R>.jsonl` beside its metrics, one line per injection:

```json
{"step": 3, "fault": "pause", "rank": 1, "ns": 50230000, "unix_ns": 1700000000000000000}
```

`ns` is measured, not what was asked: the next table says of what. A line's step is the one in which the injection
began. A sleep of 50 ms takes a little longer than 50 ms, and a pause that falls into a sleep is counted by both.

| fault | `ns` |
|---|---|"""


def page() -> str:
    """The page as Markdown: how to ask, the table of faults, the keys, and what is recorded."""
    kinds = FAULTS.values()
    lines = [HEAD, "| fault | exercise | on | what happens |", "|---|---|---|---|"]
    lines += [f"| `{kind.name}` | {' | '.join(where(kind))} | {kind.meaning} |" for kind in kinds]
    lines += ["", "## Keys", "", "| fault | key | takes | default | |", "|---|---|---|---|---|"]
    lines += [line for kind in kinds for line in _keys(kind)]
    lines += ["", RECORD, *(f"| `{kind.name}` | {kind.recorded} |" for kind in kinds if kind.recorded)]
    return "\n".join(lines) + "\n"


def _keys(kind: FaultKind) -> Iterator[str]:
    for key in kind.keys:
        default = "must be given" if key.default is None else f"`{key.default}`"
        yield f"| `{kind.name}` | `{key.name}` | {key.takes} | {default} | {key.meaning} |"


if __name__ == "__main__":
    print(page(), end="")

"""Real trainings of bench_pace.py: two ranks of tests/own/scripts/plain_ddp.py that change their pace at a known step.

From that step on a phase of one rank, or of all, sleeps for a share of the median step before. The observer writes the
steps' times, as in a job. After each step every rank multiplies the same two matrices and notes how long that took: if
it changes too, the machine has become faster or slower, as a virtual one does. The C library keeps the memory that is
freed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from own_trainings import KEEP_MEMORY, SCRIPTS, TRAININGS

from harness.analysis.summary import PaceChange
from harness.common.run_files import METRICS
from harness.measure.run_files import read_training
from harness.measure.step_times import RankStepTimes, pace_of
from tests.own.observed_trainings import start

TRAINING = TRAININGS["plain_ddp"]
PHASES = ("data", "forward", "backward")
EARLIEST, LEAST_AFTER = 40, 30  # steps
PRIORITY = -10  # other programs of the machine take turns, but rarely
_PLANTED = """
import os as _os, statistics as _statistics, time as _time
_began = {{}}
def _pause(phase):
    began = _began.setdefault(phase, [])
    began.append(_time.perf_counter())
    if phase != {phase!r} or len(began) <= {step} or {rank!r} not in (None, int(_os.environ["RANK"])):
        return
    if len(began) == {step} + 1:
        times = [b - a for a, b in zip(began[10:], began[11:])]
        _began["seconds"] = _statistics.median(times) * {size}
    _time.sleep(_began["seconds"])
"""
_WITNESS = """
import atexit as _atexit, json as _json, os as _os, time as _time
_matrices, _took = (torch.ones(128, 1024), torch.ones(1024, 256)), []
def _witness():
    began = _time.perf_counter_ns()
    torch.mm(*_matrices)
    _took.append(_time.perf_counter_ns() - began)
def _write():
    with open({file!r} + _os.environ["RANK"] + ".json", "w") as file:
        _json.dump(_took, file)
_atexit.register(_write)
"""
_AROUND = 20  # steps of a median
_CHANGED = (
    ('    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, int]]:\n', '        _pause("data")\n'),
    ('    def forward(self, images: Tensor) -> Tensor:\n', '        _pause("forward")\n'),
    ('        x = torch.relu(self.hidden(x))\n', '        x.register_hook(lambda gradient: _pause("backward"))\n'),
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One training. step: None in a steady one. size: of the median step before. rank: None for all ranks."""

    number: int
    steps: int
    step: int | None = None
    phase: str = ""
    rank: int | None = None
    size: float = 0.0

    @property
    def name(self) -> str:
        """Of its folder."""
        who = "all" if self.rank is None else f"rank{self.rank}"
        kind = "steady" if self.step is None else f"{self.phase}-{who}-step{self.step}-{self.size:.0%}"
        return f"{self.number}-{kind}-of{self.steps}"


def drawn_run(number: int, seed: int, *, steady: bool) -> Run:
    """The same for the same numbers. A third of the changes is on all ranks."""
    dice = random.Random(f"{seed} {number} {steady}")
    steps = dice.randint(150, 300)
    if steady:
        return Run(number, steps)
    rank = dice.choice([None, 0, 1])
    step = dice.randint(EARLIEST, steps - LEAST_AFTER)
    return Run(number, steps, step, dice.choice(PHASES), rank, dice.uniform(0.1, 0.6))


def machine_ratio(folder: Path, change: PaceChange) -> float:
    """How much longer the same work took after a change than before it: the median over its ranks."""
    ratios = []
    for rank in change.ranks:
        took = json.loads((folder / f"machine{rank}.json").read_text(encoding="utf-8"))
        before = statistics.median(took[max(0, change.step - _AROUND) : change.step])
        ratios.append(statistics.median(took[change.step : change.step + _AROUND]) / before)
    return float(statistics.median(ratios))


def made(run: Run, out: Path, batch_size: int) -> list[PaceChange]:
    """What was found of a run, which is made if it is not there."""
    folder = out / run.name
    file = folder / "run.json"
    if not file.exists():
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(SCRIPTS, folder / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
        _change(folder / "scripts" / "plain_ddp.py", run)
        options = ["--steps", str(run.steps), "--batch-size", str(batch_size)]
        os.environ.update(KEEP_MEMORY)
        running = start(TRAINING, folder, options, asked={"profiler": "none"}, scripts=folder / "scripts")
        with suppress(OSError):  # its session is a group of the scheduler
            Path(f"/proc/{running.process.pid}/autogroup").write_text(str(PRIORITY), encoding="utf-8")
        running.ended()
        file.write_text(json.dumps(asdict(run)), encoding="utf-8")
    times = RankStepTimes()
    read_training([METRICS.path(folder, rank) for rank in range(TRAINING.ranks)], times)
    return pace_of(times)[0]


def _change(file: Path, run: Run) -> None:
    """The training loads its data itself, so that the step of a slow batch is known, and sleeps as the run asks."""
    text = file.read_text(encoding="utf-8")
    text = text.replace('num_workers=1, multiprocessing_context="fork"', "num_workers=0")
    code = _WITNESS.format(file=str(file.parent.parent / "machine"))
    changed = [("        watch.step_done()\n", "        _witness()\n")]
    if run.step is not None:
        code += _PLANTED.format(phase=run.phase, step=run.step, rank=run.rank, size=run.size)
        changed += _CHANGED
    for line, more in changed:
        if line not in text:
            raise LookupError(line)
        text = text.replace(line, line + more)
    text = text.replace("\n\nclass Images", f"\n{code}\n\nclass Images", 1)
    file.write_text(text, encoding="utf-8")

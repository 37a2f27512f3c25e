"""Runs of bench_own.py: a training with or without a planted stall, under `slurm.sh run`, and judged.

Each case keeps its folder, and a later start takes what is there:

    OUT/CASE/scripts/      the changed copy of tests/own/scripts
    OUT/CASE/ours.json     what `slurm.sh report --json` said, and what was true
    OUT/CASE/alone.json    the training's own times with nothing beside it (healthy cases)
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from own_trainings import SCRIPTS, TRAININGS
from plant_stalls import Plant, plant_into

from harness.common.run_folder.run_files import METRICS
from tests.exercises.launching import ROOT, free_port
from tests.own.observed_trainings import PLAIN, Ended

STEPS, ACTIVE, FIRST = 60, 13, 8  # all; those that are profiled; those at the start that no time counts
LARGE_FILE_BYTES = 1 << 26
TIMEOUT_S = 300
Said = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One training. plant: None in a healthy run. number: of the healthy runs of this training."""

    training: str
    plant: Plant | None
    number: int = 0

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.training}-healthy{self.number}" if self.plant is None else self.plant.name

    @property
    def ranks(self) -> list[int]:
        """The ranks that stall."""
        everyone = list(range(TRAININGS[self.training].ranks))
        return everyone if self.plant is None or self.plant.rank is None else [self.plant.rank]


class Bench:
    """A folder of cases, and the site at which they run."""

    def __init__(self, out: Path, site: str) -> None:
        self.out, self.site = out.resolve(), site
        self.out.mkdir(parents=True, exist_ok=True)
        self._large_file = self.out / "large-file"
        if not self._large_file.exists():
            self._large_file.write_bytes(os.urandom(LARGE_FILE_BYTES))

    def kept(self, case: Case, name: str, make: Callable[[Case], Said]) -> Said:
        """What an earlier start wrote, else what `make` gives. A run that fails is told as such."""
        file = self.out / case.name / f"{name}.json"
        if file.exists():
            return dict(json.loads(file.read_text(encoding="utf-8")))
        try:
            said = make(case)
        except (AssertionError, OSError, ValueError, LookupError, subprocess.TimeoutExpired) as error:
            said = {"failed": f"{type(error).__name__}: {error}"[-2000:]}
        if "failed" not in said:
            file.write_text(json.dumps(said, indent=1), encoding="utf-8")
        return said

    # -- the runs ------------------------------------------------------------------------------------------------------

    def ours(self, case: Case) -> Said:
        """`slurm.sh run`, then `slurm.sh report`."""
        scripts = self._copy(case, "ours")
        training = TRAININGS[case.training]
        flags = ["-n", "1", "-g", str(training.ranks), "--profiler", "torch", "--active-steps", str(ACTIVE)]
        launch = [*flags, "--site", self.site, "--launcher", training.launcher, "--python", sys.executable]
        slurm = ["bash", str(ROOT / "slurm.sh")]
        output_of(
            [*slurm, "run", *launch, "--", *training.words, *self._options(case, "ours")], scripts, training.environment
        )
        (run,) = (scripts / "runs/own/profiler").iterdir()
        summary = json.loads(output_of([*slurm, "report", str(run), "--json"], scripts, training.environment))
        lines = [steps_of(METRICS.path(run, rank)) for rank in range(training.ranks)]
        shutil.rmtree(run / "torch", ignore_errors=True)  # large, and read already
        active = [[line["step_ns"] for line in own if line["phase"] == "active"] for own in lines]
        outside = [line["step"] for line in lines[0] if line["phase"] in ("skip", "after")]
        return {
            "findings": summary["findings"],
            "step_ns": summary["replay"]["step_ns"] if summary.get("replay") else None,
            "problems": summary["quality"]["problems"],
            "active_step_ns": max(median(own) for own in active),
            "planted_ns": self._planted_ns(case, lines),
            **self._measured(case, "ours", outside),
        }

    def alone(self, case: Case) -> Said:
        """The training with nothing beside it."""
        scripts = self._copy(case, "alone")
        training = TRAININGS[case.training]
        output_of(training.command(self._options(case, "alone"), free_port()), scripts, training.environment)
        return self._measured(case, "alone", range(STEPS))

    # -- what was true -------------------------------------------------------------------------------------------------

    def _copy(self, case: Case, arm: str) -> Path:
        """The scripts, changed for this case; the records of earlier tries are gone."""
        folder = self.out / case.name / arm
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(SCRIPTS, folder / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
        if case.plant is not None:
            plant_into(folder / "scripts", case.plant, folder / "stalls", self._large_file)
        return folder / "scripts"

    def _options(self, case: Case, arm: str) -> list[str]:
        return ["--steps", str(STEPS), "--truth", str(self.out / case.name / arm / "truth")]

    def _measured(self, case: Case, arm: str, steps: Sequence[int]) -> Said:
        """By the training itself: the median of these steps on the slowest rank, and the mean of what it loads."""
        ended = Ended(TRAININGS[case.training], self.out / case.name / arm, "")
        truths = [ended.truth(rank) for rank in ended.ranks]
        counted = [step for step in steps if step >= FIRST]
        ends = [truth["step_end_unix_ns"] for truth in truths]
        loading = [fmean(truth["data_ns"][FIRST:]) for truth in truths if truth["data_ns"] is not None]
        return {
            "own_step_ns": max(median(own[step] - own[step - 1] for step in counted) for own in ends),
            "own_data_ns": max(loading, default=None),
        }

    def _planted_ns(self, case: Case, lines: Sequence[Sequence[Said]]) -> float | None:
        """What the stalls took per step, in the profiled steps without the first: on the rank that lost most. Of each
        collective, what it took on the rank that came last, which did not wait for the others."""
        if case.plant is None:
            return None
        counted = [[line for line in lines[rank] if line["phase"] == "active"][1:] for rank in case.ranks]
        stalls = [
            stalls_ns(self.out / case.name / f"ours/stalls.rank{rank}", own)
            for rank, own in zip(case.ranks, counted, strict=True)
        ]
        if case.plant.kind == "all-reduce":
            stalls = [[min(each) for each in zip(*stalls, strict=False)]]
        return max(sum(own) for own in stalls) / len(counted[0])


def steps_of(file: Path) -> list[Said]:
    """The lines of a rank's steps."""
    lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line["event"] == "step"]


def stalls_ns(file: Path, steps: Sequence[Said]) -> list[int]:
    """Each stall of a rank that ended in these steps, as its record has it."""
    begin, end = steps[0]["unix_ns"], steps[-1]["unix_ns"] + steps[-1]["step_ns"]
    stalls = [tuple(map(int, line.split())) for line in file.read_text(encoding="utf-8").splitlines()]
    return [spent for at, spent in stalls if begin <= at <= end]


def output_of(argv: Sequence[str], folder: Path, variables: Iterable[tuple[str, str]]) -> str:
    """Standard output of a program. Raises AssertionError: it failed."""
    environment = {**os.environ, **PLAIN, **dict(variables)}
    for name in ("PYTHONPATH", "HARNESS_RUNS"):
        environment.pop(name, None)
    done = subprocess.run(
        argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{' '.join(argv)}: {done.returncode}\n{done.stdout[-1000:]}{done.stderr[-1000:]}"
    return done.stdout


def described(case: Case) -> Mapping[str, Any]:
    """The case as it is written down."""
    return {"name": case.name, **asdict(case)}

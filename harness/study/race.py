"""The race of exercise 1: what a run of it trained, whether that is the race's training, and the ladder of the attempts
on disk. Neither launches nor prints."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from hashlib import sha256
from itertools import islice
from math import nan
from pathlib import Path
from statistics import geometric_mean, median
from typing import NamedTuple

from harness.analysis.metrics import metrics_by_name
from harness.analysis.summary import Summary
from harness.common.display.format import amount
from harness.common.display.text import how_many
from harness.common.paths import ROOT
from harness.common.run_folder.run_files import METRICS, RECORD
from harness.experiment.exercises import OwnTraining
from harness.run import Run, all_runs
from harness.study.check.series import ARMS, Launches
from harness.study.series.runs import MeasuredRun, measured

START, SOLVED = (ROOT / "exercises" / "exercise_1_DDP" / name for name in ("race.py", "race_solved.py"))
METRIC = "mean_step_ns"  # a checkpoint in each third step does not change the median
FLAGS = "--active-steps", "21", "--time", "00:10:00"  # steps: a multiple of the period of the checkpoints
# Of a loss. On a CPU equal runs have equal losses, and honest changes differ by at most 3e-6 (torch.compile); messages
# in fp16 differ by 9e-5, a learning rate by 1 % or a sample used twice by 2e-3.
LOSS_BOUND = 2e-5
_PREFIX = "race-"


class Trained(NamedTuple):
    """What a run trained, as the harness recorded it. steps: of the rank that has fewest. samples: of all ranks, in
    each step. losses: by step and rank; none are read on a GPU. sent_bytes: all-reduced by a rank in a step."""

    ranks: int
    steps: int
    parameters: int | None
    samples: list[int]
    losses: dict[tuple[int, int], float]
    sent_bytes: float

    @property
    def batch(self) -> float:
        """Samples of a usual step: a script that loads ahead takes two batches in its first one."""
        return median(self.samples or [0])


def trained(run: Run, summary: Summary) -> Trained:
    """What the run trained, from its metrics and its recording."""
    ranks = [list(METRICS.known_objects(path)) for path in METRICS.paths(run.path)]
    steps = [[line for line in lines if line.get("event") == "step"] for lines in ranks]
    losses = {(line["step"], rank): line.get("loss") for rank, lines in enumerate(steps) for line in lines}
    numbers = metrics_by_name(summary)
    return Trained(
        ranks=len(ranks),
        steps=min(map(len, steps), default=0),
        parameters=next((each.parameters for each in summary.training), None),
        samples=[sum(line.get("samples") or 0 for line in of_ranks) for of_ranks in zip(*steps, strict=False)],
        losses={place: loss for place, loss in losses.items() if loss is not None},
        sent_bytes=numbers.get("all_reduce_bytes") or numbers.get("all_reduce_least_bytes") or 0.0,
    )


def differences(file: str, own: Trained, race: Trained) -> Iterator[str]:
    """A sentence for each way in which a run of the file is not the race's training."""
    if own.ranks != race.ranks:
        yield f"{file} trains on {how_many(own.ranks, 'rank')}, and the race on {race.ranks}: let each rank train."
    if own.steps != race.steps:
        yield f"{file} trains {how_many(own.steps, 'step')}, and the race has {race.steps}: train the same steps."
    if own.parameters != race.parameters:
        yield (
            f"{file} trains {'an unknown number of' if own.parameters is None else format(own.parameters, ',')} "
            f"parameters, and the race {race.parameters or 0:,}: keep the model."
        )
    samples, asked = sum(own.samples), sum(race.samples)
    if samples < asked or own.batch != race.batch:
        yield (
            f"{file} takes {own.batch:,.0f} samples in a step and {samples:,} in all, and the race {race.batch:,.0f} "
            f"and {asked:,}: train the same samples in the same batches."
        )
    places = sorted(place for place in race.losses if place[0] < own.steps and place[1] < own.ranks)
    other = (place for place in places if not abs(own.losses.get(place, nan) / race.losses[place] - 1) <= LOSS_BOUND)
    for step, rank in islice(other, 1):
        has = f"the loss {own.losses[step, rank]:.6f}" if (step, rank) in own.losses else "no recorded loss"
        yield (
            f"{file} has {has} in step {step} on rank {rank}, and the race {race.losses[step, rank]:.6f}: keep the "
            "data, their order, the numbers, and backward from the loss itself."
        )
    needed = 4 * (race.parameters or 0)  # bytes of float32
    if own.sent_bytes < needed <= race.sent_bytes:
        yield (
            f"{file} all-reduces {amount(own.sent_bytes)} on each rank in a step, and the gradients of "
            f"{race.parameters:,} parameters need {amount(needed)}: let DDP send all of them, in float32."
        )


def same_training(file: str, own: Trained) -> str:
    """What was compared, in words."""
    losses = f"losses equal within {LOSS_BOUND:g} of them" if own.losses else "losses not compared: none were recorded"
    return (
        f"{file} is the same training: {how_many(own.ranks, 'rank')}, {own.steps} steps, {own.parameters or 0:,} "
        f"parameters, {own.batch:,.0f} samples a step, {amount(own.sent_bytes)} all-reduced a step, {losses}."
    )


def series_of(launches: Launches, again: bool) -> str:
    """The name of the runs of these files as they are now: the same attempt continues where it was left. again: it is
    measured once more."""
    asked = [
        (one.experiment.model_dump_json(), one.site.name, file_of(one.experiment).read_bytes())
        for one in launches.values()
    ]
    name = _PREFIX + sha256(repr(asked).encode()).hexdigest()[:12]
    made = {run.record.part for run in all_runs() if f'"{name}' in (run.known(RECORD) or "")}
    return f"{name}-{max(len({part.series for part in made if part}) + again, 1)}"


def file_of(experiment: object) -> Path:
    """The script of a run or launch."""
    return Path(experiment.start_in, experiment.program) if isinstance(experiment, OwnTraining) else Path()


class Rung(NamedTuple):
    """An attempt that is the race's training. run: its newest. target_ns: measured beside it. start_ratio: of
    race.py's step to the target beside it; None: it was not measured."""

    file: str
    run: str
    step_ns: float
    runs: int
    target_ns: float
    start_ratio: float | None = None

    @property
    def way(self) -> float | None:
        """The share of the way from race.py to the target; of ratios, since the machine may be busier than it was."""
        return self.start_ratio and (self.start_ratio - self.step_ns / self.target_ns) / (self.start_ratio - 1)


def ladder(site: str, ranks: int) -> list[Rung]:
    """The attempts at the site with so many ranks, the fastest first; race.py is one of them."""
    of_series: dict[str, list[Run]] = defaultdict(list)
    for run in all_runs():
        if f'"{_PREFIX}' in (run.known(RECORD) or ""):  # a thousand records take seconds to validate
            record, own = run.record, run.status()
            if record.part and record.site.name == site and own is not None and own.state == "completed":
                of_series[record.part.series].append(run)
    rungs = [rung for runs in of_series.values() for rung in _rung(measured(runs)[0], ranks)]
    ratio = next((rung.step_ns / rung.target_ns for rung in reversed(rungs) if rung.file == str(START)), None)
    return sorted((rung._replace(start_ratio=ratio) for rung in rungs), key=lambda rung: rung.step_ns / rung.target_ns)


def _rung(runs: list[MeasuredRun], ranks: int) -> Iterator[Rung]:
    """The attempt that a series is, if it has both arms and is the same training."""
    target, own = ([each for each in runs if each.slot.key == arm and METRIC in each.metrics] for arm in ARMS)
    if target and own:
        asked = trained(target[0].run, target[0].summary)
        file = str(file_of(own[0].run.record.experiment))
        others = (said for each in own for said in differences(file, trained(each.run, each.summary), asked))
        if asked.ranks == ranks and not any(others):
            step_ns, target_ns = (geometric_mean(each.metrics[METRIC] for each in arm) for arm in (own, target))
            yield Rung(file, own[-1].run.job_id, step_ns, len(own), target_ns)

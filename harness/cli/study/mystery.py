"""`slurm.sh lesson mystery`: start a training with hidden faults, and find its other parts."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from harness.cli.options import Behaviour, run_names
from harness.cli.words import CommandLine
from harness.common.errors import RequestError, nearest_or_list
from harness.common.paths import COMMAND, PROGRAM
from harness.common.whole_number import MOST_DIGITS
from harness.experiment.exercises import Megatron, Training
from harness.run import Run, find_run
from harness.run.mystery import MysteryAnswer, read_answer
from harness.study import mysteries

if TYPE_CHECKING:
    from harness.common.faults.fault import Fault
    from harness.experiment.base import Experiment

REFUSED = {
    "--fault": "a mystery draws its own faults",
    "--script": "a mystery runs the exercise's own script",
    "--no-profile": "the cause is found in a trace",
}


def mystery(
    line: CommandLine,
    *,
    level: Annotated[
        Literal["1", "2"], typer.Option(help="1: the cause is on all ranks; 2: on one rank or in every k-th step")
    ] = "1",
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=10**MOST_DIGITS - 1, help="the same number draws the same mystery; default: random"),
    ] = None,
    behaviour: Behaviour,
) -> int:
    """Start a training that is slow for a hidden reason, with the flags of a launch: lesson mystery -e EXERCISE. You
    find the cause in its report, page and trace. Its parts: answer, reveal."""
    from harness.cli.launch.launch import go, request_of
    from harness.launch.submit import prepare

    if not line.argv:
        raise RequestError(f"mystery: to start one, begin with -e 1, as in {COMMAND} lesson mystery -e 1")
    if line.words:
        raise RequestError(_no_part(line.words[0]))
    launch = _of_launch(line)
    experiment, choice = request_of(launch)
    training = _training(experiment)
    job = prepare(training, choice.site).job
    resolved = _training(job.experiment)
    place = mysteries.place_of(resolved, job.device, job.model)
    drawn_by = secrets.randbits(59) if seed is None else seed
    asked: mysteries.Level = 1 if level == "1" else 2
    hidden = mysteries.with_mystery(training, asked, mysteries.draw(drawn_by, asked, place), resolved)
    return go(hidden, choice, behaviour, [PROGRAM, "lesson", "mystery", *line.argv])


def _no_part(word: str) -> str:
    hint = nearest_or_list(word, ("answer", "reveal"), f"{COMMAND} help lesson mystery lists all")
    return f"mystery: there is no part {word!r}{hint}; to start a mystery, begin with -e 1"


def _of_launch(line: CommandLine) -> CommandLine:
    """Raises RequestError: a flag does not go with a mystery."""
    given: dict[str, Any] = dict(line.given)
    if given.get("--profiler") == "none":
        given["--no-profile"] = True
    wrong = [f"{name}: {why}: drop it" for name, why in REFUSED.items() if name in given]
    if wrong:
        raise RequestError("\n".join(wrong))
    return line._replace(given=given)


def _training(experiment: Experiment) -> Training:
    """Raises RequestError: the exercise trains nothing, or not by our own script."""
    if not isinstance(experiment, Training):
        raise RequestError(f"-e {experiment.exercise}: a mystery is a training: use -e 1, -e 2 or -e 3")
    if isinstance(experiment, Megatron) and experiment.uses_megatron_lm:
        raise RequestError("--engine megatron-lm: a mystery needs the harness's own training scripts: drop it")
    return experiment


RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", autocompletion=run_names, help="job id, name, path of a mystery's run, or last")
]


class MysteryRun(NamedTuple):
    """A mystery's run, with what an answer is compared with. answer: None: it has none."""

    run: Run
    experiment: Training
    level: int
    faults: tuple[Fault, ...]
    answer: MysteryAnswer | None

    @property
    def world_size(self) -> int:
        return self.experiment.world_size or 1

    @property
    def is_right(self) -> bool | None:
        """Whether the answer is right; None: there is none."""
        return None if self.answer is None else mysteries.is_right(self.answer, self.faults, self.world_size)


def asked_of(token: str) -> MysteryRun:
    run = find_run(token)
    experiment = run.record.experiment
    if not isinstance(experiment, Training) or experiment.mystery is None:
        raise RequestError(f"RUN: {run.job_id} is not a mystery: start one with {COMMAND} lesson mystery -e 1")
    faults = mysteries.faults_of(experiment.mystery)
    return MysteryRun(run, experiment, experiment.mystery.level, faults, read_answer(run.path))

"""`slurm.sh lesson mystery`: start a training with hidden faults, and find its other parts."""

from __future__ import annotations

import secrets
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from harness.cli.help import HelpPage, as_text, flag_rows, of_function
from harness.cli.parser import BEHAVIOUR, CommandLine, DeclaredParameter, by_spelling, declared, read_line, run_command
from harness.common.display.format import cut
from harness.common.errors import RequestError, nearest, nearest_or_list
from harness.common.paths import COMMAND, PROGRAM
from harness.common.whole_number import MOST_DIGITS, whole_number
from harness.experiment.exercises import Megatron, Training
from harness.run import Run, find_run
from harness.run.mystery import MysteryAnswer, read_answer
from harness.study import mysteries

if TYPE_CHECKING:
    from harness.common.faults.fault import Fault
    from harness.experiment.base import Experiment

_REVEAL = "harness.cli.study.mystery_reveal"
PARTS = {
    "answer": (f"{_REVEAL}:answer_command", "RUN --cause C: name the cause, once"),
    "reveal": (f"{_REVEAL}:reveal_command", "RUN: end it; show the cause, and the diagnosis"),
}
_DOCS = "docs/faults.md"
LEVEL = "1: the cause is on all ranks; 2: on one rank or in every k-th step [1]"
SEED = "the same number draws the same mystery; default: random"
OWN = (DeclaredParameter(("--level",), "1|2", LEVEL), DeclaredParameter(("--seed",), "N", SEED))
REFUSED = {
    "--fault": "a mystery draws its own faults",
    "--script": "a mystery runs the exercise's own script",
    "--no-profile": "the cause is found in a trace",
}


def mystery(arguments: list[str]) -> int:
    """Start a mystery, or one of its parts; returns the exit code."""
    if arguments and arguments[0] in PARTS:
        return run_command(f"lesson mystery {arguments[0]}", resolve_name(PARTS[arguments[0]][0]), arguments[1:])
    if not arguments:
        print(page(arguments))
        return 0
    if arguments[0].startswith("-"):
        return _start(arguments)
    raise RequestError(_no_part(arguments[0]))


def page(arguments: list[str]) -> str:
    """The help page, or that of the part that is the second word."""
    part = arguments[1] if len(arguments) > 1 else ""
    if part in PARTS:
        return as_text(of_function(f"lesson mystery {part}", resolve_name(PARTS[part][0]), docs=_DOCS))
    if nearest(part, PARTS):
        raise RequestError(_no_part(part))
    parts = [f"lesson mystery {name} {text}" for name, (_, text) in PARTS.items()]
    flags = flag_rows([*OWN, *(each for each in BEHAVIOUR if "-h" not in each.names)])
    return as_text(
        HelpPage(
            usage=["lesson mystery -e EXERCISE [--level 1|2] [--seed N] [FLAGS OF A LAUNCH]", *parts],
            about="A training that is slow for a hidden reason. You find the cause in its report, page and trace.",
            flags=flags,
            examples=[
                ("lesson mystery -e 1", "start one"),
                ("lesson mystery answer last --cause pause --rank 1", "answer with the cause and its rank"),
                ("lesson mystery reveal last", "the cause, and the diagnosis of the harness"),
            ],
            docs=_DOCS,
        )
    )


def _no_part(word: str) -> str:
    hint = nearest_or_list(word, PARTS, f"{COMMAND} help lesson mystery lists all")
    return f"mystery: there is no part {word!r}{hint}; to start a mystery, begin with -e 1"


def _start(arguments: list[str]) -> int:
    from harness.cli.launch.launch import behaviour_of, go, request_of
    from harness.launch.submit import prepare

    line = read_line(arguments, declared() | by_spelling(OWN))
    level, seed = _own(line)
    launch = _of_launch(line)
    experiment, choice = request_of(launch, [name for own in OWN for name in own.names])
    training = _training(experiment)
    job = prepare(training, choice.site).job
    resolved = _training(job.experiment)
    place = mysteries.place_of(resolved, job.device, job.model)
    hidden = mysteries.with_mystery(training, level, mysteries.draw(seed, level, place), resolved)
    return go(hidden, choice, behaviour_of(launch), [PROGRAM, "lesson", "mystery", *arguments])


def _own(line: CommandLine) -> tuple[mysteries.Level, int]:
    """Level and seed. Raises RequestError: a flag of the mystery has a value that it does not take."""
    level, seed = str(line.given.get("--level", "1")), line.given.get("--seed")
    if level not in ("1", "2"):
        raise RequestError(f"--level takes 1 or 2, not {level!r} ({LEVEL})")
    drawn_by = secrets.randbits(59) if seed is None else whole_number(str(seed))
    if drawn_by is None:
        raise RequestError(
            f"--seed takes a whole number ≥ 0 of at most {MOST_DIGITS} digits, not {cut(str(seed), 40)!r}"
        )
    return (1 if level == "1" else 2), drawn_by


def _of_launch(line: CommandLine) -> CommandLine:
    """The line without the mystery's own flags. Raises RequestError: a flag does not go with a mystery."""
    given: dict[str, Any] = dict(line.given)
    for own in OWN:
        given.pop(own.names[0], None)
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


RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="job id, name, path of a mystery's run, or last")]


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

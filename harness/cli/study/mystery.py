"""`slurm.sh lesson mystery`: start a training with hidden faults, show the answers so far, and find its other parts."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from harness.cli.help import HelpPage, as_text, flag_rows, of_function
from harness.cli.parser import BEHAVIOUR, CommandLine, DeclaredParameter, by_spelling, declared, read_line, run_command
from harness.common.errors import RequestError, nearest, nearest_or_list
from harness.common.paths import COMMAND, PROGRAM
from harness.experiment.exercises import Megatron, Training
from harness.run import Run, find_run
from harness.run.mystery import AnswerLine, MysteryAnswer, answers_file, before_reveal, read_answers
from harness.study import mysteries
from harness.study.mystery_grades import MysteryResult, result

if TYPE_CHECKING:
    from harness.common.faults import Fault
    from harness.experiment.base import Experiment
    from harness.experiment.training import Mystery, Training

_REVEAL = "harness.cli.study.mystery_reveal"
PARTS = {
    "answer": (f"{_REVEAL}:answer_command", "RUN --cause C --ms T: name the cause; get points and hints"),
    "reveal": (f"{_REVEAL}:reveal_command", "RUN: end it; show the cause, and the step without it"),
    "class": (f"{_REVEAL}:class_command", "FILE|FOLDER…: the points of all students, for the instructor"),
}
_DOCS = "docs/faults.md"
LEVEL = "1: the cause is on all ranks; 2: on one rank or in every k-th step [1]"
SEED = "the same number draws the same mystery; default: random"
KIND = "what it is: slow, hang or crash [slow]"
OWN = (
    DeclaredParameter(("--kind",), "slow|hang|crash", KIND),
    DeclaredParameter(("--level",), "1|2", LEVEL),
    DeclaredParameter(("--seed",), "N", SEED),
)
NEXT = f"{COMMAND} lesson mystery answer RUN --cause … --ms … · {COMMAND} lesson mystery reveal RUN"
SUBJECTS = ("slow", "hang", "crash")
MOST_DIGITS = 1000  # of a seed; Python reads no number of 5,000
NEXT_OF_ENDING = NEXT.replace("--ms …", "--rank … --step …")
REFUSED = {"--fault": "a mystery draws its own faults", "--script": "a mystery runs the exercise's own script"}
UNTRACED = "--no-profile"


def mystery(arguments: list[str]) -> int:
    """Start a mystery, or one of its parts; returns the exit code."""
    if arguments and arguments[0] in PARTS:
        return run_command(f"lesson mystery {arguments[0]}", resolve_name(PARTS[arguments[0]][0]), arguments[1:])
    if not arguments:
        print(page(arguments))
        return 0
    if arguments[0].startswith("-"):
        return _start(arguments)
    if (arguments[0] != "last" and nearest(arguments[0], PARTS)) or len(arguments) > 1:
        raise RequestError(_no_part(arguments[0]))
    return _show(arguments[0])


def _show(token: str) -> int:
    asked = asked_of(token)
    level = asked.mystery.level
    text = mysteries.level_text(mysteries.subject_of(asked.faults), level)
    print(f"{asked.run.job_id}: a mystery of level {level}: {text}")
    following = NEXT_OF_ENDING if asked.ends else NEXT
    print("\n".join([*asked.answer_lines(), f"next: {following.replace('RUN', asked.run.job_id)}"]))
    return 0


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
            usage=[
                "lesson mystery -e EXERCISE [--kind K] [--level 1|2] [--seed N] [FLAGS OF A LAUNCH]",
                *parts,
                "lesson mystery RUN: the answers so far",
            ],
            about="A training that is slow for a hidden reason, or hangs or dies. You find the cause in its report, "
            "page and trace, or in its status and logs.",
            flags=flags,
            examples=[
                ("lesson mystery -e 1", "start one"),
                ("lesson mystery answer last --cause data-stall --ms 20", "answer with the cause"),
                ("lesson mystery -e 1 -g 2 --kind hang", "start one that hangs"),
                ("lesson mystery answer last --cause lock --rank 1 --step 5", "answer why, on which rank and when"),
                ("lesson mystery reveal last", "the cause, and the step time without the faults"),
            ],
            docs=_DOCS,
        )
    )


def _no_part(word: str) -> str:
    hint = nearest_or_list(word, PARTS, f"{PROGRAM} help lesson mystery lists all")
    return f"mystery: there is no part {word!r}{hint}; to start a mystery, begin with -e 1"


def _start(arguments: list[str]) -> int:
    from harness.cli.launch.launch import behaviour_of, go, request_of
    from harness.launch.submit import prepare

    line = read_line(arguments, declared() | by_spelling(OWN))
    level, seed, subject = _own(line)
    launch = _of_launch(line, subject)
    experiment, choice = request_of(launch, [name for own in OWN for name in own.names])
    training = _training(experiment)
    job = prepare(training, choice.site).job
    resolved = _training(job.experiment)
    place = mysteries.place_of(resolved, job.device, job.model)
    faults = (
        mysteries.draw(seed, level, place) if subject == "slow" else mysteries.draw_ending(seed, level, subject, place)
    )
    hidden = mysteries.with_mystery(training, level, faults, resolved)
    return go(hidden, choice, behaviour_of(launch), [PROGRAM, "lesson", "mystery", *arguments])


def _own(line: CommandLine) -> tuple[mysteries.Level, int, mysteries.Subject]:
    """Level, seed and kind. Raises RequestError: a flag of the mystery has a value that it does not take."""
    level, seed = str(line.given.get("--level", "1")), line.given.get("--seed")
    subject = str(line.given.get("--kind", "slow"))
    if subject not in SUBJECTS:
        hint = nearest_or_list(subject, SUBJECTS, "slow is the default")
        raise RequestError(f"--kind takes {', '.join(SUBJECTS[:-1])} or {SUBJECTS[-1]}, not {subject!r}{hint}")
    if level not in ("1", "2"):
        raise RequestError(f"--level takes 1 or 2, not {level!r} ({LEVEL})")
    if seed is not None and not (isinstance(seed, str) and seed.isascii() and seed.isdigit()):
        raise RequestError(f"--seed takes a whole number ≥ 0, not {seed!r}")
    if seed is not None and len(seed) > MOST_DIGITS:
        raise RequestError(f"--seed takes a whole number of at most {MOST_DIGITS} digits, not of {len(seed)}")
    drawn_by = secrets.randbits(64) if seed is None else int(seed)
    return int(level), drawn_by, subject  # type: ignore[return-value]  # both were checked


def _of_launch(line: CommandLine, subject: mysteries.Subject) -> CommandLine:
    """The line without the mystery's own flags. Raises RequestError: a flag does not go with a mystery."""
    given: dict[str, Any] = dict(line.given)
    for own in OWN:
        given.pop(own.names[0], None)
    if given.get("--profiler") == "none":
        given["--no-profile"] = True
    wrong = [f"{name}: {why}: drop it" for name, why in REFUSED.items() if name in given]
    if subject == "slow" and UNTRACED in given:
        wrong.append(f"{UNTRACED}: the cause is found in a trace: drop it")
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
RunFlag = Annotated[
    bool | None,
    typer.Option("--run/--no-run", help="start the run without the faults, or not [here: yes; on a cluster it asks]"),
]


class GradedMystery(NamedTuple):
    """A mystery's run, with all that grading needs."""

    run: Run
    experiment: Training
    mystery: Mystery
    faults: tuple[Fault, ...]
    world_size: int

    @property
    def answers(self) -> list[MysteryAnswer]:
        lines = before_reveal(read_answers(answers_file(self.run.path)))
        return [line.answer for line in lines if line.answer is not None]

    @property
    def ends(self) -> bool:
        return mysteries.subject_of(self.faults) != "slow"

    @property
    def result(self) -> MysteryResult:
        return result(self.faults, self.answers, self.world_size)

    def answer_lines(self) -> Iterator[str]:
        for number, said in enumerate(self.answers, 1):
            ranks = "all" if said.ranks is None else ",".join(map(str, said.ranks))
            words = [f"--ms {said.ms:g}"] if said.ms is not None else []
            words += [f"--rank {ranks}"]
            words += [f"--every {said.every}"] if not self.ends else []
            words += [f"--step {said.step}"] if said.step is not None else []
            words += [f"--phase {said.phase}"] if said.phase else []
            yield f"  answer {number}: {said.cause} {' '.join(words)}"

    def line(self, answer: MysteryAnswer | None) -> AnswerLine:
        return AnswerLine(
            unix_ns=time.time_ns(),
            student=self.run.record.user,
            run=self.run.name,
            exercise=self.experiment.exercise,
            world_size=self.world_size,
            mystery=self.mystery,
            please_do_not_look=self.mystery.faults,
            answer=answer,
        )


def asked_of(token: str) -> GradedMystery:
    run = find_run(token)
    experiment = run.record.experiment
    if not isinstance(experiment, Training) or experiment.mystery is None:
        raise RequestError(f"RUN: {run.job_id} is not a mystery: start one with {PROGRAM} lesson mystery -e 1")
    faults = mysteries.faults_of(experiment.mystery)
    return GradedMystery(run, experiment, experiment.mystery, faults, experiment.world_size or 1)

"""A mystery's run with all that grading needs, and the arguments that its parts share."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from harness.common.errors import RequestError
from harness.run import Run, find_run
from harness.run.mystery import Answer, AnswerLine, answers_file, before_reveal, read_answers

if TYPE_CHECKING:
    from harness.common.faults import Fault
    from harness.experiment.training import Mystery, Training
    from harness.study.mystery_grades import Result

RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="job id, name, path of a mystery's run, or last")
]
RunFlag = Annotated[
    bool | None,
    typer.Option(
        "--run/--no-run",
        help="start the training without the faults, or not (default: yes on this machine; on a cluster it asks)",
        show_default=False,
    ),
]


class GradedMystery(NamedTuple):
    """A mystery's run, with all that grading needs."""

    run: Run
    experiment: Training
    mystery: Mystery
    faults: tuple[Fault, ...]
    world_size: int

    @property
    def answers(self) -> list[Answer]:
        """The answers that count, oldest first."""
        lines = before_reveal(read_answers(answers_file(self.run.path)))
        return [line.answer for line in lines if line.answer is not None]

    @property
    def ends(self) -> bool:
        """Whether it hangs or dies, and is not only slow."""
        from harness.study.mysteries import subject_of

        return subject_of(self.faults) != "slow"

    @property
    def result(self) -> Result:
        """All answers graded."""
        from harness.study.mystery_grades import result

        return result(self.faults, self.answers, self.world_size)

    def answer_lines(self) -> Iterator[str]:
        """The answers that count, for people."""
        for number, said in enumerate(self.answers, 1):
            ranks = "all" if said.ranks is None else ",".join(map(str, said.ranks))
            words = [f"--ms {said.ms:g}"] if said.ms is not None else []
            words += [f"--rank {ranks}"]
            words += [f"--every {said.every}"] if not self.ends else []
            words += [f"--step {said.step}"] if said.step is not None else []
            words += [f"--phase {said.phase}"] if said.phase else []
            yield f"  answer {number}: {said.cause} {' '.join(words)}"

    def line(self, answer: Answer | None) -> AnswerLine:
        """A line of the answers file, of now."""
        record = self.run.record
        return AnswerLine(
            unix_ns=time.time_ns(),
            student=record.user,
            run=self.run.name,
            exercise=self.experiment.exercise,
            world_size=self.world_size,
            mystery=self.mystery,
            answer=answer,
        )


def asked_of(token: str) -> GradedMystery:
    """The mystery of a run.

    Raises:
        RequestError: there is no such run, it is no mystery, or its secret was changed.
    """
    from harness.experiment.exercises import Training
    from harness.study.mysteries import faults_of

    run = find_run(token)
    experiment = run.record.experiment
    if not isinstance(experiment, Training) or experiment.mystery is None:
        raise RequestError(f"RUN: {run.job_id} is not a mystery: start one with slurm.sh mystery -e 1")
    faults = faults_of(experiment.mystery)
    return GradedMystery(run, experiment, experiment.mystery, faults, experiment.world_size or 1)

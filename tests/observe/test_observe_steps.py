"""Which calls end a step, and how its time splits: a script as a text of calls, one millisecond each."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from harness.analysis.process.phases import Phase
from harness.common.run_folder.heartbeats import PHASES
from harness.common.run_folder.job_parts import COMPILATION
from harness.observe.steps import BACKWARD, DATA, EVALUATION, FORWARD, OPTIMIZER, StepDurations, StepState

MS = 1_000_000


@dataclass
class Told:
    """What a listener was told."""

    steps: list[StepDurations] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)

    def step_begins(self, number: int) -> None:
        self.marks.append(f"step {number}")

    def phase_begins(self, phase: str) -> None:
        self.marks.append(phase)

    def phase_ends(self) -> None:
        self.marks.append("end")

    def step_ends(self, step: StepDurations) -> None:
        self.steps.append(step)


class Script:
    """d: data, f: forward of the model, l: of a loss, b: backward, A and B: optimizers, o: only accumulates, e: forward
    without gradients, v: of an evaluation, c: an optimizer with a closure, w: nothing observed."""

    def __init__(self, optimizers: int) -> None:
        self.now = 0
        self.told = Told()
        self.steps = StepState(self.told, lambda: optimizers, lambda: self.now)

    def run(self, calls: str) -> list[StepDurations]:
        for call in calls.replace(" ", ""):
            getattr(self, f"_{call}")()
        return self.told.steps

    def whole(self, calls: str) -> list[StepDurations]:
        self.run(calls)
        self.steps.close()
        return self.told.steps

    def _pass(self) -> None:
        self.now += MS

    _w = _pass

    def _d(self) -> None:
        if self.steps.begin(DATA):
            self._pass()
            self.steps.end()

    def _forward(self, of_model: bool, graded: bool) -> None:
        if self.steps.begin(FORWARD):
            self._pass()
            self.steps.forward_ends(of_model, graded)

    def _f(self) -> None:
        self._forward(True, True)

    def _l(self) -> None:
        self._forward(False, True)

    def _e(self) -> None:
        self._forward(True, False)

    def _v(self) -> None:
        if self.steps.begin(EVALUATION):
            self._pass()
            self.steps.end()

    def _b(self) -> None:
        if self.steps.begin(BACKWARD):
            self._pass()
            self.steps.backward_ends()

    def _optimizer(self, key: int, inside: str = "", whole: bool = True) -> None:
        if self.steps.optimizer_begins(key):
            self._pass()
            self.run(inside)
            self.steps.optimizer_ends(key, whole)

    def _A(self) -> None:
        self._optimizer(1)

    def _B(self) -> None:
        self._optimizer(2)

    def _o(self) -> None:
        self._optimizer(1, whole=False)

    def _c(self) -> None:
        self._optimizer(1, "fbfb")


@pytest.mark.parametrize(
    ("calls", "optimizers", "ends", "by"),
    [
        ("dflbA" * 4, 1, 4, OPTIMIZER),
        ("fbw" + "fbAw" * 3, 1, 3, OPTIMIZER),
        ("dfb dfb dfbA" * 3, 1, 3, OPTIMIZER),  # accumulation
        ("dfbo dfbA" * 3, 1, 3, OPTIMIZER),  # an engine that is called for each micro-batch
        ("c" * 5, 1, 5, OPTIMIZER),  # LBFGS
        ("ffbA fbB" * 4 + "ffbA", 2, 4, OPTIMIZER),  # two optimizers
        ("ffbA fbB", 2, 1, OPTIMIZER),
        ("fbA" * 4, 2, 4, OPTIMIZER),  # two made, one called
        ("fbA" * 5 + "fbA fbB" * 4, 2, 10, OPTIMIZER),  # B is called less often: it ends the steps from then on
        ("fbA fbA ffbB" * 5, 2, 7, OPTIMIZER),  # a GAN's critic alone at first, then both in each step
        ("fb" * 5, 0, 5, BACKWARD),
        ("de" * 5, 0, 5, FORWARD),
        ("del" * 5, 0, 5, FORWARD),
        ("df" * 5, 0, 5, FORWARD),  # an evaluation with gradients on
        ("e" * 3 + "dfbA" * 3, 1, 3, OPTIMIZER),  # an evaluation before the training
    ],
)
def test_what_ends_a_step(calls: str, optimizers: int, ends: int, by: str) -> None:
    script = Script(optimizers)
    assert len(script.whole(calls)) == ends
    assert script.steps.ended_by == by
    assert [step.number for step in script.told.steps] == list(range(ends))


def test_the_steps_fill_the_time_and_the_phases_are_exclusive() -> None:
    first, second = Script(1).run("wdflbA wdwflbAw")
    assert (first.ns, first.parts) == (5 * MS, {DATA: MS, FORWARD: 2 * MS, BACKWARD: MS, OPTIMIZER: MS})
    assert second.ns == 7 * MS
    assert sum(second.parts.values()) == 5 * MS


def test_a_closure_is_forward_and_backward_inside_of_the_optimizer() -> None:
    assert Script(1).run("c")[0].parts == {OPTIMIZER: MS, FORWARD: 2 * MS, BACKWARD: 2 * MS}


def test_what_is_loaded_for_an_evaluation_belongs_to_it() -> None:
    first, second = Script(1).run("dfbA" + "ddvwdvdv" + "dfbA")
    assert EVALUATION not in first.parts
    assert second.parts == {DATA: MS, EVALUATION: 7 * MS, FORWARD: MS, BACKWARD: MS, OPTIMIZER: MS}
    assert second.ns == 12 * MS


def test_data_that_is_trained_on_is_no_part_of_an_evaluation() -> None:
    (step,) = Script(1).run("d fb v d fbA")
    assert step.parts == {DATA: 2 * MS, EVALUATION: MS, FORWARD: 2 * MS, BACKWARD: 2 * MS, OPTIMIZER: MS}


def test_of_two_optimizers_each_step_has_both() -> None:
    steps = Script(2).run("fbAfbB" * 4 + "f")
    assert [step.ns for step in steps] == [6 * MS] * 4
    assert {tuple(sorted(step.parts.items())) for step in steps} == {
        ((BACKWARD, 2 * MS), (FORWARD, 2 * MS), (OPTIMIZER, 2 * MS))
    }


def test_marks_nest() -> None:
    script = Script(1)
    script.run("dfbA")
    assert script.told.marks == ["step 0", "data", "end", "forward", "end", "backward", "end", "optimizer", "end"]


def test_the_phases_of_a_trace_know_the_names_of_the_trainings_own_clock() -> None:
    names = {phase.timed for phase in Phase} - {""}
    assert names == {DATA, FORWARD, BACKWARD, OPTIMIZER, EVALUATION} == {*filter(None, PHASES.values())} - {COMPILATION}

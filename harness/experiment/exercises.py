"""The list of the exercises, the only place that names them all, and how a record's request is read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, get_args

from pydantic import Field, TypeAdapter, ValidationError

from harness.experiment.base import Experiment
from harness.experiment.comm_tests import CommTests
from harness.experiment.ddp import DDP
from harness.experiment.deepspeed import DeepSpeed
from harness.experiment.megatron import Megatron
from harness.experiment.own import OwnTraining
from harness.experiment.training import ProfiledTraining, Training

__all__ = ["DDP", "EXERCISES", "AnyExperiment", "CommTests", "DeepSpeed", "Experiment", "Megatron",
           "OwnTraining", "ProfiledTraining", "Recorded", "Training", "experiment_of", "listing", "read_experiment",
           "resolved_experiment"]  # fmt: skip

AnyExperiment = Annotated[OwnTraining | CommTests | DDP | DeepSpeed | Megatron, Field(discriminator="exercise")]
EXERCISES: dict[int, type[Experiment]] = {
    cls.model_fields["exercise"].default: cls for cls in get_args(get_args(AnyExperiment)[0]) if cls is not OwnTraining
}
"""Number → the exercise; a training of the user's own has no number."""


def listing() -> str:
    return ", ".join(f"{number} {cls.title}" for number, cls in EXERCISES.items())


def as_recorded(experiments: Experiment | dict[str, Any] | None) -> dict[str, Any] | None:
    """What was recorded, without the fields that are newer than the record."""
    if not isinstance(experiments, Experiment):
        return experiments
    return {"exercise": experiments.exercise, **experiments.model_dump(mode="json", exclude_unset=True)}


Recorded = Annotated[AnyExperiment | dict[str, Any] | None, Field(union_mode="left_to_right")]
"""An experiment from a file. One that no class describes stays a mapping."""


def read_experiment(recorded: dict[str, Any] | None) -> Experiment | dict[str, Any] | None:
    """The request in a run's record."""
    return _reader().validate_python(recorded)


def experiment_of(recorded: dict[str, Any] | None) -> Experiment | None:
    """The request in a record; None: there is none, or no class describes it."""
    found = read_experiment(recorded)
    return found if isinstance(found, Experiment) else None


def resolved_experiment(recorded: dict[str, Any] | None, run: Mapping[str, Any] | None) -> Experiment | None:
    """The request with the values that the site, the machine and the model added, as far as they were recorded.

    run: a summary's facts of its run. None: as `experiment_of`.
    """
    asked = experiment_of(recorded)
    if asked is None:
        return None
    try:
        return type(asked).model_validate(asked.model_dump() | ((run or {}).get("resolved") or {}))
    except (TypeError, ValidationError):
        return asked


@cache
def _reader() -> TypeAdapter[Experiment | dict[str, Any] | None]:
    """Built once: to build it takes longer than to read a thousand records."""
    return TypeAdapter(Recorded)

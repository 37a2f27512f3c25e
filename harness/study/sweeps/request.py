"""A sweep's file: what is common to all points, what varies, how often. Validated on load; knows no run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from harness.common.errors import RequestError, nearest
from harness.common.paths import CONFIGS, expanded
from harness.experiment.yaml_file import read_yaml

SWEEPS = CONFIGS / "sweeps"
OWN = "own"  # of base.exercise: a training of the user's own

Metric = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
Values = Annotated[list[Any], Field(min_length=1)]


class Sweep(BaseModel):
    """One file. `base`: the exercise, options by their field names, and the site's own options (time, partition …).
    With `exercise: own` it also has `command`, the words after `--`, and axes may be flags of the script, as `--lr`.


    `matrix`: every combination of these values. `zip`: lists of one length, taken together. `exclude`: combinations to
    leave out; `skip_invalid`: also combinations that the rules refuse. `seeds`: their number or a list; each is a
    repeat. `show`: the measured values of the table, the first of which is plotted.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    title: str = ""
    base: dict[str, Any]
    matrix: dict[str, Values] = {}
    zip: dict[str, Values] = {}
    exclude: list[dict[str, Any]] = []
    skip_invalid: bool = False
    repeats: int = Field(default=1, ge=1, le=1000)
    seeds: Annotated[int, Field(ge=1, le=1000)] | Values | None = None
    show: list[Metric] = Field(default=["step_ns", "tokens_per_s"], min_length=1)

    @property
    def axes(self) -> list[str]:
        """The options that vary, in the file's order."""
        return [*self.matrix, *self.zip]


def sweep_names() -> list[str]:
    """The sweeps that come with the harness."""
    return sorted(path.stem for path in SWEEPS.glob("*.yaml"))


def shipped_sweep(name: str) -> Path | None:
    """The file of a sweep that comes with the harness."""
    return SWEEPS / f"{name}.yaml" if name in sweep_names() else None


def is_path(word: str) -> bool:
    """Whether the word on the command line means a file."""
    return "/" in word or word.endswith((".yaml", ".yml"))


def read_sweep(path_or_word: Path | str) -> Sweep:
    """A sweep from its file.

    Raises:
        RequestError: it cannot be read or is not one; a line for each thing that is wrong.
    """
    path = expanded(path_or_word) if isinstance(path_or_word, str) else path_or_word
    data = read_yaml(path, "sweep file")
    if not isinstance(data, dict):
        raise RequestError(
            f"sweep file {path}: it must be a mapping of fields: {', '.join(Sweep.model_fields)}"
        )
    try:
        return Sweep.model_validate(data)
    except ValidationError as error:
        lines = [f"sweep file {path}: {_sentence(dict(each))}" for each in error.errors()]
        raise RequestError("\n".join(dict.fromkeys(lines))) from None


def _sentence(error: dict[str, Any]) -> str:
    where = ".".join(
        str(part) for part in error["loc"] if part not in ("int", "list[any]", "constrained-int")
    )
    if error["type"] == "extra_forbidden":
        near = nearest(where, Sweep.model_fields)
        return f"unknown field {where}" + (f": did you mean {near}?" if near else f"; there are {_fields()}")
    if error["type"] == "missing":
        return f"field {where} is missing"
    said = error["msg"].removeprefix("Value error, ")
    return f"field {where} is {error['input']!r}: {said[0].lower()}{said[1:]}"


def _fields() -> str:
    return ", ".join(Sweep.model_fields)

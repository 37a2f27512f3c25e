"""Lessons: what an exercise teaches, as relations between the summaries of two of the student's own runs.

One YAML file per lesson, validated on load. Knows runs and facts; neither launches nor prints.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.analysis.metrics import Metrics
from harness.common.errors import RequestError, WorkError, nearest
from harness.common.paths import CONFIGS, expanded
from harness.experiment.exercises import AnyExperiment, Experiment, Training
from harness.experiment.options import options_of
from harness.experiment.parse import Given, command_of, validate
from harness.experiment.yaml_file import read_yaml
from harness.run import Run
from harness.study.expression import Unanswerable, evaluate

LESSONS = CONFIGS / "lessons"

# Facts that are the same however busy the machine is; all others are times, or shares of them.
COUNTED = re.compile(r"_(count|bytes)|bytes_across_nodes|gemm_\w+_share")


class Part(BaseModel):
    """A piece of a lesson file: unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Relation(Part):
    """One sentence about two runs, and the expression that decides it."""

    says: str
    holds: str
    shows: list[str] = Field(
        min_length=1
    )  # facts or expressions, as `WORDS: EXPRESSION` those that need a name
    needs: Literal["gpu", "network"] | None = None

    @property
    def depends_on_load(self) -> bool:
        """Whether it compares times, which other programs on the machine change."""
        return any(not COUNTED.search(fact) for fact in re.findall(r"\b[ab]\.(\w+)", self.holds))


class Pair(Part):
    """The two experiments of a lesson."""

    a: AnyExperiment
    b: AnyExperiment


class OnCpu(Part):
    """What a lesson asks and says where there is no GPU; None: the same as with GPUs."""

    question: str | None = None
    a: AnyExperiment | None = None
    b: AnyExperiment | None = None
    hints: list[str] | None = Field(default=None, min_length=1)
    relations: list[Relation] | None = Field(default=None, min_length=1)
    because: str | None = None


class Lesson(Part):
    """One lesson file."""

    name: str
    title: str
    question: str
    a: AnyExperiment
    b: AnyExperiment
    gpus_per_node: int | None = None  # what the pair was made for; a site with others is asked for so many
    on_cpu: OnCpu = OnCpu()
    look_at: dict[str, str]
    hints: list[str] = Field(min_length=1)
    relations: list[Relation] = Field(min_length=1)
    because: str

    def here(self, cpu: bool) -> Lesson:
        """The lesson as this kind of machine asks and answers it."""
        own = {name: getattr(self.on_cpu, name) for name in OnCpu.model_fields}
        return self.model_copy(update={k: v for k, v in own.items() if cpu and v is not None})

    def pair(self, cpu: bool) -> Pair:
        """The pair for this kind of machine."""
        here = self.here(cpu)
        return Pair(a=here.a, b=here.b)


class Outcome(str, Enum):
    """What a relation says of a student's runs."""

    HOLDS = "yes"
    FAILS = "no"
    CANNOT_SHOW = "this machine cannot show it"


class Answer(NamedTuple):
    """One relation, decided."""

    relation: Relation
    outcome: Outcome
    numbers: dict[str, float]
    why: str


class Found(NamedTuple):
    """A run of each side; None where there is none yet."""

    a: Run | None
    b: Run | None


def lesson_names() -> list[str]:
    """The lessons that come with the harness."""
    return sorted(p.stem for p in LESSONS.glob("*.yaml"))


def load_lesson(name_or_path: str) -> Lesson:
    """A lesson by name, or from a file.

    Raises:
        RequestError: there is none, or its file is wrong.
    """
    path = expanded(name_or_path) if "/" in name_or_path else LESSONS / f"{name_or_path}.yaml"
    if "/" not in name_or_path and not path.is_file():
        near = nearest(name_or_path, lesson_names())
        raise RequestError(
            f"lesson: there is no lesson {name_or_path!r}; there are {', '.join(lesson_names())}"
            + (f": did you mean {near}?" if near else "")
        )
    try:
        return Lesson(**read_yaml(path, "lesson file"))
    except (ValidationError, TypeError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
        raise RequestError(
            f"lesson file {path}: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        ) from None


def find_pair(pair: Pair, runs: list[Run], plain: Pair | None = None, site: str | None = None) -> Found:
    """The newest two runs that are the pair and agree in everything the lesson leaves open, else one side of it.

    Of one side only a run counts that the other can be made to agree with at `site`: first one as the lesson itself
    asks there (`plain`, from `at_site`), then the newest. `runs` are completed runs, oldest first.
    """
    named = _named(pair)
    of_a = [r for r in runs if _is_asked(r, pair.a, named)]
    of_b = [r for r in runs if _is_asked(r, pair.b, named)]
    for b in reversed(of_b):
        for a in reversed(of_a):
            if _open_settings(a, named) == _open_settings(b, named):
                return Found(a, b)
    sides = [Found(a, None) for a in reversed(of_a)] + [Found(None, b) for b in reversed(of_b)]
    usable = [one for one in sides if _can_be_completed(pair, one, site)]
    as_asked = [one for one in usable if plain is not None and _is_plain(one, plain)]
    return next(iter(as_asked + usable), Found(None, None))


def pair_with(pair: Pair, found: Found, plain: Pair) -> Pair:
    """What the two sides ask for: a run that was found as it is, and the other so that it agrees with that one.

    Raises:
        RequestError: what the found run leaves open does not go with the other side.
    """
    if found.a is None and found.b is None:
        return plain
    a, b = (_experiment(run) for run in found)
    named = _named(pair)
    if a is None and found.b is not None:
        a = _with(pair.a, _open_fields(found.b, named))
    if b is None and found.a is not None:
        b = _with(pair.b, _open_fields(found.a, named))
    return pair.model_copy(update={"a": a, "b": b})


def _experiment(run: Run | None) -> Experiment | None:
    return None if run is None else run.record.experiment


def _can_be_completed(pair: Pair, one: Found, site: str | None) -> bool:
    run = one.a or one.b
    if run is None or (site is not None and run.record.site.name != site):
        return False
    try:
        pair_with(pair, one, pair)
    except RequestError:
        return False
    return True


def _is_plain(one: Found, plain: Pair) -> bool:
    return _experiment(one.a) == plain.a or _experiment(one.b) == plain.b


def _named(pair: Pair) -> frozenset[str]:
    """The fields a run must share: those the lesson sets on either side, and those that it leaves no choice in."""
    fixed = {option.field for option in options_of(type(pair.a)) if not option.flag.free}
    return frozenset(fixed | pair.a.model_fields_set | pair.b.model_fields_set)


def _is_asked(run: Run, wanted: Experiment, named: frozenset[str]) -> bool:
    try:
        experiment, own = run.record.experiment, run.status()
    except WorkError:
        return False
    recorded = not isinstance(experiment, Training) or experiment.profiler != "none"
    if not recorded or (own is not None and own.missing):
        return False  # every lesson asks what only a trace shows
    return type(experiment) is type(wanted) and all(
        getattr(experiment, name) == getattr(wanted, name) for name in named
    )


def _open_settings(run: Run, named: frozenset[str]) -> dict[str, Any]:
    return _open_fields(run, named) | {"site": run.record.site.name}


def _open_fields(run: Run, named: frozenset[str]) -> dict[str, Any]:
    asked = run.record.experiment.model_dump()
    return {name: value for name, value in asked.items() if name not in named}


def at_site(pair: Pair, defaults: Mapping[str, Any]) -> Pair:
    """The pair as a site runs it: what the lesson leaves open is as in any launch there, the site's `defaults`.

    Raises:
        RequestError: they do not go together; one line per reason.
    """
    open_here = {name: value for name, value in defaults.items() if name not in _named(pair)}
    return pair.model_copy(update={"a": _with(pair.a, open_here), "b": _with(pair.b, open_here)})


def _with(asked: AnyExperiment, fields: Mapping[str, Any]) -> Experiment:
    known = {name: value for name, value in fields.items() if name in type(asked).model_fields}
    made, errors = validate(type(asked), asked.model_dump() | known)
    if made is None:
        raise RequestError("\n".join(errors))
    return made


def command(experiment: Experiment, site: str | None = None, defaults: Given | None = None) -> str | None:
    """The exact command of one side; its arguments and None are as of `command_of`."""
    words = command_of(experiment, site, defaults)
    return None if words is None else shlex.join(["bash", "slurm.sh", *words])


def lesson_command(name: str, site: str | None) -> str:
    """What to type for the lesson at the same site, to which flags can be added; `site` is `--site` as given."""
    return shlex.join(["slurm.sh", "lesson", name, *(["--site", site] if site is not None else [])])


def answers(lesson: Lesson, a: Metrics, b: Metrics, on_gpu: bool, over_network: bool) -> list[Answer]:
    """Every relation, decided on the facts of the student's own two runs."""
    names = {"a": a, "b": b}
    here = {"gpu": on_gpu, "network": over_network, None: True}
    missing = {"gpu": "it needs runs on GPUs", "network": "it needs two nodes with a network between them"}
    found = []
    for relation in lesson.here(cpu=not on_gpu).relations:
        shown = [(label or text, text) for label, _, text in (s.rpartition(": ") for s in relation.shows)]
        numbers = {label: _number(text, names) for label, text in shown}
        known = {name: value for name, value in numbers.items() if value is not None}
        if not here[relation.needs]:
            found.append(Answer(relation, Outcome.CANNOT_SHOW, known, missing[relation.needs or "gpu"]))
            continue
        try:
            true = bool(evaluate(relation.holds, names))
            found.append(Answer(relation, Outcome.HOLDS if true else Outcome.FAILS, known, relation.holds))
        except Unanswerable as unknown:
            found.append(Answer(relation, Outcome.CANNOT_SHOW, known, f"{unknown} in these runs"))
    return found


def _number(name: str, names: dict[str, Metrics]) -> float | None:
    try:
        return float(evaluate(name, names))
    except Unanswerable:
        return None

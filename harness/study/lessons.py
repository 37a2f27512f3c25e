"""Lessons: what an exercise teaches, as relations between the summaries of two of the student's own runs; which runs
these are, and their commands. One YAML file per lesson, validated on load. Neither launches nor prints.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.common.errors import RequestError, WorkError, nearest_or_list
from harness.common.paths import COMMAND, CONFIGS, expanded
from harness.experiment.exercises import AnyExperiment, Experiment, Training
from harness.experiment.options import options_of
from harness.experiment.parse import Given, command_of, validate
from harness.experiment.yaml_file import read_yaml
from harness.run import Run, why_invalid

LESSONS = CONFIGS / "lessons"

# Metrics that do not depend on how busy the machine is; all others are times, or shares of times.
COUNTED = re.compile(r"_(count|bytes)|bytes_across_nodes|tokens_per_step|gemm_\w+_share|\.(stuck|failed)_")
MOST_PAIRS = 8  # of runs that an answer takes
PARTS = ("mystery", "race")  # commands that are named as lessons are


class LessonPart(BaseModel):
    """A piece of a lesson file: unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Relation(LessonPart):
    """One sentence about two runs, and the expression that decides it."""

    says: str
    holds: str
    shows: list[str] = Field(min_length=1)  # metrics or expressions; `LABEL: EXPRESSION` gives one a name
    needs: Literal["gpu", "network"] | None = None

    @property
    def depends_on_load(self) -> bool:
        """Whether it compares times, which other programs on the machine change."""
        return any(not COUNTED.search(metric) for metric in re.findall(r"\b[ab]\.\w+", self.holds))


class GuessQuestion(LessonPart):
    """What is asked before the runs: which of them has more of a metric."""

    asks: str
    metric: str


class ExperimentPair(LessonPart):
    """The two experiments of a lesson."""

    a: AnyExperiment
    b: AnyExperiment


class OnCpu(LessonPart):
    """The texts of a lesson without GPUs; None: the same as with GPUs."""

    question: str | None = None
    a: AnyExperiment | None = None
    b: AnyExperiment | None = None
    hints: list[str] | None = Field(default=None, min_length=1)
    relations: list[Relation] | None = Field(default=None, min_length=1)
    because: str | None = None


class Lesson(LessonPart):
    """One lesson file."""

    name: str
    further: bool = False  # beyond the workshop, whose references have no runs for it
    ends: Literal["completed", "stuck", "failed"] = "completed"  # the state in which both runs should end
    title: str
    question: str
    guess: GuessQuestion | None = None
    a: AnyExperiment
    b: AnyExperiment
    gpus_per_node: int | None = None  # a site with another number is asked for this one
    gpus: int = 1  # the fewest that show something
    typed: dict[str, Any] = {}  # fields that both commands have on GPUs, and that another run need not have
    slide: dict[Literal["a", "b"], str] = {}  # the command on GPUs, to the letter, where the workshop's slides have it
    on_cpu: OnCpu = OnCpu()
    look_at: dict[str, str]
    hints: list[str] = Field(min_length=1)
    relations: list[Relation] = Field(min_length=1)
    because: str

    def here(self, cpu: bool) -> Lesson:
        """The lesson as this kind of machine asks and answers it."""
        return self.model_copy(update={k: v for k, v in self.on_cpu if cpu and v is not None})

    @property
    def command_tells(self) -> bool:
        """Whether the commands and what the runs print have the answer: the fault by which they end."""
        return self.ends != "completed"

    @property
    def needs_gpus(self) -> bool:
        """Whether runs without GPUs cannot answer any part of it."""
        return all(relation.needs == "gpu" for relation in self.here(cpu=True).relations)

    def pair(self, cpu: bool) -> ExperimentPair:
        """What a run must be to be an arm."""
        here = self.here(cpu)
        return ExperimentPair(a=here.a, b=here.b)

    def commands(self, cpu: bool) -> ExperimentPair:
        """The runs that the lesson starts, and that its exercise's page and the reference list have."""
        pair = self.pair(cpu)
        if cpu:
            return pair
        return pair.model_copy(update={"a": with_fields(pair.a, self.typed), "b": with_fields(pair.b, self.typed)})


class LessonRuns(NamedTuple):
    """The run of each arm; None if that arm has not been run yet."""

    a: Run | None
    b: Run | None


def lesson_names() -> list[str]:
    """The lessons that come with the harness."""
    return sorted(p.stem for p in LESSONS.glob("*.yaml"))


def workshop_lessons() -> list[str]:
    """Those of them that the workshop's own course has."""
    return [name for name in lesson_names() if not load_lesson(name).further]


def load_lesson(name_or_path: str) -> Lesson:
    """A lesson by name, or from a file. Raises RequestError: there is no such lesson, or its file is wrong."""
    is_path = "/" in name_or_path
    path = expanded(name_or_path) if is_path else LESSONS / f"{name_or_path.lower()}.yaml"
    if not is_path and path.stem not in lesson_names():
        hint = nearest_or_list(name_or_path, [*lesson_names(), *PARTS], f"{COMMAND} lesson lists all")
        raise RequestError(f"lesson: there is no lesson {name_or_path!r}{hint}")
    try:
        return Lesson.model_validate(read_yaml(path, "lesson file"))
    except ValidationError as error:
        raise RequestError(f"lesson file {path}: {why_invalid(error)}") from None


@cache
def slides_of(exercise: int) -> tuple[tuple[Experiment, str], ...]:
    """The runs of an exercise on GPUs whose command is on the workshop's slides, with that command."""
    lessons = [load_lesson(name) for name in lesson_names() if name.startswith(str(exercise))]
    pairs = [(lesson.commands(cpu=False), lesson.slide) for lesson in lessons if lesson.slide]
    return tuple((getattr(pair, arm), text) for pair, slide in pairs for arm, text in slide.items())


def slide_of(requested: Experiment) -> str | None:
    """The slides' own command for this run on GPUs; None: they have none."""
    return next((text for experiment, text in slides_of(requested.exercise) if experiment == requested), None)


def course_experiments() -> list[Experiment]:
    """The experiments of the workshop's lessons, each once: what a student of the whole course runs."""
    asked: list[Experiment] = []
    for pair in (load_lesson(name).commands(cpu=False) for name in workshop_lessons()):
        asked += [each for each in (pair.a, pair.b) if each not in asked]
    return asked


def find_pair(pair: ExperimentPair, runs: list[Run], plain: ExperimentPair | None = None) -> LessonRuns:
    """The newest two runs of the pair that agree in everything the lesson leaves open, else the run of one arm.

    runs: of one site, which ended as the lesson's do, oldest first. A single run counts only if the other arm can be
    made to agree with it. A run exactly as the lesson asks there (`plain`, from `at_site`) is preferred, then the
    newest.
    """
    fixed = fixed_fields(pair)
    of_a = [run for run in reversed(runs) if _has_run(run, pair.a, fixed)]
    of_b = [run for run in reversed(runs) if _has_run(run, pair.b, fixed)]
    for b in of_b:
        for a in of_a:
            if _open_fields(a, fixed) == _open_fields(b, fixed):
                return LessonRuns(a, b)
    arms = [LessonRuns(a, None) for a in of_a] + [LessonRuns(None, b) for b in of_b]
    usable = [one for one in arms if _can_be_completed(pair, one)]
    as_asked = [one for one in usable if plain is not None and _is_plain(one, plain)]
    return next(iter(as_asked + usable), LessonRuns(None, None))


def pairs_like(pair: ExperimentPair, newest: Run, runs: Sequence[Run]) -> list[tuple[Run, Run]]:
    """All pairs that agree with one run in what the lesson leaves open, the newest last. runs: as for `find_pair`."""
    fixed = fixed_fields(pair)
    alike = [run for run in reversed(runs) if _has_run(run, pair.a, fixed) or _has_run(run, pair.b, fixed)]
    alike = [run for run in alike if _open_fields(run, fixed) == _open_fields(newest, fixed)]
    of_a, of_b = ([run for run in alike if _has_run(run, arm, fixed)] for arm in (pair.a, pair.b))
    return list(zip(of_a, of_b, strict=False))[:MOST_PAIRS][::-1]


def pair_with(pair: ExperimentPair, lesson_runs: LessonRuns, plain: ExperimentPair) -> ExperimentPair:
    """The experiments of both arms: those of the runs found, and for a missing arm one that agrees with the other.
    Raises RequestError: the open settings of the run found do not go with the other arm."""
    run = lesson_runs.a or lesson_runs.b
    if run is None:
        return plain
    settings = _open_fields(run, fixed_fields(pair))
    a = lesson_runs.a.record.experiment if lesson_runs.a else with_fields(pair.a, settings)
    b = lesson_runs.b.record.experiment if lesson_runs.b else with_fields(pair.b, settings)
    return pair.model_copy(update={"a": a, "b": b})


def _can_be_completed(pair: ExperimentPair, one: LessonRuns) -> bool:
    try:
        pair_with(pair, one, pair)
    except RequestError:
        return False
    return True


def _is_plain(one: LessonRuns, plain: ExperimentPair) -> bool:
    arms = zip(one, (plain.a, plain.b), strict=True)
    return any(run is not None and run.record.experiment == asked for run, asked in arms)


def fixed_fields(pair: ExperimentPair) -> set[str]:
    """The fields a run must share: those the lesson sets on either arm, and those a lesson never leaves open."""
    never_open = {option.field for option in options_of(type(pair.a)) if not option.flag.free}
    never_open |= {"mystery"} & type(pair.a).model_fields.keys()
    return never_open | pair.a.model_fields_set | pair.b.model_fields_set


def _has_run(run: Run, requested: Experiment, fixed: set[str]) -> bool:
    try:
        experiment, status = run.record.experiment, run.status()
    except WorkError:
        return False
    if status is not None and status.missing and _is_traced(requested):
        return False  # a lesson about traced runs asks what only a trace shows
    return is_asked(experiment, requested, fixed)


def is_asked(experiment: Experiment, requested: Experiment, fixed: set[str]) -> bool:
    """Whether a run of `experiment` is one arm of a lesson; if the arm is traced, an untraced run is not."""
    if _is_traced(requested) and not _is_traced(experiment):
        return False
    return type(experiment) is type(requested) and all(
        getattr(experiment, name) == getattr(requested, name) for name in fixed
    )


def _is_traced(experiment: Experiment) -> bool:
    return not isinstance(experiment, Training) or experiment.profiler != "none"


def _open_fields(run: Run, fixed: set[str]) -> dict[str, Any]:
    return open_fields(run.record.experiment, fixed)


def open_fields(experiment: Experiment, fixed: set[str]) -> dict[str, Any]:
    """What a lesson leaves to the student; both arms must have it in common."""
    return experiment.model_dump(exclude=fixed)


def at_site(pair: ExperimentPair, defaults: Mapping[str, Any]) -> ExperimentPair:
    """The pair as a site runs it: what the lesson leaves open is set by the site's `defaults`, as in any launch there.
    Raises RequestError: they do not go together; one line per reason."""
    fixed = fixed_fields(pair)
    open_here = {name: value for name, value in defaults.items() if name not in fixed}
    return pair.model_copy(update={"a": with_fields(pair.a, open_here), "b": with_fields(pair.b, open_here)})


def with_fields(experiment: AnyExperiment, fields: Mapping[str, Any]) -> Experiment:
    """The experiment with those of `fields` that it has. Raises RequestError: they do not go together."""
    own = {name: value for name, value in fields.items() if name in type(experiment).model_fields}
    made, errors = validate(type(experiment), experiment.model_dump(exclude_unset=True) | own)
    if made is None:
        raise RequestError("\n".join(errors))
    return made


def shell_command(experiment: Experiment, site: str | None = None, defaults: Given | None = None) -> str | None:
    """The exact command of one arm. The arguments, and when it returns None, are those of `command_of`."""
    argv = command_of(experiment, site, defaults)
    return None if argv is None else f"{COMMAND} {shlex.join(argv)}"


def slide_command(text: str, site: str | None) -> str:
    """A slide's command at a site, as it is typed here: `--site` comes before the training's own flags.

    >>> slide_command("bash slurm.sh -e 1 -- --mixed-precision", "leonardo")
    'bash slurm.sh -e 1 --site leonardo -- --mixed-precision'
    """
    before, separator, after = text.replace("bash slurm.sh", COMMAND, 1).partition(" -- ")
    return f"{before}{f' --site {shlex.quote(site)}' if site else ''}{separator}{after}"


def lesson_command(name: str, site: str | None) -> str:
    """The command of the lesson at the same site, to which flags can be added; `site` is `--site` as given."""
    return f"{COMMAND} " + shlex.join(["lesson", name, *(["--site", site] if site is not None else [])])

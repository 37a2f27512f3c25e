"""Which flags have set a line of the settings that a job's programs read from files of the run. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from harness.common.run_folder.run_files import ACCELERATE_SETTINGS, DS_CONFIG
from harness.experiment.exercises import Experiment
from harness.experiment.options import options_of
from harness.launch.exercises.base import CommandPlace, ExercisePlan, launch_of

SETTINGS = (DS_CONFIG.name, ACCELERATE_SETTINGS.name)


def flags_of_settings(
    flags: Mapping[str, str], experiment: Experiment, place: CommandPlace, plan: ExercisePlan
) -> dict[str, str]:
    """The flags that set a line of the settings which the programs read, by the file's name and the line: without the
    flag the line is another. flags: those that set a field of the experiment, by field."""
    found = dict[str, list[str]]()
    files = {name: plan.files[name] for name in SETTINGS if name in plan.files}
    for option in options_of(type(experiment)):
        if files and option.field in flags:
            usual = launch_of(experiment).plan(experiment.model_copy(update={option.field: option.default}), place)
            for name in files.keys() & usual.files.keys():
                lines, others = ({*map(setting_of, of.splitlines())} for of in (files[name], usual.files[name]))
                for line in lines - others:
                    found.setdefault(f"{name} {line}", []).append(f"flag {flags[option.field]}")
    return {line: "; ".join(of_line) for line, of_line in found.items()}


def setting_of(line: str) -> str:
    """A line of a file in JSON or YAML, without what depends on the lines around it."""
    return line.strip().rstrip(",")

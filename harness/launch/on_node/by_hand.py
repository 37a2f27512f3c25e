"""The run of a script that somebody submitted by hand, perhaps after editing it."""

from __future__ import annotations

import json
import os
import re
import shlex
from difflib import unified_diff
from pathlib import Path
from typing import Any

from harness.common.errors import WorkError
from harness.common.paths import PROGRAM
from harness.common.run_folder.submission import for_sbatch
from harness.experiment.exercises import Experiment, read_experiment
from harness.experiment.options import options_of
from harness.experiment.parse import command_of, validate
from harness.launch.argv import quote
from harness.launch.job import REQUEST, resolve
from harness.launch.render import BELOW, render
from harness.launch.submit import PreparedLaunch, Start, this_machine, written
from harness.run import Run, Stage, claim_local_id, disk_error, release_local_id
from harness.site.site import Site

BY_HAND = "by-hand"  # the id of a run of this machine before it has a number


def run_of_script(script: Path, run_dir: Path, job_id: str) -> Run:
    """The run of a script that was submitted by hand: of the request in its last line, with the training's arguments as
    they are now, and with the difference to the script that the request gives. job_id: BY_HAND: the run gets the
    next number of this machine. Raises HarnessError: the script holds no request, or the run cannot be written."""
    text = script.read_text(encoding="utf-8").partition(f"\n{BELOW}")[0]
    line = next((line for line in reversed(text.splitlines()) if line.startswith(REQUEST)), "")
    try:
        told = json.loads(line.removeprefix(REQUEST))
        asked, site = read_experiment(told["experiment"]), Site.model_validate(told["site"])
        if not isinstance(asked, Experiment):
            raise ValueError("it names no experiment")
        machine = this_machine()._replace(has_nsys=told["profiler"] == "nsys", runs_dir=str(run_dir.parents[2]))
    except (ValueError, KeyError, TypeError) as error:
        raise WorkError(
            f"{script}: its last line is no request of the harness ({error}): copy a run's job.sbatch"
        ) from None
    machine = machine._replace(own_runs_dir=machine.runs_dir)
    as_asked = resolve(asked, site, machine)
    before = render(as_asked)
    asked = with_arguments(asked, before, text)
    job = resolve(asked, site, machine)
    edited = "".join(unified_diff(before.splitlines(True), text.splitlines(True), "as requested", "as edited"))
    own_name, name = ("{}-$JOB_ID{}".format(*map(quote, each.run_name)) for each in (as_asked, job))
    folder = None
    if job_id == BY_HAND:
        job_id, folder = claim_local_id(run_dir.parents[2])
    published = job.name_for(job_id) if own_name in text else run_dir.name.replace(BY_HAND, job_id)
    command = [PROGRAM, *(command_of(asked, site.name, site.defaults) or ["run", job_id])]
    try:
        with Stage(run_dir.parents[1]) as stage:
            start = Start(PreparedLaunch(asked, job), command)
            started = written(stage, start, text.replace(own_name, name))
            # sbatch, as typed, reads its variables after the script's options.
            obeyed = for_sbatch(os.environ, []) if job.site.scheduler == "slurm" else {}
            changes = {"job_id": job_id, "edited": edited, "for_sbatch": obeyed}
            record = started.record.model_copy(update=changes)
            Run(stage.path).write_record(record)
            return stage.publish(published, job_id)
    except (OSError, WorkError) as error:
        if folder is not None:
            release_local_id(folder)
        raise error if isinstance(error, WorkError) else disk_error(run_dir, error) from None


def with_arguments(experiment: Experiment, before: str, now: str) -> Experiment:
    """The experiment with the training's arguments of the script `now` that differ from the script `before`: the run's
    files and its record then agree with it. What the experiment does not allow stays as it was."""
    old, new = (_training_words(text) for text in (before, now))
    given: dict[str, Any] = {}
    for option in options_of(type(experiment)):
        texts = [_value_after(option.flag.train, words) for words in (old, new)]
        if texts[0] != texts[1] and texts[1] is not None and not option.flag.repeats:
            given[option.field] = texts[1]
    changed, errors = validate(type(experiment), dict(experiment) | given)
    return experiment if changed is None or errors else changed


def _training_words(script: str) -> list[str]:
    found = re.search(r"^TRAINING=\((.*?)\)$", script, re.MULTILINE | re.DOTALL)
    try:
        return shlex.split(found[1], comments=True) if found else []
    except ValueError:
        return []


def _value_after(flag: str | None, words: list[str]) -> str | None:
    after = words[words.index(flag) + 1] if flag in words[:-1] else "--"
    return None if after.startswith("--") else after

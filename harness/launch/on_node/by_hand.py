"""The run of a script that somebody submitted by hand, perhaps after editing it."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from difflib import unified_diff
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness.common.errors import WorkError
from harness.common.paths import PROGRAM
from harness.common.run_folder.run_files import ACCELERATE_SETTINGS, DS_CONFIG
from harness.common.run_folder.submission import for_sbatch
from harness.experiment.exercises import DeepSpeed, Experiment, OwnTraining, read_experiment
from harness.experiment.options import Flag, options_of
from harness.experiment.parse import command_of, validate
from harness.launch.argv import quote
from harness.launch.job import REQUEST, resolve
from harness.launch.render import BELOW, render
from harness.launch.submit import PreparedLaunch, Start, this_machine, written
from harness.run import Run, Stage, claim_local_id, disk_error, release_local_id
from harness.site.site import Site

BY_HAND = "by-hand"  # the id of a run of this machine before it has a number
SETTINGS = {"--deepspeed-config": DS_CONFIG, "--config_file": ACCELERATE_SETTINGS}
_OF_ZERO = {"stage": "zero_stage", "overlap_comm": "overlap_comm", "zero_hpz_partition_size": "hpz_partition"}


def run_of_script(script: Path, run_dir: Path, job_id: str) -> Run:
    """The run of a script that was submitted by hand: of the request in its last line, with the training's arguments as
    they are now, and with the difference to the script that the request gives; it keeps the settings that the script
    reads from a file of its own. job_id: BY_HAND: the run gets the next number of this machine. Raises HarnessError:
    the script holds no request, names settings that cannot be read, or the run cannot be written."""
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
    files = own_settings(before, text)
    asked = with_arguments(asked, before, text, files)
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
            start = Start(PreparedLaunch(asked, job), command, files=files)
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


def own_settings(before: str, now: str) -> dict[str, str]:
    """The texts of the settings that the script `now` reads from a file of its own, where the script `before` reads
    the run's, by the run's names. Raises WorkError: one cannot be read."""
    found = dict[str, str]()
    old, new = (_training_words(text) for text in (before, now))
    for flag, file in SETTINGS.items():
        was, path = (_told(Flag({}, train=flag), words) for words in (old, new))
        if isinstance(path, str) and was not in (None, path):
            try:
                found[file.name] = Path(os.path.expandvars(path)).read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", "it is no text")
                raise WorkError(f"{flag} {path} cannot be read: {why}") from None
    return found


def with_arguments(
    experiment: Experiment, before: str, now: str, settings: Mapping[str, str] | None = None
) -> Experiment:
    """The experiment with what differs in the training's words of the script `now` from those of `before`, with or
    without a value: the run's files, its name and its record then agree with it. settings: as of `own_settings`. What
    the experiment does not allow stays as it was."""
    old, new = (_training_words(text) for text in (before, now))
    given: dict[str, Any] = {}
    if isinstance(experiment, OwnTraining):
        head = len(old) - len(experiment.command)  # the launcher's words
        if old[:head] == new[:head] and len(new) > head:
            first = experiment.command[0] if new[head] == old[head] else new[head]
            given["command"] = (first, *new[head + 1 :])
    else:
        for option in options_of(type(experiment)):
            was, told = (_told(option.flag, words) for words in (old, new))
            if told != was:
                given[option.field] = option.flag.words.get("fp32", option.default) if told is None else told
    if isinstance(experiment, DeepSpeed):
        with suppress(ValueError, AttributeError):  # what is no JSON object, DeepSpeed refuses
            zero = json.loads((settings or {}).get(DS_CONFIG.name, "{}")).get("zero_optimization", {})
            given |= {field: zero[key] for key, field in _OF_ZERO.items() if key in zero}
    changed, errors = validate(type(experiment), dict(experiment) | given)
    return experiment if changed is None or errors else changed


def _training_words(script: str) -> list[str]:
    found = re.search(r"^TRAINING=\((.*?)\)$", script, re.MULTILINE | re.DOTALL)
    try:
        return shlex.split(found[1], comments=True) if found else []
    except ValueError:
        return []


def _told(flag: Flag, words: list[str]) -> object:
    """What the words say of an option: its value, True for a switch, False for the opposite one; None: nothing."""
    parts = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    if flag.train_off in parts:
        return False
    after = [after for word, after in pairwise([*parts, "--"]) if word == flag.train]
    values = [True if word.startswith("--") else word for word in after]
    return (tuple(values) if flag.repeats else values[-1]) if values else None

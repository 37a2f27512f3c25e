"""From a request to a run: resolve, check, render, stage, hand to a backend; and what program and machine that was."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shlex
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from difflib import unified_diff
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined

from harness.common.bounded_read import read_end
from harness.common.errors import WorkError
from harness.common.paths import DISTRIBUTION, PROGRAM, TEMPLATES
from harness.common.printable import printable
from harness.common.programs import git_state, git_state_of, usable_cores
from harness.common.secrets import forget, kept_from_nsys
from harness.common.submission import for_sbatch, passed_on, variables_in_words
from harness.common.training_python import ask_python
from harness.common.users import this_user
from harness.experiment.exercises import Experiment, Own, read_experiment
from harness.experiment.options import options_of
from harness.experiment.parse import command_of, validate
from harness.heartbeats.hang import read_hang
from harness.heartbeats.silent_nodes import SILENT_S, silent_nodes, who_is_silent
from harness.launch.argv import assignments, continued, quote, quote_all, quote_lines, shown
from harness.launch.backends.allocation import NAME as ALLOCATION
from harness.launch.backends.allocation import placed
from harness.launch.backends.protocol import PolledState, Submission, Together
from harness.launch.backends.registry import backend_of, backend_of_run
from harness.launch.check import check, check_script
from harness.launch.exercises.base import launch_of
from harness.launch.job import REQUEST, Job, Machine, resolve
from harness.run import (
    SECRET_MODE,
    Run,
    Stage,
    claim_local_id,
    disk_error,
    own_runs_root,
    release_local_id,
    runs_root,
    write_atomically,
)
from harness.run.ended import what_it_means, why_it_wrote_no_more, why_nothing_was_recorded
from harness.run.record import FINAL, Part, Program, Record, State
from harness.site.detection import visible_gpus
from harness.site.site import Site


def _bytecode_cache() -> FileSystemBytecodeCache | None:
    """Compiled templates beside the interpreter's packages, as .pyc files are: they save a fifth of a dry run."""
    folder = Path(sys.prefix) / "compiled-templates"
    try:
        folder.mkdir(exist_ok=True)
    except OSError:
        return None
    return FileSystemBytecodeCache(str(folder)) if os.access(folder, os.W_OK) else None


@cache
def _environment(folder: Path) -> Environment:
    environment = Environment(
        loader=FileSystemLoader([folder, TEMPLATES]),
        bytecode_cache=_bytecode_cache(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        comment_start_string="{##",  # {# is bash: ${#array[@]}
        comment_end_string="##}",
        autoescape=False,  # shell, not HTML: q and argv do the quoting
    )
    environment.globals["program"] = PROGRAM
    environment.filters["q"] = quote
    environment.filters |= {"argv": quote_all, "lines": quote_lines, "continued": continued, "assignments": assignments}
    return environment


def render(job: Job) -> str:
    """The job's script, for its site's backend. Raises RequestError: the backend is unknown."""
    return render_template(backend_of(job.site).TEMPLATE, job=job, request=REQUEST)


def render_template(template: Path, **values: object) -> str:
    """A template of ours, or one that extends or includes ours, with these values."""
    return _environment(template.parent).get_template(template.name).render(**values)


def _program(asked: Experiment, job: Job) -> Program | None:
    """The program of a training of the user's own; None: it is an exercise."""
    if not isinstance(asked, Own):
        return None
    script = Path(asked.start_in, asked.program)
    is_file = asked.form == "script" or "/" in asked.program
    return Program(
        script=str(script) if is_file else asked.program,
        arguments=list(asked.arguments),
        python=shown(job.training_python),
        git=git_state_of(script.parent if is_file and script.parent.is_dir() else Path(asked.start_in)),
    )


def _versions(asked: Experiment) -> dict[str, str]:
    """The versions of what trains, by package; empty where nobody here can ask for them, as in a container."""
    if isinstance(asked, Own) and asked.python is not None:
        told = ask_python(asked.python)
        return {} if isinstance(told, str) else told.versions
    found = {"python": platform.python_version()}
    for name in RECORDED:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


RECORDED = (DISTRIBUTION, "submitit", "torch", "accelerate", "transformers", "deepspeed", "megatron-core", "numpy")


def this_machine() -> Machine:
    wrapper = Path(sys.prefix) / "harness-python"  # beside the packages, wherever HARNESS_VENV put them
    return Machine(
        gpus=len(visible_gpus()),
        cores=usable_cores(),
        has_nsys=shutil.which("nsys") is not None,
        python=str(wrapper) if wrapper.is_file() else sys.executable,
        runs_dir=str(runs_root()),
        own_runs_dir=str(own_runs_root()),
    )


class Prepared(NamedTuple):
    """A launch before it starts: the request with absolute paths, and the job that it gives on this machine. where: of
    the shell's allocation, whether the run uses it, as a sentence; empty: it has none."""

    asked: Experiment
    job: Job
    where: str = ""


def prepare(experiment: Experiment, site: Site) -> Prepared:
    """The experiment resolved for this machine. Raises RequestError: it cannot run at the site."""
    asked = launch_of(experiment).with_whole_paths(experiment)  # the record has the same meaning in every folder
    site, where = placed(asked, site, os.environ)
    return Prepared(asked, resolve(asked, site, this_machine()), where)


def script_of(job: Job) -> str:
    """The job's script, which bash can parse. Raises RequestError: bash cannot."""
    text = render(job)
    check_script(job, text)
    return text


class Start(NamedTuple):
    """A run to submit. command: as typed. part: of which series of runs it is one. files: texts to keep in it beside
    the job's own."""

    prepared: Prepared
    command: list[str]
    part: Part | None = None
    files: Mapping[str, str] = {}


def submit(start: Start) -> Run:
    """Start a prepared launch; returns its run, which then exists on disk. Raises RequestError: a file that it names
    does not exist; nothing was written. WorkError: the backend refused, or a write failed; nothing is left behind."""
    job = start.prepared.job
    with _staged([start]) as (asked,):
        run = backend_of(job.site).submit(asked)
    folder = Path(job.output_dir).parent  # no `git add .` of the user's own repository shall take traces with it
    if isinstance(job.experiment, Own) and folder != runs_root():
        with suppress(OSError), (folder / ".gitignore").open("x", encoding="utf-8") as file:
            file.write("*\n")
    return run


def go_together(jobs: Sequence[Job]) -> bool:
    """Whether these jobs can be one submission: the same exercise at the same site, with the same resources."""
    return len({(job.output_dir, job.site.model_dump_json(), *job.directives) for job in jobs}) == 1


def submit_together(starts: Sequence[Start], way: Together, at_once: int | None = None) -> list[Run]:
    """Submit launches that go together as one array, or one after the other in one allocation; returns their runs.

    at_once: of an array, the most that run at a time.

    Raises RequestError: a file that they name does not exist, or their backend has no queue; nothing was written.
    WorkError: the backend refused, or a write failed; nothing is left behind. ValueError: they do not go together.
    """
    jobs = [start.prepared.job for start in starts]
    if not go_together(jobs):
        raise ValueError("jobs with different resources cannot be one submission")
    with _staged(starts) as asked:
        return backend_of(jobs[0].site).submit_together(
            asked, way, at_once, lambda template, lines: render_template(template, jobs=jobs, directives=lines)
        )


@contextmanager
def _staged(starts: Sequence[Start]) -> Iterator[list[Submission]]:
    """The runs, checked, with their files, which are removed afterwards where their backend did not publish them."""
    jobs = [start.prepared.job for start in starts]
    for job in jobs:
        check(job, os.environ)
    texts = [script_of(job) for job in jobs]
    if any(job.profiler == "nsys" for job in jobs):
        # A job's environment is this process's, and on this machine nsys sees this process too.
        forget(kept_from_nsys(os.environ))
    with ExitStack() as stages:
        folders = [stages.enter_context(Stage(Path(job.output_dir))) for job in jobs]
        yield [_written(*each) for each in zip(folders, starts, texts, strict=True)]


def _written(stage: Stage, start: Start, script: str) -> Submission:
    job = start.prepared.job
    write_atomically(Run(stage.path).script, script, mode=SECRET_MODE if job.holds_secret else None)
    for folder in (stage.path / name for name in job.folders):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_error(folder, error) from None
    for name, content in {**job.files, **start.files}.items():
        write_atomically(stage.path / name, content)
    return Submission(
        stage=stage,
        record=_record(start),
        name_for=job.name_for,
        directives=job.directives,
        cpus_per_task=job.cpus_per_task,
        gpus=(job.experiment.world_size or 0) if job.device == "cuda" else 0,
    )


BY_HAND = "by-hand"  # the id of a run of this machine before it has a number


def run_of_script(script: Path, run_dir: Path, job_id: str) -> Run:
    """The run of a script that was submitted by hand: of the request in its last line, with the training's arguments as
    they are now, and with the difference to the script that the request gives. job_id: BY_HAND: the run gets the
    next number of this machine. Raises HarnessError: the script holds no request, or the run cannot be written."""
    text = script.read_text(encoding="utf-8")
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
            start = Start(Prepared(asked, job), command)
            started = _written(stage, start, text.replace(own_name, name))
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


def with_arguments(asked: Experiment, before: str, now: str) -> Experiment:
    """The experiment with the training's arguments of the script `now` that differ from the script `before`: the run's
    files and its record then agree with it. What the experiment does not allow stays as it was."""
    old, new = (_training_words(text) for text in (before, now))
    given: dict[str, Any] = {}
    for option in options_of(type(asked)):
        texts = [_value_after(option.flag.train, words) for words in (old, new)]
        if texts[0] != texts[1] and texts[1] is not None and not option.flag.repeats:
            given[option.field] = texts[1]
    changed, errors = validate(type(asked), asked.model_dump() | given)
    return asked if changed is None or errors else changed


def _training_words(script: str) -> list[str]:
    found = re.search(r"^TRAINING=\((.*?)\)$", script, re.MULTILINE | re.DOTALL)
    try:
        return shlex.split(found[1], comments=True) if found else []
    except ValueError:
        return []


def _value_after(flag: str | None, words: list[str]) -> str | None:
    after = words[words.index(flag) + 1] if flag in words[:-1] else "--"
    return None if after.startswith("--") else after


def why_never_begun(run: Run) -> str:
    """Of a job that wrote nothing: the last line that its shell printed; empty where there is none."""
    try:
        lines = read_end(run.scheduler_log, 1 << 12).decode("utf-8", "replace").strip().splitlines()
    except (OSError, ValueError):
        return ""
    if not lines:
        return ""
    python = run.record.job.get("python")
    hint = "; job_python of the site file names another Python" * (isinstance(python, str) and python in lines[-1])
    return printable(f"its script did not begin: {lines[-1]}{hint}")


def look_at(run: Run) -> PolledState:
    """The run's state and why, from its backend; raises WorkError where that is not here. An end that the job could not
    write is kept in the run."""
    found = backend_of_run(run).poll(run)
    own = run.status()
    if found.state == "failed" and (full := why_it_wrote_no_more(run)):
        found = found._replace(why=full)
    if found.state == "failed" and own is None and not found.why:
        found = found._replace(why=why_never_begun(run))
    settled = own is not None and own.state == found.state and own.is_settled
    if found.state == "node_fail" and not settled and (silent := silent_nodes(run.path, SILENT_S)):
        found = found._replace(why="; ".join(filter(None, [found.why, who_is_silent(silent)])))
    if found.told_by is not None and found.state in FINAL and not settled:
        run.write_down(found.state, found.told_by, found.why)
    if found.state == "completed" and own and (lost := why_nothing_was_recorded(run.record, own.missing)):
        return found._replace(why=lost)
    if found.state in FINAL and own and own.state == found.state and own.why and not found.why:
        return found._replace(why=own.why)
    hang = None if found.why or found.state in ("queued", "completed", "unknown") else read_hang(run.path)
    if hang is not None and hang.until_ns is None:
        ending = hang.stops and found.state == "running"
        return found._replace(why=hang.since_clock + "; it is being ended" * ending, ending=found.ending or ending)
    if found.state == "completed" and own and own.note and not found.why:
        return found._replace(why=own.note)
    if found.state == "failed" and own and not found.why:
        return found._replace(why=what_it_means(own.exit_code))
    return found


def state_of(run: Run) -> State:
    """The run's state alone. Raises as `look_at`."""
    return look_at(run).state


class Cancelled(NamedTuple):
    """The result of a cancellation: the run's state before it, and the other runs that end with it."""

    before: PolledState
    others: list[Run]


def cancel(run: Run) -> Cancelled:
    """Stop a run that has not ended. Raises WorkError: it could not be stopped."""
    before = look_at(run)
    over = before.state in FINAL
    return Cancelled(before, [] if over else backend_of_run(run).cancel(run))


def shell_variables(environ: Mapping[str, str], job: Job) -> dict[str, str]:
    """The variables of a shell, by name, that the job inherits from it and that change how its training communicates or
    computes: without secrets, and without those that the job or its backend sets."""
    return passed_on(environ, job.env)


def sbatch_variables(environ: Mapping[str, str], job: Job) -> dict[str, str]:
    """The variables of a shell, by name, by which sbatch changes the job, since no option of the job overrules them."""
    return for_sbatch(environ, job.directives) if job.site.scheduler == "slurm" else {}


MOST_NAMED = 4  # of the variables of a Slurm job


def what_the_shell_brings(environ: Mapping[str, str], *jobs: Job) -> list[str]:
    """A line for each way in which the shell or the user's own files change the jobs."""
    return list(dict.fromkeys(line for job in jobs for line in _what_it_brings(environ, job)))


def _what_it_brings(environ: Mapping[str, str], job: Job) -> list[str]:
    lines = []
    if variables := shell_variables(environ, job):
        lines.append(f"from your shell: {variables_in_words(variables)}")
    if variables := sbatch_variables(environ, job):
        lines.append(f"from your shell, for sbatch: {variables_in_words(variables)}")
    if backend_of(job.site).RUNS_HERE and (outer := sorted(name for name in environ if name.startswith("SLURM_"))):
        more = f" and {len(outer) - MOST_NAMED} more" if len(outer) > MOST_NAMED else ""
        lines.append(f"not passed to the job, as they are of another one: {', '.join(outer[:MOST_NAMED])}{more}")
    return [*lines, *launch_of(job.experiment).notes(job.experiment, job.device)]


def _record(start: Start) -> Record:
    asked, job, _ = start.prepared
    return Record(
        job_id="",
        backend=job.site.scheduler,
        experiment=asked,  # type: ignore[arg-type]  # an instance of one of the union's classes
        # The shell's allocation is no place for another launch of this record.
        site=job.site.model_copy(update={"scheduler": "slurm"} if job.site.scheduler == ALLOCATION else {}),
        job=job.as_json(),
        command=start.command,
        git=git_state(),
        versions=_versions(asked),
        program=_program(asked, job),
        user=this_user(),
        submit_host=socket.gethostname(),
        created_ns=time.time_ns(),
        part=start.part,
        inherited=shell_variables(os.environ, job),
        for_sbatch=sbatch_variables(os.environ, job),
    )

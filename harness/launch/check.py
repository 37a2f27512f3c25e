"""What a job names and is not there, told before anybody queues for it.

Only what the job itself will read by that name from this machine or from storage it shares with the nodes; what only
exists on a compute node cannot be seen from here. Knows resolved jobs, writes nothing.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from harness.errors import RequestError
from harness.experiment import Experiment, Megatron, Training
from harness.launch.job import Job
from harness.launch.nsys import load_options
from harness.launch.words import Word, read_here, shown
from harness.model import model_names
from harness.paths import expanded

Wanted = Literal["file", "folder", "prefix", "weights"]


def with_whole_paths(experiment: Experiment) -> Experiment:
    """The experiment with a user's paths made absolute: the job runs in another folder than this."""
    if not isinstance(experiment, Training):
        return experiment
    paths = {"data": experiment.data, "model": _model_path(experiment)}
    if isinstance(experiment, Megatron):
        paths["data_path"] = experiment.data_path
    whole = {name: str(expanded(path).absolute()) for name, path in paths.items() if path is not None}
    return experiment.model_copy(update=whole)


def _model_path(experiment: Training) -> str | None:
    name = experiment.model
    if name is None or name in model_names():
        return None
    try:
        return name if expanded(name).exists() else None
    except OSError:
        return None  # whoever reads it says why it cannot


def check(job: Job, environ: Mapping[str, str]) -> None:
    """Look for everything the job names.

    Raises:
        RequestError: something is missing; one line each.
    """
    errors = [
        *_runs_folder(job),
        *_programs(job, environ),
        *_weights(job, environ),
        *_data(job, environ),
        *_nsys_options(job),
    ]
    if errors:
        raise RequestError("\n".join(errors))


def _runs_folder(job: Job) -> Iterator[str]:
    if not job.site.is_local and "\\" in job.output_dir:
        yield (
            f"{job.output_dir}: Slurm writes no log to a path with a backslash in it: choose another with HARNESS_RUNS"
        )


def _programs(job: Job, environ: Mapping[str, str]) -> Iterator[str]:
    if job.image is not None:
        why = _missing(job.image, environ, "file")
        if why:
            yield (
                f"site {job.site.name}: its container image {why}: build it (containers/README.md) or name yours in a "
                "site file"
            )
    elif importlib.util.find_spec("torch") is None:
        yield (
            f"site {job.site.name} names no container, and the training packages are not in .venv: "
            "run `bash slurm.sh --install train`, or name a container in a site file"
        )


def _weights(job: Job, environ: Mapping[str, str]) -> Iterator[str]:
    if job.checkpoint is None:
        return
    why = _missing(job.checkpoint, environ, "folder") or _missing(job.checkpoint, environ, "weights")
    if why:
        yield (
            f"site {job.site.name}: the checkpoint {why}: add --random-weights (the profile is the same), or give "
            "--model PATH"
        )


def _data(job: Job, environ: Mapping[str, str]) -> Iterator[str]:
    asked = job.experiment
    if isinstance(asked, Training) and job.data is not None:
        why = _missing(job.data, environ, "file")
        if why:
            yield (
                f"--data: {why}"
                if asked.data
                else f"site {job.site.name}: its data file: {why}: give yours with --data, or change the site file"
            )
    if isinstance(asked, Megatron) and job.megatron_data is not None:
        why = _missing(job.megatron_data, environ, "prefix")
        if why:
            source = "--data-path" if asked.data_path else f"site {job.site.name}: its megatron_data"
            yield (
                f"{source}: {why} as PREFIX.bin and PREFIX.idx: give yours with --data-path, or --data FILE to have "
                "one built"
            )


def _has_weights(folder: Path) -> bool:
    return any(path.suffix in (".safetensors", ".bin") for path in folder.iterdir())


def _is_prefix(path: Path) -> bool:
    return all(Path(f"{path}{end}").is_file() for end in (".bin", ".idx"))


IS_THERE: dict[Wanted, Callable[[Path], bool]] = {
    "file": Path.is_file,
    "folder": Path.is_dir,
    "prefix": _is_prefix,
    "weights": _has_weights,
}


def _missing(word: Word, environ: Mapping[str, str], wanted: Wanted) -> str:
    """Why `word` is not there, as the rest of a sentence; empty when it is."""
    here = read_here(word, environ)
    if here.unset:
        return f"{shown(word)} cannot be found, as ${here.unset[0]} is not set here"
    if not here.text.startswith("/"):
        return f"{here.text!r} must be an absolute path"
    meant = "" if here.text == shown(word) else f" ({here.text})"
    why = _amiss(Path(here.text), wanted)
    return why and f"{shown(word)}{meant} {why}"


def _amiss(path: Path, wanted: Wanted) -> str:
    """Why `path` is not what is wanted; empty when it is."""
    try:
        if IS_THERE[wanted](path):
            return ""
        if wanted == "weights":
            return "holds no weights (*.safetensors)"
        exists = wanted != "prefix" and path.exists()
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return f"exists but is not a {wanted}" if exists else "does not exist"


def _nsys_options(job: Job) -> Iterator[str]:
    if job.profiler != "nsys":
        return
    if "/" in job.nsys_options and not Path(job.nsys_options).is_absolute():
        yield f"site {job.site.name}: nsys {job.nsys_options!r} must be a name or an absolute path"
        return
    try:
        load_options(job.nsys_options)
    except RequestError as error:
        yield f"site {job.site.name}: {error}"


def check_script(job: Job, text: str) -> None:
    """Have bash read the script without running it: what it cannot read, it would find out after the queue.

    Raises:
        RequestError: a line of the site's is no shell.
    """
    said = _bash_says(text)
    if not said:
        return
    on_nodes = [("node_setup", line) for line in job.node_setup]
    on_nodes += [("node_cleanup", line) for line in job.node_cleanup]
    wrong = [f"{field} {line!r}" for field, line in on_nodes if _bash_says(f"{{ :\n{line}\n}}")]
    wrong += ["setup"] * bool(_bash_says("\n".join(job.setup)))
    raise RequestError(
        f"site {job.site.name}: bash cannot read its {' and '.join(wrong) or 'lines'} ({said})"
    )


def _bash_says(text: str) -> str:
    """What bash has to say of a script that it does not run, without where; empty when all is well."""
    done = subprocess.run(
        ["bash", "-O", "extglob", "-n"],  # which a site's earlier line may switch on, and nobody does here
        input=text.encode(),
        capture_output=True,
        check=False,
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
    )
    first = done.stderr.decode(errors="replace").partition("\n")[0]
    return re.sub(r"^bash: line \d+: (warning: )?", "", first)

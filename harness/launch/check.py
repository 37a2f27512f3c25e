"""What a job names and is not there, reported before the job waits in a queue.

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

from harness.common.errors import RequestError, TrainingNeeded, nearest
from harness.common.paths import ROOT, expanded
from harness.experiment.exercises import DDP, Experiment, Megatron, Training
from harness.experiment.model import model_names
from harness.experiment.options import options_of
from harness.launch.argv import Word, read_here, shown
from harness.launch.backends.registry import backend_of
from harness.launch.job import Job
from harness.launch.profilers.nsys import load_options
from harness.site.site import Site

OWN_SCRIPT = "train.py"
Wanted = Literal["file", "folder", "prefix", "weights"]


def with_whole_paths(experiment: Experiment) -> Experiment:
    """The experiment with a user's paths made absolute: the job runs in another folder than this."""
    fields = [option.field for option in options_of(type(experiment)) if option.flag.path]
    paths = {name: getattr(experiment, name) for name in fields}
    if isinstance(experiment, Training):
        paths["model"] = _model_path(experiment)
    whole = {name: str(expanded(path).absolute()) for name, path in paths.items() if path is not None}
    if isinstance(experiment, DDP) and experiment.script is not None:
        return experiment.model_copy(update=whole | {"script": _script_path(experiment, experiment.script)})
    return experiment.model_copy(update=whole)


def _script_path(experiment: DDP, given: str) -> str | None:
    """The script's name when the exercise's folder has it, else its whole path; None for the exercise's own."""
    folder, typed = _exercise_folder(experiment), expanded(given).absolute()
    named = "/" not in given and _is_file(folder / given)
    name = given if named else typed.name if typed.parent.resolve() == folder else None
    if name == OWN_SCRIPT:
        return None
    return name or str(typed)


def refuse_two_scripts(experiment: Experiment) -> None:
    """For an experiment as it was typed, before `with_whole_paths`.

    Raises:
        RequestError: `--script NAME` names one script here and another in the exercise's folder.
    """
    if not isinstance(experiment, DDP) or experiment.script is None or "/" in experiment.script:
        return
    here, theirs = Path(experiment.script).absolute(), _exercise_folder(experiment) / experiment.script
    if _is_file(here) and _is_file(theirs) and not here.samefile(theirs):
        raise RequestError(
            f"--script {here.name}: there is one here and one in the exercise's folder: give ./{here.name} for yours, "
            f"or {theirs}"
        )


def _exercise_folder(experiment: Experiment) -> Path:
    return (ROOT / "exercises" / experiment.folder).resolve()


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False  # whoever reads it says why it cannot


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
    errors = missing(job, environ)
    if errors:
        raise RequestError("\n".join(errors))


def missing(job: Job, environ: Mapping[str, str]) -> list[str]:
    """What the job names and is not there, a sentence each."""
    return [
        *backend_of(job.site).refusals(job.output_dir),
        *_programs(job, environ),
        *_script(job, environ),
        *_weights(job, environ),
        *_data(job, environ),
        *_nsys_options(job),
    ]


def forewarnings(job: Job, environ: Mapping[str, str]) -> list[str]:
    """What a launch would do about what is missing, for a dry run: stop, or on this machine first install."""
    found = map(_would_stop, _missing_still(job, environ))
    return [_FIRST_INSTALLS, *found] if lacks_training(job.site) else list(found)


def require_training(job: Job, environ: Mapping[str, str]) -> None:
    """To be asked before a launch says anything, as slurm.sh will start it again.

    Raises:
        TrainingNeeded: this machine trains, and the training packages are all that is missing.
    """
    if lacks_training(job.site) and not _missing_still(job, environ):
        raise TrainingNeeded


def lacks_training(site: Site) -> bool:
    """Whether a run at `site` is one on this machine, outside of a container, and cannot train here yet."""
    return backend_of(site).RUNS_HERE and site.container is None and not _has_torch()


def _missing_still(job: Job, environ: Mapping[str, str]) -> list[str]:
    """What is missing also after slurm.sh has installed the training packages."""
    installed = list(_programs(job, environ)) if lacks_training(job.site) else []
    return [sentence for sentence in missing(job, environ) if sentence not in installed]


_FIRST_INSTALLS = (
    "the training packages are not in .venv: slurm.sh would first install them, about a gigabyte"
)


def _would_stop(sentence: str) -> str:
    return f"a launch would stop here: {sentence}"


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def _programs(job: Job, environ: Mapping[str, str]) -> Iterator[str]:
    if job.image is not None:
        why = _missing(job.image, environ, "file")
        if why:
            yield (
                f"site {job.site.name}: its container image {why}: build it (containers/README.md) or name yours in a "
                "site file"
            )
    elif not _has_torch():
        yield (
            f"site {job.site.name} names no container, and the training packages are not in .venv: "
            "run `bash slurm.sh --install train`, or name a container in a site file"
        )


def _script(job: Job, environ: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with `--script`; the exercise's folder may be meant by a name that it does not have."""
    if not isinstance(job.experiment, DDP) or job.experiment.script is None:
        return
    folder = _exercise_folder(job.experiment)
    path = folder / job.experiment.script
    why = _missing(str(path), environ, "file") or _no_python(path)
    if why:
        own = sorted(found.name for found in folder.glob("train*.py"))
        near = nearest(path.name, own)
        hint = f": did you mean {near}?" if near and near != path.name else ""
        yield f"--script: {why}; give a path, or one of the exercise's own ({', '.join(own)}){hint}"


def _no_python(path: Path) -> str:
    if path.suffix != ".py":
        return f"{path} is not a Python file (*.py)"
    return "" if os.access(path, os.R_OK) else f"{path} cannot be read (Permission denied)"


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
    why = _what_is_wrong(Path(here.text), wanted)
    return why and f"{shown(word)}{meant} {why}"


def _what_is_wrong(path: Path, wanted: Wanted) -> str:
    """What is wrong with `path` as the file or folder of this kind; empty when nothing is."""
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

"""Launches of the harness, as a student types them, and their results: a run's folder and its summary.

Cases have names, and the runs that went well are kept in `work/runs.json`, so that later steps find them and a
second start of the same command does not run them again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from failures import LackError, StepError
from place import Finished, Place, has_gpu, require_success
from results import read_json, write_json

LARGE, TINY = "llama-3.2-1b", "tiny-llama"
WINDOW = ("--skip-steps", "6", "--wait-steps", "1", "--warmup-steps", "2", "--active-steps", "5")


class Case(NamedTuple):
    """One launch: a name, the arguments of `slurm.sh`, and its time limit in seconds."""

    name: str
    words: tuple[str, ...]
    seconds: float = 80.0


class Run(NamedTuple):
    """A completed run."""

    name: str
    path: Path
    summary: dict[str, Any]

    @property
    def trace(self) -> Path:
        """Rank 0's Kineto trace."""
        return self.path / "torch" / "rank0.json.gz"


def sizes() -> tuple[str, ...]:
    """The flags that choose the model: Llama-3.2-1B with random weights, on a machine without GPU a tiny one."""
    return ("--model", LARGE, "--random-weights") if has_gpu() else ("--model", TINY)


def harness(place: Place, words: Sequence[str | Path], seconds: float) -> str:
    """The output of a command of the harness. Raises StepError: the command failed."""
    argv = [place.python, "-I", "-m", "harness", *words]
    done = place.run(argv, seconds, place.out / "acceptance.log")
    return require_success(done, f"slurm.sh {' '.join(map(str, words))}").stdout


def launched(place: Place, case: Case) -> Run:
    """The run of a case: the completed one, else a new one. Raises StepError: the run did not complete."""
    known = find(place, case.name)
    if known is not None:
        return known
    words: list[str] = [*case.words, "--site", "local", "-g", "1", "--json"]
    argv = ["-I", "-m", "harness", *words]
    done = place.run([place.python, *argv], place.seconds_for(case.seconds), place.out / "acceptance.log")
    said = _last_object(done.stdout)
    if done.code != 0 or said is None or said.get("state") != "completed":
        raise StepError(f"{case.name}: {_why(place, done, said)}")
    _keep(place, case.name, said["path"])
    found = find(place, case.name)
    if found is None:
        raise StepError(f"{case.name}: {said['path']} has no summary.json")
    return found


def find(place: Place, name: str) -> Run | None:
    """The run of a case, if it completed and is still on this machine."""
    known: dict[str, str] = read_json(place.work / "runs.json") or {}
    path = Path(known.get(name, ""))
    summary = read_json(path / "summary.json") if name in known else None
    return Run(name, path, summary) if summary else None


def all_runs(place: Place) -> list[Run]:
    """Every case's run, in the order in which they ran."""
    found = [find(place, name) for name in read_json(place.work / "runs.json") or {}]
    return [run for run in found if run is not None]


def forget(place: Place, names: Sequence[str]) -> None:
    """Forget the runs of these cases, so that they run again; their folders stay."""
    known = read_json(place.work / "runs.json") or {}
    write_json(place.work / "runs.json", {name: path for name, path in known.items() if name not in names})


def required(place: Place, names: Sequence[str]) -> list[Run]:
    """The completed runs of some cases. Raises LackError: there is no such run."""
    found = [run for name in names if (run := find(place, name)) is not None]
    if not found:
        raise LackError(f"the runs of step training, which are not in {place.work}: --only training --again")
    return found


def report(place: Place, trace: Path, *options: str) -> dict[str, Any]:
    """The summary of a trace, by `slurm.sh report`."""
    text = harness(place, ["report", trace, "--json", "--no-html", *options], place.seconds_for(60))
    return _object(text)


def answer(place: Place, what: Path) -> str:
    """What `slurm.sh report` prints about a run or a trace: the sentences that a student reads."""
    return harness(place, ["report", what, "--no-html"], place.seconds_for(60))


def _keep(place: Place, name: str, path: str) -> None:
    known = read_json(place.work / "runs.json") or {}
    write_json(place.work / "runs.json", {**known, name: path})


def _why(place: Place, done: Finished, said: dict[str, Any] | None) -> str:
    """Why a launch failed; the output of the training goes into our log."""
    if said is None:
        return "its time limit was reached" if done.code is None else f"exit status {done.code}: {done.ending}"
    argv = [place.python, "-I", "-m", "harness", "logs", said["job_id"]]
    logs = place.run(argv, 30, place.out / "acceptance.log")
    lines = [line.strip() for line in (logs.stdout + logs.stderr).splitlines()]
    errors = [line for line in lines if re.match(r"error: |(\w+\.)*\w*Error\b", line)]
    return f"the run {said['name']} ended as {said['state']}: {(errors or ['see acceptance.log'])[0][:300]}"


def _last_object(printed: str) -> dict[str, Any] | None:
    """The JSON that a launch prints last; None if there is no JSON."""
    lines = [line for line in printed.splitlines() if line.startswith("{")]
    return _object(lines[-1]) if lines else None


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise StepError(f"the harness printed no JSON ({error}): {text[:120]!r}") from None
    if not isinstance(found, dict):
        raise StepError(f"the harness printed a list instead of one job: {text[:120]!r}")
    return found

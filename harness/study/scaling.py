"""Scaling studies: one training on more and more devices, and what keeps it from the ideal."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from math import gcd, lcm
from typing import Any, Literal, NamedTuple

from harness.common.errors import RequestError
from harness.common.paths import shown_file
from harness.common.whole_number import whole_number
from harness.compare.points import EXPLAINING
from harness.experiment.exercises import Experiment, Megatron, OwnTraining, ProfiledTraining, Training
from harness.experiment.parse import validate
from harness.launch.argv import read_here
from harness.launch.backends.registry import backend_of
from harness.launch.submit import prepare
from harness.site.site import Site
from harness.study.sweeps.axes import OWN, Settings, Sweep
from harness.study.sweeps.expand import SweepPoints

Mode = Literal["strong", "weak"]
Axis = Literal["nodes", "gpus_per_node"]
_WORDS = {"nodes": "nodes", "gpus_per_node": "the devices of a node"}
SHOW = ["tokens_per_s", *EXPLAINING]


class Study(NamedTuple):
    """What is asked: the exercise's class, the fields given, the sizes along an axis, in which mode."""

    cls: type[Experiment]
    given: Mapping[str, Any]
    axis: Axis
    sizes: Sequence[int]
    mode: Mode
    repeats: int


def sizes_of(flag: str, text: str) -> list[int]:
    """`1,2,4` as numbers, the smallest first. Raises RequestError: they are not sizes of one study."""
    sizes = sorted(whole_number(word) or 0 for word in text.split(","))
    if not all(sizes) or len(sizes) < 2 or len(set(sizes)) < len(sizes):
        raise RequestError(f"{flag}: got {text!r}, takes at least two different numbers above 0, as in 1,2,4,8")
    return sizes


def study_sweep(study: Study, site: Site) -> Sweep:
    """The study as a sweep, whose `zip` has the sizes and the fields that go with them.
    Raises RequestError: the exercise trains nothing, or the work cannot be split; one line per reason."""
    number = study.cls.model_fields["exercise"].default
    if not issubclass(study.cls, ProfiledTraining):
        raise RequestError(f"-e {number}: it has no training: use -e 1, -e 2 or -e 3")
    if study.cls is OwnTraining and study.mode == "strong":
        raise RequestError(
            "--strong: which flag of your script is its batch is not known: use --weak, or a sweep whose zip has the "
            f"devices and that flag ({shown_file('docs/studies.md')})"
        )
    rows = [_resolved(study, site, size) for size in study.sizes]
    fields = _fields(study, rows)
    same = {name: values[0] for name, values in fields.items() if all(each == values[0] for each in values)}
    varies = {name: values for name, values in fields.items() if name not in same}
    given = {name: value for name, value in study.given.items() if name not in fields}
    what = f"exercise {number} ({study.cls.title})" if number != OWN else "your own training"
    who = rows[0].name(None)[0] if number == OWN else f"e{number}"
    name = f"scaling-{who}-{study.axis.partition('_')[0]}-{'-'.join(map(str, study.sizes))}-{study.mode}"
    return Sweep(
        name=name,
        title=f"{study.mode} scaling of {what} over {_WORDS[study.axis]}",
        base={"exercise": number, **given, **same},
        zip={study.axis: list(study.sizes), **varies},
        repeats=study.repeats,
        show=SHOW,
    )


def threads_of(sweep_points: SweepPoints) -> dict[str, str]:
    """Of a sweep over devices, on CPUs of this machine: as many threads for each process at every size as at the
    largest; else empty.

    Without it one process alone would compute on all cores, and be no smaller than two.
    """
    site = sweep_points.site
    if not sweep_points.sweep.scales or not backend_of(site).RUNS_HERE or "OMP_NUM_THREADS" in site.env:
        return {}
    largest = max((task.prepared.job for task in sweep_points.tasks), key=lambda job: job.experiment.world_size or 1)
    threads = read_here(largest.env["OMP_NUM_THREADS"], os.environ).text
    return {"OMP_NUM_THREADS": threads} if largest.device == "cpu" else {}


def _resolved(study: Study, site: Site, size: int) -> ProfiledTraining:
    """The experiment of this size with all its fields. Raises RequestError: it cannot run there."""
    usual = {name: value for name, value in site.defaults.items() if name in study.cls.model_fields}
    # A batch that the mode will change must not be refused before it was changed.
    given = {name: value for name, value in study.given.items() if name != "global_batch_size"}
    asked, errors = validate(study.cls, usual | given | {study.axis: size})
    if asked is None:
        raise RequestError("\n".join(errors))
    resolved = prepare(asked, site).job.experiment
    if not isinstance(resolved, ProfiledTraining):
        raise TypeError(resolved)
    return resolved


def _fields(study: Study, experiments: Sequence[ProfiledTraining]) -> dict[str, list[Any]]:
    """The options that vary with the size, each with its values."""
    if isinstance(experiments[0], Megatron):
        settings = _megatron(study, [row for row in experiments if isinstance(row, Megatron)])
    elif study.mode == "weak":
        settings = [{} for _ in experiments]
    else:
        settings = _strong([row for row in experiments if isinstance(row, Training)])
    return {name: [each[name] for each in settings] for name in settings[0]}


def _strong(experiments: Sequence[Training]) -> list[Settings]:
    """Micro-batch and accumulation, whose product times the ranks stays; the micro-batch as large as it was, if it can.

    Raises RequestError: the global batch does not divide by the ranks of a size.
    """
    micro, accumulated = (
        experiments[0].micro_batch_size or 1,
        int(getattr(experiments[0], "gradient_accumulation_steps", 1)),
    )
    ranks = [row.world_size or 1 for row in experiments]
    whole = micro * accumulated * ranks[0]
    wrong = [each for each in ranks if whole % each]
    if wrong:
        raise RequestError(
            f"--strong: {whole} samples a step (micro-batch {micro} × accumulation {accumulated} × {ranks[0]} ranks) "
            f"cannot be split over {', '.join(map(str, wrong))} ranks: start with --micro-batch-size "
            f"{micro * (lcm(*ranks) // gcd(whole, lcm(*ranks)))}"
        )
    found = []
    for each in (whole // ranks_here for ranks_here in ranks):
        size = max(n for n in range(1, min(micro, each) + 1) if each % n == 0)
        found.append({"micro_batch_size": size, "gradient_accumulation_steps": each // size})
    return found


def _megatron(study: Study, experiments: Sequence[Megatron]) -> list[Settings]:
    """The global batch: kept, or as the ranks. The tensor-parallel size stays that of the smallest size."""
    whole = study.given.get("global_batch_size") or experiments[0].global_batch_size or 1
    first = experiments[0].world_size or 1
    found: list[Settings] = []
    for row in experiments:
        batch = int(whole) if study.mode == "strong" else int(whole) * (row.world_size or 1) // first
        tp: Settings = {} if "tp" in study.given else {"tp": experiments[0].tp}
        found.append({"global_batch_size": batch} | tp)
    return found

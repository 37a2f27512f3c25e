"""`slurm.sh sweep scaling`: the sweep of one training on more and more devices."""

from __future__ import annotations

from typing import Any, cast

from harness.cli.help import HelpPage, as_text, flag_rows
from harness.cli.launch.launch import own_fields
from harness.cli.parser import DeclaredParameter
from harness.cli.study.series import Arguments, flags_of, read_arguments, repeats_of
from harness.cli.study.sweep import parted, run_sweep, site_of
from harness.common.errors import RequestError
from harness.experiment.exercises import EXERCISES, OwnTraining, listing
from harness.experiment.parse import flags_as_fields
from harness.site.site import override
from harness.study.scaling import Axis, Mode, Study, sizes_of, study_sweep
from harness.study.sweeps.axes import Sweep
from harness.study.sweeps.stored import stored_request

FURTHER = (
    DeclaredParameter(
        ("--gpus",), "N,N…", "GPUs of one node (without GPUs: processes), as in 1,2,4, instead of --nodes"
    ),
    DeclaredParameter(("--strong",), "", "strong scaling: the same global batch, split over more devices"),
    DeclaredParameter(("--weak",), "", "weak scaling: the same batch per device [default]"),
    DeclaredParameter(("--repeats",), "N", "runs per size, for the intervals [3]"),
)
REPEATS = 3
PAGE = HelpPage(
    usage=[
        "sweep scaling -e EXERCISE --nodes 1,2,4,8 [--strong|--weak] [FLAGS] [-- FLAGS OF A LAUNCH]",
        "sweep scaling -e EXERCISE --gpus 1,2,4 …: the devices of one node",
        "sweep scaling --nodes 1,2,4 -- train.py …: a training of your own",
        "sweep NAME: continue a study, or show it",
    ],
    about="One training on more and more devices: speed-up, efficiency, and what limits them. The same command "
    "again continues: a run that is done is not repeated.",
    flags=flag_rows(flags_of(FURTHER)),
    examples=[("sweep scaling -e 1 --nodes 1,2,4 --dry-run", "the runs that would be made")],
    docs="docs/studies.md",
)


def scaling(arguments: list[str]) -> int:
    """Run a sweep over devices, or continue it; returns the exit code."""
    if not arguments:
        print(as_text(PAGE))
        return 0
    read = read_arguments(arguments, "sweep scaling", FURTHER)
    found = _sweep(read)
    return run_sweep(read.wanted.name or found.name, found, read)


def _sweep(arguments: Arguments) -> Sweep:
    axis, sizes = _sizes(arguments)
    of_site, flags = parted(arguments)
    stored = stored_request(arguments.wanted.name) if arguments.wanted.name else None
    site = override(site_of(arguments, stored)[0].site, of_site)
    return study_sweep(_asked(arguments, flags, axis, sizes), site)


def _sizes(arguments: Arguments) -> tuple[Axis, list[int]]:
    """The axis and its sizes; they are taken from the launch's flags."""
    nodes, gpus = str(arguments.launch.get("--nodes", "")), arguments.further.get("--gpus")
    if "," in nodes and gpus is not None:
        raise RequestError("--nodes and --gpus both name sizes: a study has one of them")
    if gpus is not None:
        if arguments.launch.pop("--gpus-per-node", None):
            raise RequestError("--gpus names the sizes, and -g/--gpus-per-node one of them: drop -g")
        return "gpus_per_node", sizes_of("--gpus", gpus)
    if not nodes:
        raise RequestError("scaling: the sizes are missing: --nodes 1,2,4,8, or --gpus 1,2,4 on one node")
    arguments.launch.pop("--nodes")
    return "nodes", sizes_of("--nodes", nodes)


def _asked(arguments: Arguments, flags: list[tuple[str, Any]], axis: Axis, sizes: list[int]) -> Study:
    number = str(arguments.launch.get("--exercise", ""))
    own = _own(arguments.script) if arguments.script is not None else {}
    if not own and number not in map(str, EXERCISES):
        raise RequestError(f"-e/--exercise: got {number!r}, there are {listing()}, or a training of your own after --")
    cls = OwnTraining if own else EXERCISES[int(number)]
    given, wrong = flags_as_fields(cls, flags)
    modes = [mode for mode in ("strong", "weak") if f"--{mode}" in arguments.further]
    if len(modes) > 1:
        wrong.append("--strong and --weak exclude each other: drop one")
    if wrong:
        raise RequestError("\n".join(wrong))
    repeats = repeats_of(arguments.further["--repeats"]) if "--repeats" in arguments.further else REPEATS
    return Study(cls, own | given, axis, sizes, cast("Mode", modes[0] if modes else "weak"), repeats)


def _own(script: tuple[str, ...]) -> dict[str, Any]:
    given = {name: value for name, value in own_fields(script).items() if value is not None}
    return given | {"command": list(script)}

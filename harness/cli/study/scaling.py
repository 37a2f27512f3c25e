"""`slurm.sh sweep scaling`: one training on more and more devices as a series, and what limits its speed-up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from harness.cli.help import HelpPage, as_text, flag_rows
from harness.cli.launch.launch import own_fields
from harness.cli.parser import DeclaredParameter
from harness.cli.study.series import Arguments, close, flags_of, read_arguments, repeats_of
from harness.cli.study.sweep import SweepSeries, checked_series, parted, print_json, run_series, site_of
from harness.cli.terminal import columns
from harness.common.errors import RequestError, nearest
from harness.common.paths import COMMAND, PROGRAM
from harness.experiment.exercises import EXERCISES, OwnTraining, listing
from harness.experiment.parse import flags_as_fields
from harness.site.site import override
from harness.study.scaling import Axis, Mode, Study, sizes_of, study_sweep
from harness.study.sweeps.stored import all_series, stored_request

if TYPE_CHECKING:
    from harness.compare.points import Size
    from harness.study.series.runner import SeriesOutcome
    from harness.study.sweeps.axes import Sweep

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
    """Run a scaling study, continue it, or show it; returns the exit code."""
    if not arguments:
        print(as_text(PAGE))
        return 0
    if arguments[0].startswith("-"):
        read = read_arguments(arguments, "sweep scaling", FURTHER)
        found = _sweep(read)
        name = read.wanted.name or found.name
    else:
        read = read_arguments(arguments[1:], "sweep scaling", FURTHER)
        name, found = arguments[0], _stored(arguments[0])
        if "--repeats" in read.further:
            found = found.model_copy(update={"repeats": repeats_of(read.further["--repeats"])})
    series = checked_series(name, found, read, f"{PROGRAM} sweep {name}", "scaling")
    return run_series(series, read, lambda outcome: _answer(series, outcome, read))


def _stored(name: str) -> Sweep:
    found = stored_request(name)
    if found is None or found.kind != "scaling":
        near = nearest(name, all_series())
        hint = f": did you mean {near}?" if near else f"; to begin one: {PROGRAM} sweep scaling -e 1 --nodes 1,2,4"
        raise RequestError(f"scaling: there is no study {name!r}{hint}")
    return found.sweep


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


def _answer(series: SweepSeries, outcome: SeriesOutcome, arguments: Arguments) -> int:
    from harness.compare.points import what_limits
    from harness.study.sweeps.results import measured_runs, sizes

    measured, lacking = measured_runs(outcome.places)
    found = sizes(measured, series.points.settings)
    said = what_limits(found)
    if arguments.wanted.json:
        print_json(series, outcome, sizes=[size.model_dump() for size in found], limit=said)
    elif found:
        _print(series, found, said)
    return close(outcome, series.again, lacking)


def _print(series: SweepSeries, sizes: list[Size], said: str) -> None:
    from harness.report.sweeps import scaling_table, why_table
    from harness.report.tables.table import WIDTH, TableScreen

    screen = TableScreen(columns(WIDTH))
    title = series.points.sweep.title
    print("\n".join(screen.block(scaling_table(title[0].upper() + title[1:], sizes))))
    print("\n".join(["", *screen.block(why_table(sizes)), "", *screen.wrapped(said[0].upper() + said[1:] + ".", "")]))
    print(f"next: {COMMAND} report {sizes[-1].runs[0]}")

"""`slurm.sh sweep`: every combination of a file's settings as runs, and what was measured at each."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli.campaign import (
    Plan,
    Wanted,
    Words,
    closing_lines,
    confirmed,
    count_text,
    counts,
    help_lines,
    limits_of,
    make,
    plan_lines,
    plan_of,
    read_words,
    state_lines,
    state_rows,
)
from harness.cli.command_line import Declared
from harness.common.errors import RequestError
from harness.common.paths import expanded

if TYPE_CHECKING:
    from harness.study.campaign.drive import Outcome
    from harness.study.sweeps.expand import Expanded
    from harness.study.sweeps.request import Sweep
    from harness.study.sweeps.stored import Asked

FURTHER = (
    Declared(("--repeats",), True, "runs per point, where it shall be another number than the file's"),
    Declared(("--plot",), True, "the measured value that --png shows [the first of the file's show]"),
    Declared(("--against",), True, "the option on the plot's horizontal axis [the first that varies]"),
)


def sweep(words: list[str]) -> int:
    """Run a sweep, go on with it, or show it; returns the exit code.

    Raises:
        RequestError: a sentence for each thing that is wrong.
    """
    if {"-h", "--help"} & set(words):
        print(_help())
        return 0
    if not words or words[0].startswith("-"):
        wanted = read_words(words, "sweep", FURTHER).wanted
        return _list(wanted.json)
    return _sweep(words[0], read_words(words[1:], "sweep", FURTHER))


def _help() -> str:
    return "\n".join(
        [
            "Usage: slurm.sh sweep FILE.yaml|NAME [FLAGS] [-- FLAGS OF A LAUNCH, for all points]",
            "       slurm.sh sweep: the sweeps that come with the harness, and those that began",
            "",
            *help_lines(FURTHER),
            "",
            "The same command again goes on where it stopped: what is done is not repeated. docs/sweeps.md.",
        ]
    )


def _list(as_json: bool) -> int:
    from harness.study.sweeps.request import read_sweep, shipped_sweep, sweep_names
    from harness.study.sweeps.stored import all_series, stored_request

    shipped = {name: read_sweep(path).title for name in sweep_names() if (path := shipped_sweep(name))}
    began = {name: request.sweep.title for name in all_series() if (request := stored_request(name))}
    if as_json:
        print(json.dumps({"sweeps": shipped, "series": began}, indent=1))
        return 0
    width = max(map(len, [*shipped, *began]), default=0)
    print("sweeps (slurm.sh sweep NAME starts one):")
    print("\n".join(f"  {name:<{width}}  {title}" for name, title in shipped.items()))
    if began:
        print("began here (slurm.sh sweep NAME goes on, or shows it; --status: where each point stands):")
        print("\n".join(f"  {name:<{width}}  {title}" for name, title in began.items()))
    return 0


def _sweep(word: str, words: Words) -> int:
    from harness.study.campaign.series import checked_name
    from harness.study.sweeps.stored import asked_sweep

    wanted = words.wanted
    if wanted.name is not None:
        checked_name(wanted.name, "--name")
    asked = asked_sweep(word, wanted.name)
    checked_name(asked.series, f"sweep {word}: name")
    found = _expanded(asked, words)
    plan = plan_of(asked.series, found.tasks, limits_of(wanted, found.tasks))
    _check_targets(words)
    if not wanted.json:
        _print_plan(found, plan)
    if wanted.dry_run or wanted.status:
        return _show_state(found, plan, wanted)
    return _run(found, plan, words)


def _expanded(asked: Asked, words: Words) -> Expanded:
    """The points, at the site where the series began, else at the chosen one; its request is compared, not written."""
    from harness.experiment.options import options_of
    from harness.site.detection import choose_site
    from harness.site.site import Site
    from harness.study.sweeps.expand import expand
    from harness.study.sweeps.stored import refuse_another

    stored, word = asked.stored, words.wanted.site
    if stored is not None and word is None:
        site, word = stored.site, stored.site_word
    else:
        site = choose_site(word).site
    site_fields = {name: option.field for option in options_of(Site) for name in option.flag.names}
    changes = {site_fields[name]: value for name, value in words.launch.items() if name in site_fields}
    flags = [(name, value) for name, value in words.launch.items() if name not in site_fields]
    changed = _with_repeats(_with_flags(asked.sweep, flags), words.further.get("--repeats"))
    refuse_another(asked.series, stored, changed, site)
    return expand(changed, site, word, changes)


def _with_flags(sweep: Sweep, flags: list[tuple[str, Any]]) -> Sweep:
    """The sweep with a launch's flags in its base. Raises RequestError: a flag is not one of the exercise's."""
    from harness.experiment.parse import flags_as_fields
    from harness.study.sweeps.axes import exercise_of

    cls = exercise_of(sweep)
    given, wrong = flags_as_fields(cls, flags)
    wrong += [f"{name} varies in this sweep: drop its flag" for name in given if name in sweep.axes]
    if "exercise" in given:
        wrong.append(f"-e: this sweep is of exercise {sweep.base['exercise']}: drop it")
    if wrong:
        raise RequestError("\n".join(wrong))
    return sweep.model_copy(update={"base": {**sweep.base, **given}}) if given else sweep


def _with_repeats(sweep: Sweep, word: str | None) -> Sweep:
    if word is None:
        return sweep
    if not (word.isascii() and word.isdigit() and 0 < int(word) <= 1000):
        raise RequestError(f"--repeats: got {word!r}, takes a whole number from 1 to 1000")
    return sweep.model_copy(update={"repeats": int(word)})


def _check_targets(words: Words) -> None:
    from harness.report.sweeps.table import check_target

    for flag, path in (("--csv", words.wanted.csv), ("--png", words.wanted.png)):
        if path is not None:
            check_target(expanded(path), flag)


def _print_plan(found: Expanded, plan: Plan) -> None:
    title = f": {found.sweep.title}" if found.sweep.title else ""
    print(f"sweep {plan.series}{title}, at site {found.site.name}", file=sys.stderr)
    points = f"{len(found.settings)} points" + (f" × {found.repeats} runs" if found.repeats > 1 else "")
    axes = " × ".join(f"{name} ({n})" for name, n in _sizes(found).items())
    print(f"  {points}" + (f" over {axes}" if axes else ""), file=sys.stderr)
    for why in dict.fromkeys(left.why for left in found.left_out):
        keys = [left.key for left in found.left_out if left.why == why]
        more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
        print(f"  left out: {'; '.join(keys[:3])}{more}: {why}", file=sys.stderr)
    print("\n".join(plan_lines(plan)), file=sys.stderr)


def _sizes(found: Expanded) -> dict[str, int]:
    return {name: len({str(s[name]) for s in found.settings.values()}) for name in found.sweep.axes}


def _show_state(found: Expanded, plan: Plan, wanted: Wanted) -> int:
    if wanted.json:
        told = plan.estimate
        data = {
            "series": plan.series,
            "site": found.site.name,
            "points": state_rows(plan),
            "left_out": [left._asdict() for left in found.left_out],
            "device_ns": told._asdict(),
        }
        print(json.dumps(data, indent=1))
    elif wanted.dry_run:
        print("\n".join(f"{task.point.slot}: {' '.join(task.point.command)}" for task in plan.to_make))
    else:
        print("\n".join(state_lines(plan)))
    return 0


def _run(found: Expanded, plan: Plan, words: Words) -> int:
    from harness.study.sweeps.stored import Stored, store_request, stored_request

    running = any(place.stands == "running" for place in plan.places)
    outcome = None
    if plan.to_make or running:
        if plan.to_make and not confirmed(plan, words.wanted):
            print("nothing was started", file=sys.stderr)
            return 0
        before = stored_request(plan.series)
        word = before.site_word if before else words.wanted.site
        store_request(plan.series, Stored(sweep=found.sweep, site=found.site, site_word=word))
        outcome = make(plan, f"slurm.sh sweep {plan.series}")
    return _answer(found, plan_of(plan.series, plan.tasks, plan.limits), outcome, words)


def _answer(found: Expanded, plan: Plan, outcome: Outcome | None, words: Words) -> int:
    """Print the table, write the files, and say what failed."""
    from harness.report.tables.catalogue import numbers
    from harness.study.campaign.drive import Outcome
    from harness.study.sweeps.results import results

    told = results(plan.places, found.settings, numbers())
    done = outcome or Outcome(list(plan.places))
    metrics = [name for name in found.sweep.show if any(name in point.values for point in told.points)]
    written = _write_files(found, told.points, metrics, words)
    if words.wanted.json:
        points = [point.model_dump() for point in told.points]
        data = {
            "series": plan.series,
            "points": points,
            "states": state_rows(plan),
            "stopped": done.stopped or None,
        }
        print(json.dumps(data, indent=1))
    elif told.points:
        _print_table(found, told.points, metrics)
    lines = [*told.unmeasured, *closing_lines(done, f"slurm.sh sweep {plan.series}"), *written]
    lacking = [name for name in found.sweep.show if name not in metrics]
    if lacking and told.points:
        lines.append(f"not measured here: {', '.join(lacking)}")
    print("\n".join([*lines, count_text(counts(done.places))]), file=sys.stderr)
    return 0 if done.complete else 1


def _print_table(found: Expanded, points: list[Any], metrics: list[str]) -> None:
    from harness.cli.screen import columns
    from harness.report.sweeps.table import lines
    from harness.report.tables.screen import WIDTH, Screen

    title = found.sweep.title or found.sweep.name
    print("\n".join(lines(title[0].upper() + title[1:], points, metrics, Screen(columns(WIDTH)))))


def _write_files(found: Expanded, points: list[Any], metrics: list[str], words: Words) -> list[str]:
    from harness.study.sweeps.results import known_metric

    wanted, written = words.wanted, list[str]()
    if wanted.csv is not None and points:
        from harness.report.sweeps.table import write_csv

        write_csv(points, expanded(wanted.csv))
        written.append(f"the table: {wanted.csv}")
    if wanted.png is not None and points:
        from harness.report.sweeps.plot import plot_series

        metric = words.further.get("--plot", metrics[0] if metrics else found.sweep.show[0])
        known_metric(metric, points, "--plot")
        plot_series(found.sweep.title, points, metric, _against(found, words), Path(expanded(wanted.png)))
        written.append(f"the plot: {wanted.png}")
    return written


def _against(found: Expanded, words: Words) -> str:
    from harness.common.errors import nearest

    axes = found.sweep.axes
    name = words.further.get("--against", axes[0] if axes else "")
    if name in axes:
        return name
    near = nearest(name, axes)
    raise RequestError(
        f"--against: {name or 'nothing'} does not vary in this sweep"
        + (f": did you mean {near}?" if near else f"; there are {', '.join(axes)}")
    )

"""`slurm.sh whatif --verify`: makes the runs of a what-if, without and with it, and prints what came of it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from harness.analysis.summary import Summary
from harness.cli.launch.run import again
from harness.cli.launch.start import start_announced
from harness.cli.launch.untrusted import may_launch, source_of
from harness.cli.watch.follow import complete
from harness.common.display.format import duration, duration_range, takes
from harness.common.paths import COMMAND, PROGRAM, typed_words
from harness.experiment.exercises import Experiment, OwnTraining
from harness.explain.predictions import Trial, VerifiedPrediction, verify
from harness.launch.before.check import require_training
from harness.launch.submit import prepare
from harness.measure.request import load_summary
from harness.report.compare.verdicts import verdict_table
from harness.report.tables.table import table
from harness.run import Run, find_run
from harness.run.record import RunRecord
from harness.site.site import Site

_NOTICEABLE = 0.02


class WhatIfRuns(NamedTuple):
    """The run as it was, made again, and the run with the change."""

    unchanged: Run
    changed: Run


def run_of(token: str) -> Run:
    """The run whose what-ifs are verified; `last` is another run once one was made."""
    return find_run(token)


def may_make(run: Run, planned: Sequence[Trial], yes: bool) -> bool:
    """Whether to make the runs, as `may_launch`: both the record and the stored summary may be somebody else's."""
    experiments = [run.record.experiment, *(trial.changed for trial in planned)]
    source = source_of(run, run.record)
    return may_launch(source, experiments, run.record.site, yes=yes)


def make_runs(record: RunRecord, trial: Trial, quiet: bool) -> WhatIfRuns:
    """Start one after the other, and wait for their ends. Raises WorkError: a run did not complete."""
    unchanged = _made(record.experiment, record.site, again(record), quiet)
    typed = [PROGRAM, *typed_words(trial.command)]
    return WhatIfRuns(unchanged, _made(_with_secrets(record, trial), record.site, typed, quiet))


def _with_secrets(record: RunRecord, trial: Trial) -> Experiment:
    """The change of the run's own request: in the summary, words of a script that look like secrets are masked."""
    own = record.experiment
    return trial.changed.model_copy(update={"command": own.command}) if isinstance(own, OwnTraining) else trial.changed


def _made(experiment: Experiment, site: Site, command: list[str], quiet: bool) -> Run:
    prepared = prepare(experiment, site)
    require_training(prepared.job, os.environ)
    run = start_announced(prepared, f"{COMMAND} {shlex.join(command[1:])}")
    complete(run, quiet)
    return run


def _outcome(s: Summary, trial: Trial, made: WhatIfRuns) -> VerifiedPrediction:
    return verify(s, trial.what_if, *(load_summary(str(run.path))[1] for run in made))


def lines_of(s: Summary, trial: Trial, made: WhatIfRuns) -> Iterator[str]:
    """The prediction, its interval, and the measured step, in words."""
    found = _outcome(s, trial, made)
    yield f"\nverified: {trial.what_if.meaning}"
    yield f"  unchanged, {made.unchanged.job_id}: {duration(found.unchanged_ns)} a step"
    per = trial.what_if.per
    if abs(found.slower - 1) > _NOTICEABLE:
        yield f"  the same operators take {takes(found.slower)} with the change: counted in"
    share = f", 1/{per} of its step, which does {per} times the work" if per > 1 else ""
    yield f"  measured: {made.changed.job_id}{share}"
    shown = verdict_table([(trial.what_if.name, found.step)], ("predicted", "measured"))
    yield from table(shown.head, shown.rows)
    yield f"  {_judgement(found)}"


def _judgement(verified_prediction: VerifiedPrediction) -> str:
    """Whether the interval held; what one that did not hold shows: how far such a prediction may be off."""
    low, high = verified_prediction.step.a.low, verified_prediction.step.a.high
    if verified_prediction.held is None:
        return f"cannot tell whether the prediction held: {verified_prediction.step.why}"
    interval = f"the interval of the prediction is {duration_range(low, high)} (95 %)"
    if verified_prediction.held:
        return f"{interval}: it held"
    measured = verified_prediction.step.b.value or 0.0
    end = high if high is not None and measured > high else low
    by = duration(abs(measured - (end or 0.0)))
    return f"{interval}: the step is {by} outside of it. This is a measurement of how accurate such a prediction is"


def row_of(s: Summary, trial: Trial, made: WhatIfRuns) -> dict[str, Any]:
    """The same as JSON has it."""
    found = _outcome(s, trial, made)
    runs = {f"{which}_runs": [run.job_id] for which, run in made._asdict().items()}
    step = {"step_time": found.step.model_dump(mode="json"), "held": found.held, "error": found.error}
    verified = {"unchanged_ns": found.unchanged_ns, "slower": found.slower, "doubt": found.doubt}
    return {"name": trial.what_if.name, "command": trial.command, **runs, **verified, **step}

"""The answer that a report begins with: the diagnosis; for a mystery, how its reader gives one."""

from __future__ import annotations

from dataclasses import replace

from harness.analysis.summary import Summary
from harness.common.paths import PROGRAM
from harness.explain.reference import reference_sentence
from harness.explain.rules import Diagnosis, doubts, verdict

SLOWED = 1.15  # profiled steps over the others, from which the answer says it


def answer(summary: Summary) -> Diagnosis:
    """The diagnosis; if it is withheld, how to give one's own."""
    slowed = profiler_sentences(summary)
    if all(w.field != "findings" for w in summary.quality.withheld):
        said = verdict(summary)
        return replace(said, further=[*slowed, *said.further, *reference_sentence(summary)])
    run = str((summary.run or {}).get("job_id") or "RUN")
    sentences = [
        *doubts(summary),
        "This run is a mystery: something makes it slow. The table below and the page show where the time of a step "
        f"goes. Find the cause, its ranks, its steps and its time per step (`{PROGRAM} faults` lists all causes). "
        "Then give your answer:",
    ]
    command = f"bash slurm.sh mystery answer {run} --cause CAUSE --rank all --ms MS"
    return Diagnosis(sentences, command, slowed)


def profiler_sentences(s: Summary) -> list[str]:
    """How much the profiler itself slows the steps; empty if it is little or not known."""
    cost = s.profiler_cost
    if cost is None or cost.ratio <= SLOWED:
        return []
    return [
        f"The profiler slows the steps: the median step is {cost.ratio:.2f} times as long as without it. Losses on "
        "the host are therefore too large. No number is corrected."
    ]

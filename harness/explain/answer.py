"""The answer that a report begins with: the diagnosis, or of a mystery that nobody is to give it."""

from __future__ import annotations

from dataclasses import replace

from harness.analysis.summary import Summary
from harness.common.paths import PROGRAM
from harness.explain.reference import reference_sentence
from harness.explain.rules import Diagnosis, verdict


def answer(summary: Summary) -> Diagnosis:
    """The diagnosis; where it is withheld, how to give one's own."""
    if all(w.field != "findings" for w in summary.quality.withheld):
        said = verdict(summary)
        return replace(said, further=[*said.further, *reference_sentence(summary)])
    run = str((summary.run or {}).get("job_id") or "RUN")
    sentences = [
        "This run is a mystery: something makes it slow. Where a step's time goes stands below and on the page; what "
        f"causes it, on which ranks, in which steps and for how long is yours to say (`{PROGRAM} faults` lists what "
        "there is). Say it:"
    ]
    return Diagnosis(sentences, f"bash slurm.sh mystery answer {run} --cause CAUSE --rank all --ms MS")

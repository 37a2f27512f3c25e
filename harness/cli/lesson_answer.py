"""A lesson's answer from two runs: which relations hold, which do not, and what to do next. Starts no run."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from harness.analysis.metrics import metrics_by_name
from harness.analysis.summary import Summary, Verdict
from harness.format.format import metric_text, rate
from harness.measure.stored import load_summary
from harness.study.lessons import Lesson, Outcome, RelationResult, answers, lesson_command

if TYPE_CHECKING:
    from harness.run import Run

MARK = {Outcome.HOLDS: "✓", Outcome.FAILS: "✗", Outcome.CANNOT_SHOW: "–"}
METRIC = re.compile(r"[ab]\.\w+")


def give_answer(lesson: Lesson, a: Run, b: Run, site: str | None, as_json: bool) -> None:
    """Print for every relation whether it holds between the two runs, and why; `site` is `--site` as given."""
    first, second = (load_summary(str(run.path))[1] for run in (a, b))
    on_gpu = all(d.device_kind != "cpu" for s in (first, second) for d in s.devices)
    over_network = all(len(s.hosts) > 1 for s in (first, second))
    decided = answers(lesson, metrics_by_name(first), metrics_by_name(second), on_gpu, over_network)
    doubts = [*doubts_of(a.job_id, first), *doubts_of(b.job_id, second)]
    if as_json:
        row = {"lesson": lesson.name, "a": a.job_id, "b": b.job_id}
        print(json.dumps(row | {"answers": [_as_row(one) for one in decided], "doubts": doubts}, indent=1))
        return
    print(f"{lesson.name}: {lesson.title} (a: {a.job_id}, b: {b.job_id})\n")
    for one in decided:
        print("\n".join(answer_lines(one)))
    compare = f"bash slurm.sh compare {a.job_id} {b.job_id}"
    for line in what_to_do(decided, doubts, again(lesson, site), compare):
        print(line)
    print(f"\n{lesson.here(cpu=not on_gpu).because}")


def doubts_of(run: str, summary: Summary) -> list[dict[str, str]]:
    """The findings that put the run's numbers in doubt."""
    findings = [found for found in summary.quality.findings if found.severity is not Verdict.GOOD]
    return [{"run": run, "what": found.what, "evidence": found.evidence} for found in findings]


def again(lesson: Lesson, site: str | None) -> str:
    """The command that repeats both runs and answers from them."""
    return f"bash {lesson_command(lesson.name, site)} --again --answer"


def answer_lines(one: RelationResult) -> list[str]:
    """A relation, its numbers with their units, and the reason where it does not hold."""
    numbers = ", ".join(
        f"{name} = {metric_text(name, value) if METRIC.fullmatch(name) else rate(value)}"
        for name, value in one.numbers.items()
    )
    lines = [f"{MARK[one.outcome]} {one.relation.says}", f"    {numbers}"]
    return lines if one.outcome is Outcome.HOLDS else [*lines, f"    {one.outcome.value}: {one.why}"]


def what_to_do(
    decided: list[RelationResult], doubts: list[dict[str, str]], repeat: str, compare: str
) -> list[str]:
    """After a relation that failed: the doubts about the recordings, and the command to try next."""
    failed = [one.relation for one in decided if one.outcome is Outcome.FAILS]
    if not failed:
        return []
    found = [f"    {doubt['run']}: {doubt['what']} ({doubt['evidence']})" for doubt in doubts]
    lines = ["", "What was found in these recordings:", *found] if found else [""]
    if any(relation.depends_on_load for relation in failed):
        lines.append(
            "Times change with what else runs on the machine. Run the same pair again when it is quiet:"
        )
        lines.append(f"    {repeat}")
    if not all(relation.depends_on_load for relation in failed):
        lines.append("Counts and bytes do not depend on how busy the machine is. See what else differs:")
        lines.append(f"    {compare}")
    return lines


def _as_row(one: RelationResult) -> dict[str, object]:
    return {"says": one.relation.says, "outcome": one.outcome.value, "numbers": one.numbers, "why": one.why}

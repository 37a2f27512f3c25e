"""Two groups among the runs of an arm, in words, and which fact about the runs separates them. Knows no run on disk.

That a fact separates k of n runs by chance is the share of the ways to choose k runs that it separates as well: one of
56 for a fact with two values and 3 of 8 runs. A fact is named if that chance, times the number of distinct facts that
could be named, is at most 5 % (Bonferroni). The order in which the runs were made is asked for beside them, with the
same limit of its own: it is known of all runs, and would else take the room of a fact.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import comb, log
from statistics import geometric_mean

from pydantic import BaseModel, ConfigDict

from harness.analysis.summary import Summary
from harness.analysis.two_groups import upper_group
from harness.common.display.format import metric_text
from harness.common.display.printable import printable
from harness.common.run_folder.submission import variables_in
from harness.compare import environment
from harness.compare.arms import RunFacts, key_of
from harness.compare.environment import PACKAGE, VARIABLE

LIKELY = 0.05
NODE = "node"
MOST_NAMED = 2  # facts in a sentence
_COMMIT_DIGITS = 12
_OF_SPEED = re.compile("_ns|per_s|throughput")
_SPEEDS, _OTHERS = ("fast", "slow"), ("better", "worse")


def facts_of(summaries: Sequence[Summary]) -> list[RunFacts]:
    """The facts of each run that may separate groups of them; all that is asked for is named here."""
    is_known = all(each.environments for each in summaries)
    variables = [
        variables_in(each.run) | variables_in(each.run, "limits") | (_of_environment(each) if is_known else {})
        for each in summaries
    ]
    names = dict.fromkeys(name for each in variables for name in each)
    return [
        _facts(summary, {name: own.get(name, "not set") for name in names})
        for summary, own in zip(summaries, variables, strict=True)
    ]


def _of_environment(summary: Summary) -> dict[str, str]:
    """What is no package, which the key has, and no machine's name."""
    facts = environment.facts_of(summary)
    return {name.removeprefix(VARIABLE): text for name, text in facts.items() if not name.startswith((PACKAGE, NODE))}


def _facts(summary: Summary, variables: Mapping[str, str]) -> RunFacts:
    run = summary.run or {}
    repositories = {"commit": run.get("git"), "commit of the training": (run.get("program") or {}).get("git")}
    commits = {name: str((git or {}).get("commit") or "")[:_COMMIT_DIGITS] for name, git in repositories.items()}
    texts = {**key_of(summary), **commits, **variables}
    values = {NODE: summary.hosts} | {name: [text] for name, text in texts.items() if text}
    made_ns = run.get("created_ns")
    return RunFacts(values, made_ns if isinstance(made_ns, int) else None)


class TwoGroups(BaseModel):
    """The runs of one arm, the group with the lower numbers first: how many runs each group has, and their geometric
    mean. goes_with: the facts that separate the groups exactly, in words; empty if chance may do that, too."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    counts: tuple[int, int]
    values: tuple[float, float]
    goes_with: list[str]

    def text(self, name: str, metric: str) -> str:
        """`B falls into two groups: 3 of 8 runs take 2.50 s, 5 take 4.10 s; all slow ones on node7`."""
        verb = "take" if "_ns" in metric else "have"
        low, high = (metric_text(metric, value) for value in self.values)
        groups = f"{self.counts[0]} of {sum(self.counts)} runs {verb} {low}, {self.counts[1]} {verb} {high}"
        return "; ".join([f"{name} falls into two groups: {groups}", *self.goes_with])


def two_groups(
    metric: str, numbers: Sequence[float], facts: Sequence[RunFacts] = (), *, more_is_worse: bool = True
) -> TwoGroups | None:
    """The groups of an arm's runs; None: there is one. numbers: above zero, one of each run; facts: none, or of each
    run."""
    upper = upper_group([log(number) for number in numbers])
    if upper is None:
        return None
    parts = [[x for x, is_upper in zip(numbers, upper, strict=True) if is_upper is part] for part in (False, True)]
    slow = [is_upper is more_is_worse for is_upper in upper]
    return TwoGroups(
        counts=(len(parts[0]), len(parts[1])),
        values=(geometric_mean(parts[0]), geometric_mean(parts[1])),
        goes_with=_goes_with(facts, slow, _SPEEDS if _OF_SPEED.search(metric) else _OTHERS) if facts else [],
    )


def _goes_with(facts: Sequence[RunFacts], slow: Sequence[bool], sides: tuple[str, str]) -> list[str]:
    """sides: what the other runs and the slow ones are called."""
    return [*_separating(facts, slow, sides)[:MOST_NAMED], *_order(facts, slow, sides)]


def _separating(facts: Sequence[RunFacts], slow: Sequence[bool], sides: tuple[str, str]) -> list[str]:
    """The facts that separate the slow runs from the others, in words; what the slow ones share first."""
    asked = [phrases for phrases in _asked(facts) if 0 < _chance(phrases, sum(slow)) <= LIKELY]
    distinct = {tuple(map(phrases.index, phrases)) for phrases in asked}
    named = [phrases for phrases in asked if _chance(phrases, sum(slow)) * len(distinct) <= LIKELY]
    found = [printable(words) for phrases in named if (words := _in_words(phrases, slow, sides))]
    return sorted(found, key=lambda words: words.startswith(f"all {sides[0]}"))


def _asked(facts: Sequence[RunFacts]) -> Iterator[list[str]]:
    """Of each fact that all runs recorded its phrase for each run, `on node7`. Where runs have several values, each
    value is a fact, and the phrase of a run without it is empty."""
    for name in facts[0].values:
        values = [each.values.get(name, ()) for each in facts]
        phrase = "on" if name == NODE else f"with {name}"
        if all(len(of_run) == 1 for of_run in values):
            yield [f"{phrase} {of_run[0]}" for of_run in values]
        elif all(values):
            for value in sorted({value for of_run in values for value in of_run}):
                yield [f"{phrase} {value}" if value in of_run else "" for of_run in values]


def _chance(phrases: Sequence[str], size: int) -> float:
    """The share of the ways to choose so many runs in which no value is on both sides."""
    ways = [1] + [0] * size
    for runs in Counter(phrases).values():
        for chosen in range(size, runs - 1, -1):
            ways[chosen] += ways[chosen - runs]
    return ways[size] / comb(len(phrases), size)


def _in_words(phrases: Sequence[str], slow: Sequence[bool], sides: tuple[str, str]) -> str:
    """What the side with fewer values has in common; empty: a value is on both sides."""
    of_slow, of_fast = (
        {phrase for phrase, is_slow in zip(phrases, slow, strict=True) if is_slow is side} for side in (True, False)
    )
    if of_slow & of_fast:
        return ""
    by_slow = "" not in of_slow and len(of_slow) <= len(of_fast)
    return f"all {sides[by_slow]} ones {' or '.join(sorted(of_slow if by_slow else of_fast))}"


def _order(facts: Sequence[RunFacts], slow: Sequence[bool], sides: tuple[str, str]) -> list[str]:
    """Whether the runs that were made first are the one group."""
    made = [each.made_ns or 0 for each in facts]
    known = len({*made} - {0}) == len(made)
    in_order = [is_slow for _, is_slow in sorted(zip(made, slow, strict=True))]
    separates = in_order in (sorted(slow), sorted(slow, reverse=True))
    if not known or not separates or 2 / comb(len(slow), sum(slow)) > LIKELY:
        return []
    return [f"the first {in_order.count(in_order[0])} runs were the {sides[in_order[0]]} ones"]

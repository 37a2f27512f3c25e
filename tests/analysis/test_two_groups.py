"""Two groups among an arm's runs: planted ones are found, equal arms and one outlier are no groups, and only a fact
that separates them is named."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from math import log

import pytest

from harness.analysis.summary import RankTraining, RunEnvironment, Summary
from harness.analysis.two_groups import upper_group
from harness.compare.arms import Arm, RunFacts
from harness.compare.comparison import compare_arms, compare_steps, samples
from harness.compare.groups import facts_of, two_groups

TIMES = 300
Draw = Callable[[random.Random, int], float]


def logs(*values: float) -> list[float]:
    return [log(value) for value in values]


SHAPES: dict[str, Draw] = {
    "normal": lambda dice, _: dice.gauss(0, 1),
    "heavy tails": lambda dice, _: dice.gauss(0, 1) / (dice.gammavariate(1.5, 2) / 3) ** 0.5,
    "outliers": lambda dice, _: dice.gauss(0, 1) + (dice.random() < 0.05) * dice.expovariate(0.1),
    "exponential": lambda dice, _: dice.expovariate(1),
    "uniform": lambda dice, _: 3 * dice.random(),
    "drift": lambda dice, run: dice.gauss(0, 1) + run,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("runs", [4, 5, 8, 12, 16, 64])
def test_equal_arms_are_seldom_called_two_groups(shape: str, runs: int) -> None:
    dice = random.Random(1)
    arms = [[0.05 * SHAPES[shape](dice, run) for run in range(runs)] for _ in range(TIMES)]
    assert sum(upper_group(arm) is not None for arm in arms) <= 0.04 * TIMES


@pytest.mark.parametrize(
    ("fast", "slow", "noise"),
    [(2, 2, 0.01), (3, 2, 0.01), (3, 3, 0.03), (2, 6, 0.03), (3, 5, 0.03), (4, 4, 0.03), (6, 2, 0.03), (32, 32, 0.05)],
)
def test_planted_groups_are_found(fast: int, slow: int, noise: float) -> None:
    dice = random.Random(1)
    arms = [[dice.gauss(log(2.5 if run < fast else 4.1), noise) for run in range(fast + slow)] for _ in range(TIMES)]
    expected = [False] * fast + [True] * slow
    assert sum(upper_group(arm) == expected for arm in arms) >= 0.9 * TIMES


@pytest.mark.parametrize(
    "one",
    [
        (2.5, 2.51, 2.52, 2.49, 2.5, 2.51, 2.48, 4.1),  # an outlier
        (4.1, 4.11, 4.12, 4.09, 4.1, 2.5),
        (2.5, 2.5, 4.1),  # too few
        (2.5, 2.9, 4.1, 4.6),
        (100, 100, 100, 100.5, 100.5, 100.5),  # a clock that rounds
        (1, 1, 1, 1),
        (2.5, 2.6, 2.8, 3.0, 3.3, 3.6, 3.9, 4.1),
        (*[2.5 + run / 1000 for run in range(13)], 4.1, 4.11),  # less than a sixth
    ],
)
def test_one_group_is_one(one: tuple[float, ...]) -> None:
    assert upper_group(logs(*one)) is None


def test_each_run_is_in_its_group_whatever_the_order() -> None:
    times = (4.1, 2.5, 4.0, 2.52, 4.1, 4.12, 2.49, 4.05)
    assert upper_group(logs(*times)) == [each > 3 for each in times]
    assert upper_group(logs(3, 3, 4, 4)) == [False, False, True, True]


# ---- Which fact separates them


SLOW_OF_8 = (False, True, True, False, True, True, False, True)


def said(
    slow: Sequence[bool], facts: Sequence[RunFacts], metric: str = "step_ns", *, more_is_worse: bool = True
) -> list[str]:
    """What goes with groups of 2.5 and 4.1."""
    numbers = [4.1 if each is more_is_worse else 2.5 for each in slow]
    found = two_groups(metric, numbers, facts, more_is_worse=more_is_worse)
    assert found is not None and found.counts[more_is_worse] == sum(slow)
    return found.goes_with


def runs_of(*values: Mapping[str, Sequence[str]]) -> list[RunFacts]:
    return [RunFacts(each) for each in values]


def on(*nodes: str) -> list[RunFacts]:
    """Runs on these nodes; of a run on several, with blanks between them."""
    return runs_of(*({"node": each.split(), "torch": ["2.13"]} for each in nodes))


@pytest.mark.parametrize(
    ("nodes", "fact"),
    [
        (("n1", "n7", "n7", "n2", "n7", "n7", "n3", "n7"), ["all slow ones on n7"]),
        (("n7", "n1", "n1", "n7", "n2", "n1", "n7", "n2"), ["all fast ones on n7"]),
        (
            ("n1 n2", "n1 n7", "n1 n7", "n2 n1", "n7 n1", "n1 n7", "n1 n2", "n1 n7"),
            ["all slow ones on n7", "all fast ones on n2"],
        ),
        (("n1", "n7", "n7", "n2", "n7", "n1", "n3", "n7"), []),  # one of n1 was slow
        (("n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8"), []),  # each run its own
        (("n1", "n2", "n3", "n1", "n4", "n5", "n1", "n6"), []),
        (("n1",) * 8, []),
    ],
)
def test_the_node_is_named_if_it_separates_the_groups(nodes: tuple[str, ...], fact: list[str]) -> None:
    assert said(SLOW_OF_8, on(*nodes)) == fact


def test_what_chance_may_separate_is_not_named() -> None:
    slow = SLOW_OF_8
    alike = {"torch": slow, "cuda": slow}
    others = {f"V{i}": [run in (i, i + 1, i + 3) for run in range(8)] for i in range(3)}

    def facts(columns: Mapping[str, Sequence[bool]]) -> list[RunFacts]:
        return runs_of(*({name: [str(column[run])] for name, column in columns.items()} for run in range(8)))

    assert said(slow, facts(alike)) == ["all slow ones with torch True", "all slow ones with cuda True"]
    assert said(slow, facts({**alike, "V0": others["V0"]})), "2 of 56"
    assert said(slow, facts({**alike, **others})) == [], "4 of 56"
    assert said(slow[:4], facts(alike)[:4]) == [], "2 of 6"
    unrecorded = [RunFacts({}), *facts(alike)[1:]]
    assert said(slow, unrecorded) == []


def test_facts_that_are_drawn_are_seldom_named() -> None:
    dice = random.Random(1)
    named = 0
    for _ in range(TIMES):
        slow = dice.sample(SLOW_OF_8, 8)
        named += bool(said(slow, runs_of(*({"node": [dice.choice("ab")], "V": [dice.choice("xy")]} for _ in slow))))
    assert named <= 0.05 * TIMES


@pytest.mark.parametrize(
    ("slow", "fact"),
    [
        ([False] * 3 + [True] * 5, ["the first 3 runs were the fast ones"]),
        ([True] * 4 + [False] * 4, ["the first 4 runs were the slow ones"]),
        ([False] * 2 + [True] * 6, []),  # 2 of 28
        (SLOW_OF_8, []),
    ],
)
def test_the_order_of_the_runs_may_go_with_the_groups(slow: list[bool], fact: list[str]) -> None:
    begun = [RunFacts({}, made_ns=100 - run) for run in range(8)]
    assert said(slow[::-1], begun) == fact
    assert said(slow, [RunFacts({})] * 8) == [], "it is not known"


def test_facts_are_what_the_runs_recorded() -> None:
    def summary(node: str, **more: str) -> Summary:
        facts = {"inherited": more, "created_ns": 5, "git": {"commit": "f" * 40}, "image": "x.sif"}
        return Summary(hosts=[node], run=facts, training=[RankTraining(rank=0, versions={"torch": "2.13"})])

    found, other = facts_of([summary("n1", NCCL_ALGO="Ring"), summary("n2")])
    assert found.made_ns == 5 and found.values["node"] == ["n1"] and found.values["torch"] == ["2.13"]
    assert found.values["commit"] == ["f" * 12] and found.values["container image"] == ["x.sif"]
    assert (found.values["NCCL_ALGO"], other.values["NCCL_ALGO"]) == (["Ring"], ["not set"])
    assert facts_of([Summary()])[0].made_ns is None


def test_what_runs_recorded_of_their_environments_are_facts() -> None:
    whole = [
        Summary(environments=[RunEnvironment(nodes=["n"], variables=variables, system={"governor": "powersave"})])
        for variables in ({"KMP_BLOCKTIME": "7"}, {})
    ]
    assert [each.values["KMP_BLOCKTIME"] for each in facts_of(whole)] == [["7"], ["not set"]]
    assert facts_of(whole)[0].values["governor"] == ["powersave"]
    assert "KMP_BLOCKTIME" not in facts_of([*whole, Summary()])[0].values, "the last one recorded none"


# ---- What a comparison says


def test_a_comparison_says_the_groups_and_what_to_look_at() -> None:
    slow = SLOW_OF_8
    b = Arm("b", samples([4.1e9 if each else 2.5e9 for each in slow]), facts=on(*("n7" if x else "n1" for x in slow)))
    found = compare_arms("step_ns", Arm("a", samples([2.5e9, 2.51e9, 2.49e9])), b)
    sentence = "B falls into two groups: 3 of 8 runs take 2.50 s, 5 take 4.10 s; all slow ones on n7"
    assert found.groups_text == sentence and found.a.groups is None
    assert found.groups_advice.endswith("; look at this first: all slow ones on n7")
    document = type(found).model_validate_json(found.model_dump_json())
    assert document.groups_text == sentence
    assert compare_arms("step_ns", Arm("a", samples([1, 1.1])), Arm("b", samples([0, 1]))).groups_advice == ""


def test_where_less_is_worse_the_lower_ones_are_the_slow_ones() -> None:
    nodes = on(*("n7" if each else "n1" for each in SLOW_OF_8))
    assert said(SLOW_OF_8, nodes, "tokens_per_s", more_is_worse=False) == ["all slow ones on n7"]
    assert said(SLOW_OF_8, nodes, "peak_memory_bytes") == ["all worse ones on n7"]


def test_pairs_of_a_lesson_may_fall_into_groups() -> None:
    steps = [[ms * 1e6 for ms in (step, step + 0.1, step - 0.1, step + 0.2)] for step in (100, 101, 180, 181, 100, 180)]
    found = compare_steps(("a", [steps[0]] * 6), ("b", steps))
    assert [text.partition(":")[0] for text in found.groups_of("a", "b")] == ["b falls into two groups"]

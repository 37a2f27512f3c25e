"""A verdict on change: the run is the sample, it is seldom wrong, and it refuses what it cannot know."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from math import exp, log
from typing import Any

import pytest

from harness.analysis.statistics import MeasuredEffect, Sample, effect, t_quantile
from harness.analysis.summary import RankTraining, RunEnvironment, Summary, TraceSource
from harness.compare.arms import Arm, differences, key_of, unrecorded
from harness.compare.comparison import Comparison, compare_arms
from harness.compare.points import RepeatedMean, over_runs, repeated, with_first
from harness.compare.verdict import ChangeVerdict, Threshold
from harness.study.check.series import block_of, slots

TIMES = 300  # simulated checks of each kind


@pytest.mark.parametrize(
    ("df", "usual", "power"),  # of the tables in every textbook
    [
        (1, 12.706, 3.078),
        (2, 4.303, 1.886),
        (3, 3.182, 1.638),
        (5, 2.571, 1.476),
        (10, 2.228, 1.372),
        (30, 2.042, 1.310),
        (120, 1.980, 1.289),
    ],
)
def test_quantiles_of_t_are_those_of_the_tables(df: int, usual: float, power: float) -> None:
    assert t_quantile(0.975, df) == pytest.approx(usual, abs=6e-4)
    assert t_quantile(0.9, df) == pytest.approx(power, abs=6e-4)


def samples(*values: float) -> list[Sample]:
    return [Sample(value) for value in values]


def in_blocks(*values: float) -> list[Sample]:
    return [Sample(value, block_of(i)) for i, value in enumerate(values)]


def judge(a: list[Sample], b: list[Sample], fail_above: float, *, more_is_worse: bool = True) -> Comparison:
    """As `check` judges."""
    return compare_arms(
        "step_ns", Arm("A", a), Arm("B", b), Threshold(fail_above, one_sided=True), more_is_worse=more_is_worse
    )


def found(a: list[Sample], b: list[Sample]) -> MeasuredEffect:
    result = effect(a, b)
    assert result is not None
    return result


def test_the_interval_is_that_of_welch_done_by_hand() -> None:
    """Logarithms 0 and 0.02 against 0.1 and 0.14: means 0.01 and 0.12; variances 0.0002 and 0.0008."""
    one = found(samples(1, exp(0.02)), samples(exp(0.1), exp(0.14)))
    assert one.log_ratio == pytest.approx(0.11)
    assert one.error == pytest.approx((0.0002 / 2 + 0.0008 / 2) ** 0.5)
    assert one.df == pytest.approx(0.0005**2 / (0.0001**2 + 0.0004**2))


def test_a_jump_between_blocks_changes_nothing() -> None:
    a, b = in_blocks(100, 101, 100, 102), in_blocks(111, 110, 112, 110)
    jumped = [[s._replace(value=s.value * (1.5 if s.block else 1)) for s in arm] for arm in (a, b)]
    before, after = found(a, b), found(*jumped)
    assert after.interval == pytest.approx(before.interval)
    assert before.df == 5
    without = found(*(samples(*(s.value for s in arm)) for arm in jumped))
    assert without.interval[0] < 0.8 and before.interval[0] > 1.05


def simulated(
    each: int, deviation: float, change: float, *, blocks: bool = True, jolts: float = 0.0
) -> Counter[ChangeVerdict]:
    """Verdicts on runs that differ by `deviation` while the machine drifts up to 1 % from run to run; a share `jolts`
    of the runs is up to half as slow again."""
    chance = random.Random(each)
    verdicts: Counter[ChangeVerdict] = Counter()
    for _ in range(TIMES):
        drift = chance.uniform(-0.01, 0.01)
        arms: dict[str, list[Sample]] = {"a": [], "b": []}
        for i, slot in enumerate(slots(each)):
            jolt = log(1 + chance.uniform(0, 0.5)) if chance.random() < jolts else 0.0
            value = 100 * exp(chance.gauss(0, deviation) + drift * i + jolt) * (1 + change * (slot.key == "b"))
            arms[slot.key].append(Sample(value, block_of(slot.repeat) if blocks else None))
        verdicts[judge(arms["a"], arms["b"], 0.05).verdict] += 1
    return verdicts


@pytest.mark.parametrize(
    "each",
    [2, 4, *(pytest.param(each, marks=pytest.mark.long) for each in (3, 8))],  # the same of other numbers
)
@pytest.mark.parametrize("deviation", [0.02, *(pytest.param(each, marks=pytest.mark.long) for each in (0.01, 0.05))])
@pytest.mark.parametrize(("blocks", "jolts"), [(True, 0), (False, 0), (True, 0.2)])
def test_a_command_against_itself_is_seldom_called_worse(
    each: int, deviation: float, blocks: bool, jolts: float
) -> None:
    verdicts = simulated(each, deviation, 0, blocks=blocks, jolts=jolts)
    assert verdicts[ChangeVerdict.WORSE] <= 0.05 * TIMES


@pytest.mark.parametrize("each", [2, 4, pytest.param(8, marks=pytest.mark.long)])
@pytest.mark.parametrize("deviation", [0.03, *(pytest.param(each, marks=pytest.mark.long) for each in (0.01, 0.05))])
@pytest.mark.parametrize("change", [0.05, 0.1])
def test_what_is_worse_by_more_than_allowed_is_seldom_called_fine(each: int, deviation: float, change: float) -> None:
    verdicts = simulated(each, deviation, change)
    assert verdicts[ChangeVerdict.SAME] + verdicts[ChangeVerdict.BETTER] <= 0.05 * TIMES


USUAL, SLOW, FAST = (100, 100.3, 99.8, 100.1), (80, 81, 80, 82), (100, 101, 100, 102)
SAME, BETTER, WORSE, UNKNOWN = ChangeVerdict.SAME, ChangeVerdict.BETTER, ChangeVerdict.WORSE, ChangeVerdict.UNKNOWN


@pytest.mark.parametrize(
    ("a", "b", "verdict", "why"),
    [
        (USUAL, (100.5, 100.4, 99.5, 99.8), SAME, "the whole interval is within 5 %"),
        (USUAL, (80, 81, 80, 82), BETTER, "the change is larger than 5 %"),
        (USUAL, (110, 111, 110, 112), WORSE, "the change is larger than 5 %"),
        (USUAL, (102.0, 102.1, 102.3, 102.2), SAME, "the whole interval is within 5 %"),
        (USUAL, (104.5, 105.3, 105.0, 104.4), UNKNOWN, "whether by more than 5 %"),
        (USUAL, (90, 120, 100, 108), UNKNOWN, "both no change and a change of 5 %"),
        # an interval that ends below 5 %, and yet is too long to tell 5 % from nothing
        ((100, 106, 102, 108), (95, 101, 97, 103), UNKNOWN, ""),
        # −2.4 % with an interval beyond −5 %: certainly not worse, and not certainly the same
        ((100, 102, 98, 101), (97.6, 99.6, 95.6, 98.6), SAME, ""),
        ((100, 102, 98, 101), (105, 107, 103, 106), UNKNOWN, ""),  # just what is allowed is never told apart
        ((100,), (150,), UNKNOWN, "one run of each does not show how much runs vary"),
        ((100,), (150, 150, 151), WORSE, ""),  # compared with the spread of several
        ((100,), (80, 150, 110), UNKNOWN, ""),
        ((7, 7), (7, 7), SAME, ""),  # numbers that never vary
        ((7, 7), (8, 8), WORSE, ""),
        ((0, 1), (1, 1), UNKNOWN, "step_ns is 0 in a run of A"),
        ((1,), (), UNKNOWN, "no run of B has step_ns"),
    ],
)
def test_each_verdict_has_its_reason(a: Any, b: Any, verdict: ChangeVerdict, why: str) -> None:
    judged = judge(samples(*a), samples(*b), 0.05)
    assert (judged.verdict, why in judged.why) == (verdict, True), judged.why


def test_a_test_that_must_not_fail_is_one_sided_and_less_may_be_worse() -> None:
    a, b = samples(100, 102, 98, 101), samples(97.6, 99.6, 95.6, 98.6)
    assert compare_arms("step_ns", Arm("A", a), Arm("B", b)).verdict is UNKNOWN
    assert judge(samples(*FAST), samples(*SLOW), 0.05, more_is_worse=False).verdict is WORSE
    assert judge(samples(*SLOW), samples(*FAST), 0.05, more_is_worse=False).verdict is BETTER
    assert judge(samples(*FAST), samples(*SLOW), 0.05).verdict is BETTER


def test_runs_of_unlike_blocks_cannot_be_compared() -> None:
    assert effect([Sample(1, 0), Sample(1.1, 0)], [Sample(1, 1), Sample(1.2, 1)]) is None


def test_the_runs_that_are_named_as_needed_would_tell() -> None:
    a, b = in_blocks(100, 106, 96, 102), in_blocks(102, 98, 108, 96)
    judged = judge(a, b, 0.05)
    assert judged.verdict is ChangeVerdict.UNKNOWN and judged.needed_runs is not None and judged.needed_runs > 4
    assert judge(samples(100, 102, 98, 101), samples(105, 107, 103, 106), 0.05).needed_runs is None
    times = judged.needed_runs // 4 + 1
    more = [[s._replace(block=s.block + 2 * i) for i in range(times) for s in arm] for arm in (a, b)]
    assert judge(more[0], more[1], 0.05).verdict is not ChangeVerdict.UNKNOWN


def test_a_mean_has_the_interval_of_students_t_and_one_run_none() -> None:
    """Of 9, 10 and 11, s is 1, so the half-width is 4.3027 / √3."""
    found = repeated([9.0, 10.0, 11.0])
    assert found is not None and (found.mean, found.n) == (10, 3)
    assert (found.low, found.high) == pytest.approx((10 - 4.30265 / 3**0.5, 10 + 4.30265 / 3**0.5), rel=1e-5)
    assert repeated([5.0]) == RepeatedMean(mean=5.0, n=1) and repeated([]) is None
    of_some = over_runs([{"step_ns": 1.0, "mfu": 0.5}, {"step_ns": 3.0}])
    assert {name: (value.mean, value.n) for name, value in of_some.items()} == {"step_ns": (2, 2), "mfu": (0.5, 1)}


def test_every_point_is_compared_with_the_first() -> None:
    runs = {"1": [100.0, 101.0, 99.0], "2": [80.0, 81.0, 79.0], "4": [], "8": [100.5, 99.5, 100.0]}
    compared = with_first("tokens_per_s", runs, more_is_worse=False)
    assert {point: found.verdict.value for point, found in compared.items()} == {"2": "worse", "8": "same"}
    assert with_first("tokens_per_s", {}, more_is_worse=False) == {}


def a_run(device: str = "NVIDIA A100", tool: str = "nsys", **versions: str) -> Summary:
    ranks = [RankTraining(rank=r, device_name=device, versions={"torch": "2.7", **versions}) for r in range(2)]
    return Summary(training=ranks, sources=[TraceSource(path="x", tool=tool)], world_size=2, hosts=["n0"])


@pytest.mark.parametrize(
    ("other", "name", "b"),
    [
        (a_run(device="NVIDIA H100"), "devices", "2 × NVIDIA H100"),
        (a_run(tool="torch.profiler"), "profiler", "torch.profiler"),
        (a_run(torch="2.8"), "torch", "2.8"),
        (a_run().model_copy(update={"world_size": 4}), "ranks", "4"),
        (a_run().model_copy(update={"hosts": ["n0", "n1"]}), "nodes", "2"),
        (a_run().model_copy(update={"run": {"image": "/new.sif"}}), "container image", None),
    ],
)
def test_hardware_and_software_are_the_key(other: Summary, name: str, b: str | None) -> None:
    keys = [key_of(a_run())], [key_of(other)]
    if b is None:  # what only one of them recorded is said, and differs in nothing that is known
        assert differences(*keys) == {} and unrecorded(*keys) == [name]
    else:
        assert {n: values[1] for n, values in differences(*keys).items()} == {name: b}


def a_whole_run(used: Sequence[str] | None = ("torch", "einops"), **packages: str) -> Summary:
    """A run that recorded its whole environment. packages: those that are not as usual; empty: not installed."""
    every = {"torch": "2.7", "einops": "0.8", "pytest": "8.1", **packages}
    installed = {name: version for name, version in every.items() if version}
    known = RunEnvironment(
        nodes=["n0"], packages=installed, used=None if used is None else [*used], system={"python": "3.11"}
    )
    return a_run().model_copy(update={"environments": [known]})


@pytest.mark.parametrize(
    ("a", "b", "differs", "missing"),
    [
        (a_whole_run(), a_whole_run(einops="0.9"), {"einops": ("0.8", "0.9")}, []),
        (a_whole_run(), a_whole_run(pytest="8.2"), {}, []),  # which neither used
        (a_whole_run(), a_whole_run(pytest=""), {}, []),
        (a_whole_run(), a_whole_run(used=("torch",), einops="0.9"), {"einops": ("0.8", "0.9")}, []),
        (a_whole_run(), a_whole_run(used=("torch",), einops=""), {"einops": ("0.8", "none")}, []),
        (a_whole_run(), a_whole_run(used=None, pytest="8.2"), {"pytest": ("8.1", "8.2")}, []),  # it was killed
        (a_run(python="3.11"), a_whole_run(einops="0.9"), {}, ["other packages"]),
        (a_run(python="3.11"), a_whole_run(torch="2.8"), {"torch": ("2.7", "2.8")}, ["other packages"]),
    ],
)
def test_every_package_that_a_run_used_is_of_the_key(
    a: Summary, b: Summary, differs: dict[str, tuple[str, str]], missing: list[str]
) -> None:
    assert differences([key_of(a)], [key_of(b)]) == differs
    assert unrecorded([key_of(a)], [key_of(b)]) == missing


def test_runs_of_one_arm_must_agree_too() -> None:
    keys = [key_of(a_run(nccl="2.21")), key_of(a_run(nccl="2.25"))]
    assert differences(keys, [keys[0]]) == {"nccl": ("2.21 or 2.25", "2.21")}
    assert differences([keys[0]], [keys[0]]) == {}

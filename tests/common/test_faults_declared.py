"""A fault is declared once, read from the words of a user, and refused in one sentence where it cannot work."""

from __future__ import annotations

import pytest

from harness.common.errors import RequestError
from harness.common.faults import CPU_AND_GPU, FAULTS, Fault, FaultKey, Setup, misfits, parse_fault, wrong_device

TWO_RANKS = Setup(exercise=1, world_size=2, micro_batch_size=2)


def refusals(*texts: str, setup: Setup = TWO_RANKS) -> list[str]:
    return list(misfits(map(parse_fault, texts), setup))


def an_example(key: FaultKey) -> str:
    """A value that the key takes."""
    return key.default or (key.words[0] if key.words else f"{max(key.least, 2):g}")


def example(name: str) -> str:
    """A request for a fault, with all its keys."""
    return ",".join([name, *(f"{key.name}={an_example(key)}" for key in FAULTS[name].keys)])


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_shown_can_be_asked_for(name: str) -> None:
    asked = parse_fault(example(name))
    assert set(asked.values) == {key.name for key in FAULTS[name].keys}
    assert parse_fault(str(asked)) == asked
    assert all(key.default is None or key.read(key.default) == key.default for key in FAULTS[name].keys)


def test_a_request_is_kept_as_short_as_it_can_be_typed() -> None:
    assert str(parse_fault("pause,every=1,rank=all,ms=20.50")) == "pause,ms=20.5"
    assert str(parse_fault("pause,every=02,ms=1,rank=007")) == "pause,ms=1,rank=7,every=2"


def test_every_k_means_each_kth_step_counted_from_one() -> None:
    third, each = parse_fault("pause,ms=1,every=3"), parse_fault("pause,ms=1")
    assert [step for step in range(9) if third.due(step)] == [2, 5, 8]
    assert all(each.due(step) for step in range(9))


def test_a_fault_concerns_its_rank_or_all() -> None:
    one, each = parse_fault("pause,ms=1,rank=1"), parse_fault("pause,ms=1")
    assert [rank for rank in range(3) if one.concerns(rank)] == [1]
    assert all(each.concerns(rank) for rank in range(3))


def test_times_are_integer_nanoseconds() -> None:
    assert parse_fault("pause,ms=0.001").ns() == 1000
    assert parse_fault("pause,ms=20.5").ns() == 20_500_000


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "there is no fault ''"),
        ("data-stal,ms=5", "there is no fault 'data-stal': did you mean data-stall?"),
        (
            "data-stall",
            "data-stall: ms is missing (how long data loading sleeps): data-stall,ms=…[,rank=all][,every=1]",
        ),
        ("data-stall,ms", "give ms a value: ms=…"),
        ("data-stall,ms=", "ms takes a number ≥ 0.001 and ≤ 60000, not ''"),
        ("data-stall,ms=0", "not '0'; the nearest is 0.001"),
        ("data-stall,ms=1e3", "not '1e3'"),
        ("data-stall,ms=٣", "not '٣'"),
        ("data-stall,ms=60001", "not '60001'; the nearest is 60000"),
        ("data-stall,ms=5,ms=6", "ms is given twice"),
        ("data-stall,ms=5,evry=2", "data-stall has no key 'evry': did you mean every?"),
        ("data-stall,ms=5,x=2", "data-stall has no key 'x': its keys are ms, rank, every"),
        ("data-stall,ms=5,every=0", "every takes a whole number ≥ 1 and ≤ 1000000, not '0'; the nearest is 1"),
        ("data-stall,ms=5,every=1.5", "every takes a whole number ≥ 1 and ≤ 1000000, not '1.5'; the nearest is 2"),
        ("data-stall,ms=5,rank=-1", "rank takes a whole number ≥ 0 and ≤ 640000 or all, not '-1'; the nearest is 0"),
        ("data-stall,ms=5,rank=al", "not 'al': did you mean all?"),
        ("host-stall,ms=5,in=forwards", "in takes forward or backward or optimizer, not 'forwards': did you mean forw"),
    ],
)  # fmt: skip
def test_a_wrong_request_gets_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(RequestError) as refused:
        parse_fault(text)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_rank_must_be_there() -> None:
    assert refusals("pause,ms=1,rank=1") == []
    (said,) = refusals("pause,ms=1,rank=2")
    assert "there is no rank 2, the ranks are 0 to 1: the nearest is rank=1" in said
    assert refusals("pause,ms=1,rank=2", setup=Setup(exercise=1)) == [], "the world size is not known yet"


def test_a_fault_that_would_never_come_is_refused() -> None:
    twelve_steps = TWO_RANKS._replace(steps=12)
    assert refusals("pause,ms=1,every=12", setup=twelve_steps) == []
    (said,) = refusals("pause,ms=1,every=13", setup=twelve_steps)
    assert "it would never happen in a training of 12 steps: the nearest is every=12" in said


def test_a_fault_comes_twice_only_with_another_rank_step_or_phase() -> None:
    assert refusals("pause,ms=1,rank=0", "pause,ms=1,rank=1") == []
    assert refusals("pause,ms=1", "pause,ms=1,every=1") == ["--fault pause,ms=1 is given 2 times: drop one"]


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("exercise", [1, 2, 3, 4])
def test_a_fault_works_in_its_exercises_only(name: str, exercise: int) -> None:
    setup = Setup(exercise, world_size=4, micro_batch_size=2, stages=2)
    said = refusals(example(name), setup=setup)
    if exercise in FAULTS[name].exercises:
        assert said == []
    else:
        assert len(said) == 1 and f"not in exercise {exercise}: drop it or use -e " in said[0]


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_works_on_its_devices_only(name: str) -> None:
    for device in CPU_AND_GPU:
        said = list(wrong_device([parse_fault(example(name))], device))
        assert len(said) == (device not in FAULTS[name].devices)
        assert all(f"--fault {name} has no effect on" in sentence for sentence in said)


@pytest.mark.parametrize("name", FAULTS)
def test_what_a_fault_needs_is_said_where_it_is_missing(name: str) -> None:
    bare = Setup(
        FAULTS[name].exercises[0],
        world_size=1,
        micro_batch_size=1,
        replicas=1,
        buckets=False,
        virtual_stages=2,
        checkpoints=False,
    )
    asked = [Fault(FAULTS[name], {**parse_fault(example(name)).values, "rank": "all"})]
    said, needs = list(misfits(asked, bare)), list(asked[0].needs)
    assert len(said) == len(needs)
    assert all(need.sentence in sentence for need, sentence in zip(needs, said, strict=True))


def test_what_only_one_kind_of_a_fault_needs_is_said_of_that_kind_alone() -> None:
    alone = Setup(exercise=1, world_size=1)
    assert refusals("hang", "hang,kind=lock", setup=alone) == []
    (said,) = refusals("hang,kind=order", setup=alone)
    assert "a single rank waits for no other rank: ask for more with -g or -n" in said
    (said,) = refusals("hang,kind=order", setup=Setup(exercise=3, world_size=2, stages=2))
    assert "cannot meet there: drop --pp" in said
    assert refusals("hang,kind=missing-collective", setup=Setup(exercise=3, world_size=2, stages=2)) == []


def test_what_happens_in_one_step_happens_in_no_other() -> None:
    once = parse_fault("crash,step=3")
    assert [step for step in range(9) if once.due(step)] == [3]
    assert parse_fault("crash").step == 5
    assert refusals("crash,step=11", setup=TWO_RANKS._replace(steps=12)) == []
    (said,) = refusals("crash,step=12", setup=TWO_RANKS._replace(steps=12))
    assert "there is no step 12, the steps are 0 to 11: the nearest is step=11" in said


def test_every_rank_takes_part_in_what_all_do_together() -> None:
    together, alone = parse_fault("hang,kind=order,rank=1"), parse_fault("hang,kind=lock,rank=1")
    assert [rank for rank in range(3) if together.starts_on(rank)] == [0, 1, 2]
    assert [rank for rank in range(3) if together.concerns(rank)] == [1]
    assert [rank for rank in range(3) if alone.starts_on(rank)] == [1]

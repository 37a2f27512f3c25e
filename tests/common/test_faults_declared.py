"""A fault is declared once, read from the words of a user, and refused in one sentence where it cannot work."""

from __future__ import annotations

from typing import Any

import pytest

from harness.common.errors import RequestError
from harness.common.faults.fault import CPU_AND_GPU, FAULTS, Fault, FaultKey, Setup, misfits, parse_fault, wrong_device

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


@pytest.mark.parametrize(
    "case",
    [
        ("pause,every=1,rank=all,ms=20.50", "pause,ms=20.5", 20_500_000, range(9), range(3)),
        ("pause,every=02,ms=1,rank=007", "pause,ms=1,rank=7,every=2", 1_000_000, [1, 3, 5, 7], []),
        ("pause,ms=0.001,every=3", "pause,ms=0.001,every=3", 1000, [2, 5, 8], range(3)),
        ("pause,ms=1,rank=1", "pause,ms=1,rank=1", 1_000_000, range(9), [1]),
    ],
)
def test_a_request_is_kept_short_and_concerns_its_steps_and_ranks(case: tuple[Any, ...]) -> None:
    text, short, ns, steps, ranks = case
    fault = parse_fault(text)
    assert (str(fault), fault.ns()) == (short, ns)
    assert [step for step in range(9) if fault.due(step)] == [*steps]
    assert [rank for rank in range(3) if fault.concerns(rank)] == [*ranks]


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


TWELVE = TWO_RANKS._replace(steps=12)


@pytest.mark.parametrize(
    ("texts", "setup", "sentence"),
    [
        (["pause,ms=1,rank=1"], TWO_RANKS, ""),
        (["pause,ms=1,rank=2"], TWO_RANKS, "there is no rank 2, the ranks are 0 to 1: the nearest is rank=1"),
        (["pause,ms=1,rank=2"], Setup(exercise=1), ""),  # the world size is not known yet
        (["pause,ms=1,every=12"], TWELVE, ""),
        (["pause,ms=1,every=13"], TWELVE, "it would never happen in a training of 12 steps: the nearest is every=12"),
        (["crash,step=11"], TWELVE, ""),
        (["crash,step=12"], TWELVE, "there is no step 12, the steps are 0 to 11: the nearest is step=11"),
        (["pause,ms=1,rank=0", "pause,ms=1,rank=1"], TWO_RANKS, ""),
        (["pause,ms=1", "pause,ms=1,every=1"], TWO_RANKS, "--fault pause,ms=1 is given 2 times: drop one"),
        (["hang", "hang,kind=lock"], Setup(exercise=1, world_size=1), ""),
        (["hang,kind=order"], Setup(exercise=1, world_size=1), "a single rank waits for no other rank: ask for more"),
        (["hang,kind=order"], Setup(exercise=3, world_size=2, stages=2), "cannot meet there: drop --pp"),
        (["hang,kind=missing-collective"], Setup(exercise=3, world_size=2, stages=2), ""),
    ],
)
def test_what_could_not_happen_there_is_refused(texts: list[str], setup: Setup, sentence: str) -> None:
    said = refusals(*texts, setup=setup)
    assert sentence in "".join(said) and len(said) == bool(sentence)


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


def test_what_happens_in_one_step_happens_in_no_other() -> None:
    assert [step for step in range(9) if parse_fault("crash,step=3").due(step)] == [3]
    assert parse_fault("crash").step == 5


def test_every_rank_takes_part_in_what_all_do_together() -> None:
    for kind, starts in (("order", [0, 1, 2]), ("lock", [1])):
        fault = parse_fault(f"hang,kind={kind},rank=1")
        assert [rank for rank in range(3) if fault.starts_on(rank)] == starts
        assert [rank for rank in range(3) if fault.concerns(rank)] == [1]

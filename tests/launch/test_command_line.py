"""The launch line is read in one way, however it is spelled; what cannot be read is said in sentences."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cli.command import read_launch
from harness.cli.launch.parameters import launch_flags

FLAGS = {name: flag for flag in launch_flags() for name in flag.names}
VALUED = sorted(name for name, flag in FLAGS.items() if flag.takes_value)
SWITCHES = sorted(set(FLAGS) - set(VALUED))


def repeats(name: str) -> bool:
    return bool(FLAGS[name].homes) and FLAGS[name].option.flag.repeats


def alone(name: str) -> str | None:
    return FLAGS[name].option.flag.alone if FLAGS[name].homes else None


def said(argv: list[str]) -> dict[str, Any]:
    """What was read, without the words themselves."""
    return read_launch(argv)._replace(argv=())._asdict()


values = st.text(st.characters(exclude_characters="\0"), max_size=8) | st.integers(-9, 99).map(str)


@given(st.sampled_from(VALUED), values.filter(lambda value: not value.startswith("-")))
def test_joined_and_spaced_spellings_mean_the_same(name: str, value: str) -> None:
    spaced = said([name, value])
    kept: object = [value] if repeats(name) else value
    assert spaced["given"] == {FLAGS[name].names[-1]: kept}
    assert said([f"{name}={value}"]) == spaced
    if len(name) == 2 and value and not value.startswith("="):
        assert said([name + value]) == spaced


@given(
    st.sampled_from([name for name in VALUED if alone(name) is None]),
    st.integers(max_value=-1),
    st.sampled_from(SWITCHES),
)
def test_a_negative_number_is_a_value_and_a_flag_is_not(name: str, number: int, switch: str) -> None:
    kept: object = [str(number)] if repeats(name) else str(number)
    assert said([name, str(number)])["given"] == {FLAGS[name].names[-1]: kept}
    line = read_launch([name, switch])
    assert line.given == {FLAGS[switch].names[-1]: True}
    assert line.complaints == [f"{name} requires an argument"]


@given(st.lists(st.sampled_from([*SWITCHES, "--nodes=2", "-g4", "--data=x"])), st.data())
def test_two_dashes_change_nothing_wherever_they_stand(argv: list[str], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(argv)))
    begun = ["-e", "1"]
    assert said([*begun, *argv[:at], "--", *argv[at:]]) == said([*begun, *argv])


@pytest.mark.parametrize("argv", [["-n", "1", "--nodes=3"], ["-n1", "-n1"], ["--nodes", "1", "-n=3"]])
def test_a_flag_that_is_given_twice_is_refused_however_each_is_spelled(argv: list[str]) -> None:
    assert read_launch(argv).complaints == ["-n/--nodes is given twice: drop one"]


def test_a_value_may_be_left_out_where_a_word_stands_for_it() -> None:
    for after in ([], ["-n1"], ["--", "-g", "2"]):
        assert read_launch(["-e1", "--mixed-precision", *after]).given["--mixed-precision"] == "bf16"
    assert read_launch(["--mixed-precision", "fp8", "-n1"]).given == {"--mixed-precision": "fp8", "--nodes": "1"}


def test_a_flag_that_repeats_keeps_all_its_values_in_order() -> None:
    line = read_launch(["--fault", "b", "-n", "1", "--fault=a", "--fault", "b"])
    assert line.given == {"--fault": ["b", "a", "b"], "--nodes": "1"} and not line.complaints


@pytest.mark.parametrize(
    ("argv", "unknown"),
    [
        (["--nodez", "2", "stray"], ["--nodez", "stray"]),  # the 2 was meant for --nodez
        (["--nodez", "-1"], ["--nodez"]),
        (["--nodez=2", "stray"], ["--nodez=2", "stray"]),
        (["--nodez", "-x"], ["--nodez", "-x"]),
        (["-xy", ""], ["-xy"]),
    ],
)
def test_an_unknown_flag_takes_its_value_with_it_and_nothing_else(argv: list[str], unknown: list[str]) -> None:
    assert [*(line := read_launch(argv)).unknown, *line.words] == unknown

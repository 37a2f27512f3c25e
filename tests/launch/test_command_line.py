"""The launch line is read in one way, however it is spelled; what cannot be read is said in sentences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cli.parser import declared, read_line

FLAGS = declared()
VALUED = sorted(name for name, flag in FLAGS.items() if flag.takes)
SWITCHES = sorted(set(FLAGS) - set(VALUED))

values = st.text(st.characters(exclude_characters="\0"), max_size=8) | st.integers(-9, 99).map(str)


@given(st.sampled_from(VALUED), values.filter(lambda value: not value.startswith("-")))
def test_joined_and_spaced_spellings_mean_the_same(name: str, value: str) -> None:
    spaced = read_line([name, value], FLAGS)
    assert spaced.given == {FLAGS[name].names[-1]: (value,) if FLAGS[name].repeats else value}
    assert read_line([f"{name}={value}"], FLAGS) == spaced
    if len(name) == 2 and value and not value.startswith("="):
        assert read_line([name + value], FLAGS) == spaced


@given(
    st.sampled_from([n for n in VALUED if FLAGS[n].alone is None]), st.integers(max_value=-1), st.sampled_from(SWITCHES)
)
def test_a_negative_number_is_a_value_and_a_flag_is_not(name: str, number: int, switch: str) -> None:
    kept: object = (str(number),) if FLAGS[name].repeats else str(number)
    assert read_line([name, str(number)], FLAGS).given == {FLAGS[name].names[-1]: kept}
    line = read_line([name, switch], FLAGS)
    assert line.given == {FLAGS[switch].names[-1]: True}
    assert line.complaints == [f"{name} requires an argument"]


@given(st.lists(st.sampled_from([*SWITCHES, "--nodes=2", "-g4", "--data=x"])), st.data())
def test_two_dashes_change_nothing_wherever_they_stand(argv: list[str], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(argv)))
    assert read_line([*argv[:at], "--", *argv[at:]], FLAGS) == read_line(argv, FLAGS)


@pytest.mark.parametrize("argv", [["-n", "1", "--nodes=3"], ["-n1", "-n3"], ["--nodes", "1", "-n", "3"]])
def test_two_values_for_one_flag_are_refused_however_each_is_spelled(argv: list[str]) -> None:
    assert read_line(argv, FLAGS).complaints == ["-n/--nodes is given twice, as 1 and as 3: drop one"]
    assert read_line([word.replace("3", "1") for word in argv], FLAGS).complaints == []


def test_a_value_may_be_left_out_where_a_word_stands_for_it() -> None:
    for after in ([], ["-n1"], ["--", "-g", "2"]):
        assert read_line(["--mixed-precision", *after], FLAGS).given["--mixed-precision"] == "bf16"
    assert read_line(["--mixed-precision", "fp8", "-n1"], FLAGS).given == {"--mixed-precision": "fp8", "--nodes": "1"}


def test_a_flag_that_repeats_keeps_all_its_values_in_order() -> None:
    line = read_line(["--fault", "b", "-n", "1", "--fault=a", "--fault", "b"], FLAGS)
    assert line.given == {"--fault": ("b", "a", "b"), "--nodes": "1"}


@pytest.mark.parametrize(
    ("argv", "unknown"),
    [
        (["--nodez", "2", "stray"], ["--nodez", "stray"]),  # the 2 was meant for --nodez
        (["--nodez", "-1"], ["--nodez"]),
        (["--nodez=2", "stray"], ["--nodez=2", "stray"]),
        (["--nodez", "-x"], ["--nodez", "-x"]),
        (["-hx", ""], ["-hx"]),
    ],
)
def test_an_unknown_flag_takes_its_value_with_it_and_nothing_else(argv: list[str], unknown: list[str]) -> None:
    assert [*(line := read_line(argv, FLAGS)).unknown, *line.words] == unknown

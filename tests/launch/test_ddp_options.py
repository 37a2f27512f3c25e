"""Exercise 1's further options reach the script and the run's name; test_requests.py has what they refuse."""

from __future__ import annotations

import pytest

from harness.experiment.base import AdviceNumbers
from harness.experiment.ddp import DDP
from harness.experiment.parse import command_of
from tests.launch.launch_shared import Harness

REACH = [
    ("--no-pin-memory --site leonardo", "--no-pin-memory", "pin0"),
    ("--no-non-blocking --site leonardo", "--no-non-blocking", "nonblocking0"),
    ("--bucket-cap-mb 0.25", "--bucket-cap-mb 0.25", "bucket0.25"),
    ("-n 2 --fsdp-hybrid", "--fsdp hybrid", "fsdphybrid"),
    ("--lora", "--lora 16", "lora16"),
    ("--lora-rank 8", "--lora 8", "lora8"),
    ("--activation-offload", "--activation-offload", "offload1"),
    ("--mixed-precision bf16", "--mixed-precision", "mixed1"),
    ("--mixed-precision -n1", "--mixed-precision", "mixed1"),
    ("--mixed-precision=bf16", "--mixed-precision", "mixed1"),
    ("--mixed-precision tf32 --site leonardo", "--mixed-precision tf32", "mixedtf32"),
    ("--mixed-precision fp8 --site marenostrum5", "--mixed-precision fp8", "mixedfp8"),
    ("--unified-memory --site jupiter", "--unified-memory", "unified1"),
]


@pytest.mark.parametrize(("words", "argument", "tag"), REACH, ids=[words for words, *_ in REACH])
def test_it_reaches_the_script_and_names_the_run(harness: Harness, words: str, argument: str, tag: str) -> None:
    done = harness("-e", "1", "-g", "2", "--dry-run", *words.split())
    assert done.returncode == 0, done.stderr
    assert f" {argument}" in done.stdout
    assert f"-{tag}" in done.stdout


def test_fp32_asked_for_is_the_default() -> None:
    assert DDP.model_validate({"mixed_precision": "fp32"}) == DDP() == DDP(mixed_precision=False)
    assert DDP.model_validate({"mixed_precision": "bf16"}) == DDP(mixed_precision=True)


def test_the_command_of_a_precision_asks_for_it_again() -> None:
    commands = [command_of(DDP(mixed_precision=asked)) for asked in (True, "tf32", "fp8")]
    asked = ["--mixed-precision"], ["--mixed-precision", "tf32"], ["--mixed-precision", "fp8"]
    assert commands == [["-e", "1", "--", *words] for words in asked]


def test_to_send_less_gradients_are_accumulated_four_times_as_long() -> None:
    advice = DDP(gradient_accumulation_steps=2).send_less(AdviceNumbers(False, 1, lambda _: False))
    assert [each.fields for each in advice.changes] == [{"gradient_accumulation_steps": 8}]

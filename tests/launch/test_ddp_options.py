"""What exercise 1's further options refuse, and that each reaches the script and the run's name."""

from __future__ import annotations

import pytest

from harness.experiment.base import AdviceNumbers
from harness.experiment.ddp import DDP
from harness.experiment.parse import command_of
from tests.launch.launch_shared import Harness

REFUSED = [
    ("--slow-dataloading --pin-memory --site leonardo", "loads into pageable memory, and --pin-memory asks for"),
    ("--pin-memory --site local", "--pin-memory has an effect on GPUs only, and site local runs on CPUs"),
    ("--no-pin-memory --site local", "--no-pin-memory has an effect on GPUs only, and site local runs on CPUs"),
    ("--no-non-blocking --site local", "--no-non-blocking has an effect on GPUs only, and site local runs on"),
    ("--fsdp --bucket-cap-mb 1", "--bucket-cap-mb sizes DDP's buckets, and FSDP communicates layer by layer"),
    ("--fsdp --fault small-buckets,kb=8", "--fault small-buckets,kb=8: FSDP has no buckets"),
    ("--fsdp --activation-offload", "--activation-offload would copy the parameters that FSDP has gathered"),
    ("--fsdp-hybrid", "--fsdp-hybrid shards inside a node and copies between nodes, and -n/--nodes is 1"),
    ("--lora --model tiny-mixtral", "--lora adapts the matrices of dense layers, and tiny-mixtral is a mixture"),
    ("--lora-rank 0", "--lora/--lora-rank: got '0', takes a whole number ≥ 1"),
    ("--bucket-cap-mb nan", "--bucket-cap-mb: got 'nan', takes a number > 0"),
    ("--mixed-precision fp16", "got 'fp16', takes one of fp32, tf32, bf16, fp8: did you mean"),
    ("--mixed-precision yes", "--mixed-precision/--no-mixed-precision: got 'yes', takes one of fp32, tf32, bf16, fp8"),
    ("--mixed-precision fp32 --mixed-precision", "--mixed-precision is given twice, as fp32 and as bf16: drop one"),
    (
        "--no-mixed-precision --mixed-precision bf16",
        "--no-mixed-precision and --mixed-precision bf16 exclude each other",
    ),
    ("--mixed-precision tf32", "tf32 works on GPUs only, and site local runs on CPUs: use --mixed-precision fp32"),
    ("--mixed-precision fp8", "fp8 works on GPUs only, and site local runs on CPUs: use --mixed-precision bf16"),
    ("--mixed-precision fp8 --site leonardo", "has NVIDIA A100-SXM-64GB: use --mixed-precision bf16, or use another"),
    (
        "--mixed-precision fp8 --lora --site jupiter",
        "--mixed-precision fp8 converts the matrices that are trained, and",
    ),
    (
        "--mixed-precision fp8 --micro-batch-size 1 --seq-length 20 --site jupiter",
        "1 × 20 tokens per micro-batch are no multiple of that: the nearest is --seq-length 32",
    ),
    (
        "--mixed-precision tf32 --activation-checkpointing --site leonardo",
        "--activation-checkpointing needs --mixed-precision: use bf16 in place of tf32",
    ),
    ("--unified-memory", "--unified-memory has an effect on GPUs only, and site local runs on CPUs"),
    ("--unified-memory --memory-snapshot --site jupiter", "--memory-snapshot reads PyTorch's allocator, and with"),
    ("--unified-memory --site aws-p5", "--unified-memory needs GH200, and site aws-p5 has NVIDIA H100 80GB"),
]
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
    ("--mixed-precision=bf16 -- --mixed-precision", "--mixed-precision", "mixed1"),
    ("--mixed-precision tf32 --site leonardo", "--mixed-precision tf32", "mixedtf32"),
    ("--mixed-precision fp8 --site marenostrum5", "--mixed-precision fp8", "mixedfp8"),
    ("--unified-memory --site jupiter", "--unified-memory", "unified1"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED, ids=[words for words, _ in REFUSED])
def test_what_cannot_work_is_one_sentence(harness: Harness, words: str, said: str) -> None:
    done = harness("-e", "1", "-g", "2", "--dry-run", *words.split())
    assert done.returncode == 2
    refusals = [line for line in done.stderr.splitlines() if not line.startswith("site:")]
    assert len(refusals) == 1 and said in refusals[0]


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


@pytest.mark.parametrize("exercise", ["2", "3"])
def test_the_other_trainings_have_tf32_and_no_fp8(harness: Harness, exercise: str) -> None:
    done = harness("-e", exercise, "--site", "leonardo", "--dry-run", "--mixed-precision", "tf32")
    assert done.returncode == 0 and " --mixed-precision tf32" in done.stdout, done.stderr
    done = harness("-e", exercise, "--site", "jupiter", "--dry-run", "--mixed-precision", "fp8")
    assert done.returncode == 2
    said = (
        f"--mixed-precision fp8 is for exercise 1: exercise {exercise} computes in fp32, tf32, bf16, and the nearest is"
    )
    assert said in done.stderr


def test_gpus_that_nobody_named_are_a_warning(harness: Harness) -> None:
    done = harness("-e", "1", "--site", "slurm", "--dry-run", "--mixed-precision", "fp8", "--unified-memory")
    assert done.returncode == 0, done.stderr
    warned = [line for line in done.stderr.splitlines() if "the GPUs of site slurm are not known" in line]
    assert [line.split()[1] for line in warned] == ["--mixed-precision", "--unified-memory"]
    assert "not known" not in harness("-e", "1", "--site", "jupiter", "--dry-run", "--mixed-precision", "fp8").stderr

"""What exercise 1's further options refuse, and that each reaches the script and the run's name."""

from __future__ import annotations

import pytest

from tests.launch.launch_shared import Harness

REFUSED = [
    (
        "--slow-dataloading --pin-memory --site leonardo",
        "loads into pageable memory, and --pin-memory asks for",
    ),
    ("--pin-memory --site local", "--pin-memory does something on GPUs only, and site local runs on CPUs"),
    ("--fsdp --bucket-cap-mb 1", "--bucket-cap-mb sizes DDP's buckets, and FSDP communicates layer by layer"),
    ("--fsdp --fault small-buckets,kb=8", "--fault small-buckets,kb=8: FSDP has no buckets"),
    ("--fsdp --activation-offload", "--activation-offload would copy the parameters that FSDP has gathered"),
    ("--fsdp-hybrid", "--fsdp-hybrid shards inside a node and copies between nodes, and -n/--nodes is 1"),
    (
        "--lora --model tiny-mixtral",
        "--lora adapts the matrices of dense layers, and tiny-mixtral is a mixture",
    ),
    ("--lora-rank 0", "--lora/--lora-rank: got '0', takes a whole number ≥ 1"),
    ("--bucket-cap-mb nan", "--bucket-cap-mb: got 'nan', takes a number > 0"),
]
REACH = [
    ("--no-pin-memory", "--no-pin-memory", "pin0"),
    ("--no-non-blocking", "--no-non-blocking", "nonblocking0"),
    ("--bucket-cap-mb 0.25", "--bucket-cap-mb 0.25", "bucket0.25"),
    ("-n 2 --fsdp-hybrid", "--fsdp hybrid", "fsdphybrid"),
    ("--lora", "--lora 16", "lora16"),
    ("--lora-rank 8", "--lora 8", "lora8"),
    ("--activation-offload", "--activation-offload", "offload1"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED, ids=[words for words, _ in REFUSED])
def test_what_cannot_work_is_one_sentence(harness: Harness, words: str, said: str) -> None:
    done = harness("-e", "1", "-g", "2", "--dry-run", *words.split())
    assert done.returncode == 2
    refusals = [line for line in done.stderr.splitlines() if not line.startswith("site:")]
    assert len(refusals) == 1 and said in refusals[0]


@pytest.mark.parametrize(("words", "argument", "tag"), REACH, ids=[words for words, *_ in REACH])
def test_it_reaches_the_script_and_names_the_run(
    harness: Harness, words: str, argument: str, tag: str
) -> None:
    done = harness("-e", "1", "-g", "2", "--dry-run", *words.split())
    assert done.returncode == 0, done.stderr
    assert f" {argument}" in done.stdout
    assert f"-{tag}" in done.stdout

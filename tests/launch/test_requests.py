"""A wrong request gets one clear sentence per mistake, exit code 2, and leaves nothing behind."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.common.errors import RequestError
from harness.experiment.exercises import Experiment
from harness.experiment.parse import all_options, build_experiment
from harness.monitor.record import HZ_RANGE
from tests.launch.launch_shared import ROOT, Harness
from tests.waiting import limit_s

LONG = "/" + "x" * 300  # cannot be read, also not by root
OTHER_DASH = ": a flag begins with a hyphen (-), and this is another dash: type "
# What is typed, as words or as a line, and the sentence, or a part of each sentence.
REFUSED: list[tuple[list[str] | str, str | list[str]]] = [
    # the words of a command
    (["-e", "5"], "there is no exercise '5'; the exercises are 0 communication tests, 1 DDP, 2 DeepSpeed"),
    (["-e", "one"], "there is no exercise 'one'"),
    (["-e", "--5"], "there is no exercise '--5'"),
    (["-e", "²"], "there is no exercise '²'"),
    (["-e", "1", "-e", "2"], "-e/--exercise is given twice: drop one"),
    (["check", "a", "b", "--runs", "2", "--runs=3"], "check: --runs is given twice: drop one"),
    (["export", "csv", "x", "-o", "a", "-o", "b"], "export csv: -o/--out is given twice: drop one"),
    (["lesson", "9z"], "there is no lesson '9z' (bash slurm.sh lesson lists all)"),
    (["check", "a"], "check: B is missing (bash slurm.sh help check)"),
    (["run", "-n", "2"], "run: name your script after --, as in"),
    (["run", "train.py"], "run: name your script after --, as in"),
    (["run", "-e", "1", "--", "--fsdp"], "run: name your script after --, as in"),
    (["run", "last", "-n", "2"], "run: --nodes does not go with a run to launch again (bash slurm.sh help run)"),
    (["run", "last", "--plan", "--dry-run"], "--plan and --dry-run exclude each other: drop one"),
    (
        ["export", "svg", "x"],
        "there is no command 'export svg': did you mean csv? (bash slurm.sh help export lists all)",
    ),
    (["help", "chekc"], "there is no command 'chekc': did you mean check? (bash slurm.sh help lists all)"),
    (["help", "xyzzy"], "there is no command 'xyzzy' (bash slurm.sh help lists all)"),
    (["lesson", "mystery", "anwser"], "there is no part 'anwser': did you mean answer?"),
    (["-n", "2", "--site", "local"], "-e/--exercise is missing"),
    (["-e", "1", "-n", "0"], "-n/--nodes: got '0', takes a whole number ≥ 1"),
    (["-e", "1", "-n", "-1"], "-n/--nodes: got '-1'"),
    (["-e", "1", "-n", "two"], "-n/--nodes: got 'two', takes a whole number"),
    (["-e", "1", "--mixed-precison"], "unknown flag --mixed-precison: did you mean --mixed-precision?"),
    (["-e", "1", "--mixed"], "unknown flag --mixed: did you mean --mixed-precision?"),
    (["-e", "1", "--time", "\u0660\u0661:00:00"], "takes HH:MM:SS"),
    (["-e", "1", "--tp", "2"], "--tp belongs to exercise 3"),
    (["-e", "0", "--", "--mixed-precision"], "exercise 0 (communication tests) takes no training flags"),
    (["-e", "2", "--slow-dataloading"], "--slow-dataloading belongs to exercise 1 (DDP)"),
    (["-e", "1", "--ds-stage2"], "--ds-stage2 belongs to exercise 2"),
    (
        ["-e", "1", "--memory"],
        "--memory is for a training of your own, as in bash slurm.sh run -g 2 -- train.py --lr 1e-4: "
        "drop it, or did you mean --memory-snapshot?",
    ),
    (["-e", "3", "--gradient-accumulation-steps", "2"], "follows from --global-batch-size"),
    (["-e", "1", "--activation-checkpointing"], "needs --mixed-precision"),
    (["-e", "1", "--model", "/nowhere/model"], "--model: '/nowhere/model' is neither a model of the harness"),
    (["-e", "1", "--model", "llama-3.2-1"], "did you mean llama-3.2-1b?"),
    (["-e", "1", "--data", "/nowhere.json"], "--data: /nowhere.json does not exist"),
    (["-e", "1", "--site", "leonado"], "did you mean leonardo?"),
    (["-e", "1", "--site", "/nowhere.yaml"], "site file /nowhere.yaml: cannot be read"),
    (["-e", "1", "--time", "soon"], "--time: got 'soon', takes HH:MM:SS"),
    (["-e", "1", "--site", "leonardo", "-g", "8"], "a node of leonardo has 4: use -g 4"),
    (["-e", "1", "--script", "train_tod.py"], "did you mean train_todo.py?"),
    (["-e", "1", "--", "--hf-token", "hf_x"], "unknown flag --hf-token"),
    (["-e", "1", "--model", "https://user:pass@example.org/model"], "--model"),
    (["-e", "1", "-p", "gpu\n#SBATCH --evil"], "-p/--partition: got"),
    (["-e", "1", "-a", "$(touch evil)"], "-a/--account: got '$(touch evil)'"),
    (["-e", "1", "--steps", "5"], "--steps 5 ends before the profiling window closes"),
    (["-e", "3", "--iters", "4"], "--iters/--steps 4 ends before the profiling window closes"),
    (["-e", "1", "--nodes"], "requires an argument"),
    (["-e", "1", "-a", "--dry-run"], "-a requires an argument"),
    (["-e", "1", "-a", "-n", "2"], "-a requires an argument"),
    (["-e", "1", "-a", "--", "--seed=1"], "-a requires an argument"),
    (["-e", "1", "-a", "-x"], "-a/--account: got '-x'"),
    (["-e", "1", "--data", "--mixed-precision", "--dry-run"], "--data requires an argument"),
    (["-e", "1", "--site", "--dry-run"], "--site requires an argument"),
    (["-e", "1", "--steps", "-1"], "--steps: got '-1', takes a whole number"),
    (["-e", "1", "--", "--", "--mixed-precison"], "did you mean --mixed-precision?"),
    (["-e", "1", "--lora=yes"], "--lora takes no value: leave out =yes"),
    (["-e", "1", "--site", ""], "--site: there is no site ''"),
    (["-e", "1", "--time", "0:00:00"], "--time: got '0:00:00', takes HH:MM:SS above zero"),
    (["-e", "3", "--engine", "megatron-lm", "-g", "2"], "--engine megatron-lm trains on GPUs only"),
    (["-e", "3", "--data", "a", "--data-path", "b"], "--data and --data-path both name the training data"),
    (["-e", "1", "stray"], "unexpected word 'stray'"),
    (["lss"], "there is no command 'lss': did you mean ls?"),
    (["7"], "there is no command '7' (bash slurm.sh help lists all)"),
    (["status", "nope"], "there are no runs yet"),
    (["-e", "1", "--data", "~nouser/x"], "/~nouser/x does not exist"),
    (["-e", "1", "--data", "/tmp"], "--data: /tmp exists but is not a file"),
    (["-e", "1", "--data", LONG], f"--data: {LONG} cannot be read (File name too long)"),
    (["-e", "1", "--model", "~nouser/x"], "--model: '~nouser/x' is neither a model of the harness"),
    (["-e", "1", "--model", LONG], f"--model: {LONG} cannot be read (File name too long)"),
    (["-e", "1", "--site", "~nouser/x"], "site file ~nouser/x: cannot be read"),
    (["-e", "1", "--site", "x" * 300], "--site: there is no site"),
    (["-e", "3", "--", "--data-path", "/"], "--data-path: / does not exist as PREFIX.bin"),
    # several mistakes
    (["-n", "0"], ["-e/--exercise is missing", "got '0'"]),
    (
        ["-e", "1", "-n", "two", "--tp", "2", "--mixed-precison", "--time", "soon"],
        ["'two'", "--tp belongs", "--mixed-precison", "--time"],
    ),
    (["-e", "5", "-n", "two", "--tp", "x"], ["there is no exercise '5'", "got 'two'"]),
    (["-e", "1", "--lora=yes", "-n", "0"], ["=yes", "got '0'"]),
    (["-e", "1", "--site", "leonado", "-n", "0", "--time", "soon"], ["leonardo?", "got '0'", "'soon'"]),
    (["-e", "1", "--tp", "2", "-n"], ["--tp belongs", "-n requires an argument"]),
    (["-e", "1", "--data", "--mixed-precison"], ["--data requires", "did you mean --mixed-precision?"]),
    (["-e", "1", "-a", "-p", "--no-profle"], ["-a requires", "-p requires", "did you mean --no-profile?"]),
    # dashes of a slide
    (["–mixed-precision"], OTHER_DASH + "--mixed-precision"),
    (["-e", "1", "--", "—mixed–precision"], OTHER_DASH + "--mixed-precision"),
    (["—e", "1", "-n", "2"], OTHER_DASH + "-e"),
    (["−e1"], OTHER_DASH + "-e1"),
    (["-e", "1", "––steps=9"], OTHER_DASH + "--steps=9"),
    (["-e", "1", "–", "--mixed-precision"], OTHER_DASH + "--"),
    (["lesson", "1a", "-–hint"], OTHER_DASH + "--hint"),
    # typos, with where the list is
    (["reprot", "last"], "did you mean report? (bash slurm.sh help lists all)"),
    (["-e", "1", "--mixed-precison"], "did you mean --mixed-precision? (bash slurm.sh help launch lists all flags)"),
    (["-e", "1", "--site", "leonado"], "did you mean leonardo? (bash slurm.sh sites lists all;"),
    (["-e", "1", "--model", "tiny-lama"], "did you mean tiny-llama? (bash slurm.sh help launch lists all models)"),
    (["-e", "1", "--fault", "pauze,ms=5"], "did you mean pause? (bash slurm.sh help faults lists all)"),
    (["ls", "--limt", "3"], "ls: unknown flag --limt: did you mean --limit? (bash slurm.sh help ls lists all flags)"),
    (
        ["lesson", "mystery", "reveal", ".", "--jsn"],
        "unknown flag --jsn: did you mean --json? (bash slurm.sh help lesson mystery reveal",
    ),
    (["sweep", "gas", "--repeat", "3"], "did you mean --repeats? (bash slurm.sh help sweep lists all flags)"),
    (["lesson", "1aa"], "did you mean 1a? (bash slurm.sh lesson lists all)"),
    (["sweep", "gass"], "did you mean gas? (bash slurm.sh sweep lists all"),
    (["lesson", "mystery", "-e", "1", "--levle", "2"], "unknown flag --levle: did you mean --level? ("),
    (["ls", "last"], "ls: unexpected word 'last' (bash slurm.sh help ls)"),
    (["version"], "did you mean --version? (bash slurm.sh help lists all)"),
    # values
    (["report", "last", "--window", "x"], "report: --window: got 'x', takes one of steps, gpu"),
    (["doctor", "--students", "x"], "doctor: --students: got 'x', takes a whole number ≥ 1 and ≤ 1000000"),
    ("doctor --students 0", "doctor: --students: got '0', takes a whole number ≥ 1"),
    ("doctor --site leonado", "did you mean leonardo?"),
    (["doctor", "--site", "slurm", "-p", "a b"], "-p/--partition: got 'a b'"),
    ("doctor --sites", "unknown flag --sites"),
    (["ls", "-n", "x"], "ls: -n/--limit: got 'x', takes a whole number ≥ 1"),
    (["ls", "-n", "0"], "ls: -n/--limit: got '0', takes a whole number ≥ 1"),
    ("capture start --steps 0", "capture: --steps: got '0', takes a whole number ≥ 1 and ≤ 1000"),
    ("capture begin", "got 'begin', takes one of start, stop"),
    (["capture"], "is missing (bash slurm.sh help capture)"),
    # exercise 0
    (
        ["-e", "0", "--health", "--max-bytes", "4"],
        "--max-bytes is the largest message of the collectives, and --health runs none of them: drop one",
    ),
    (["-e", "0", "--slow-rank", "1"], "--slow-rank slows the probes of --health: add --health, or drop it"),
    (["-e0", "--health", "-g", "2", "--slow-rank", "2"], "--slow-rank 2: the ranks are 0 to 1: the nearest is 1"),
    (["-e0", "--health", "--slow-rank", "-1"], "--slow-rank: got '-1', takes a whole number ≥ 0; the nearest is 0"),
    (
        ["-e", "1", "--health"],
        "--health belongs to exercise 0 (communication tests), not to exercise 1 (DDP): drop it or use -e 0",
    ),
    # exercise 1
    (
        "-e 1 -g 2 --slow-dataloading --pin-memory --site leonardo",
        "loads into pageable memory, and --pin-memory asks for",
    ),
    ("-e 1 -g 2 --pin-memory --site local", "--pin-memory has an effect on GPUs only, and site local runs on CPUs"),
    (
        "-e 1 -g 2 --no-pin-memory --site local",
        "--no-pin-memory has an effect on GPUs only, and site local runs on CPUs",
    ),
    (
        "-e 1 -g 2 --no-non-blocking --site local",
        "--no-non-blocking has an effect on GPUs only, and site local runs on",
    ),
    ("-e 1 -g 2 --fsdp --bucket-cap-mb 1", "--bucket-cap-mb sizes DDP's buckets, and FSDP communicates layer by layer"),
    ("-e 1 -g 2 --fsdp --fault small-buckets,kb=8", "--fault small-buckets,kb=8: FSDP has no buckets"),
    ("-e 1 -g 2 --fsdp --activation-offload", "--activation-offload would copy the parameters that FSDP has gathered"),
    ("-e 1 -g 2 --fsdp-hybrid", "--fsdp-hybrid shards inside a node and copies between nodes, and -n/--nodes is 1"),
    ("-e 1 -g 2 --lora-rank 0", "--lora/--lora-rank: got '0', takes a whole number ≥ 1"),
    ("-e 1 -g 2 --bucket-cap-mb nan", "--bucket-cap-mb: got 'nan', takes a number > 0"),
    ("-e 1 -g 2 --mixed-precision fp16", "got 'fp16', takes one of fp32, tf32, bf16, fp8: did you mean"),
    (
        "-e 1 -g 2 --mixed-precision yes",
        "--mixed-precision/--no-mixed-precision: got 'yes', takes one of fp32, tf32, bf16, fp8",
    ),
    ("-e 1 -g 2 --mixed-precision fp32 --mixed-precision", "--mixed-precision is given twice: drop one"),
    (
        "-e 1 -g 2 --no-mixed-precision --mixed-precision bf16",
        "--no-mixed-precision and --mixed-precision bf16 exclude each other",
    ),
    (
        "-e 1 -g 2 --mixed-precision tf32",
        "tf32 works on GPUs only, and site local runs on CPUs: use --mixed-precision fp32",
    ),
    (
        "-e 1 -g 2 --mixed-precision fp8",
        "fp8 works on GPUs only, and site local runs on CPUs: use --mixed-precision bf16",
    ),
    (
        "-e 1 -g 2 --mixed-precision fp8 --site leonardo",
        "has NVIDIA A100-SXM-64GB: use --mixed-precision bf16, or use another",
    ),
    (
        "-e 1 -g 2 --mixed-precision fp8 --lora --site jupiter",
        "--mixed-precision fp8 converts the matrices that are trained, and",
    ),
    (
        "-e 1 -g 2 --mixed-precision fp8 --micro-batch-size 1 --seq-length 20 --site jupiter",
        "1 × 20 tokens per micro-batch are no multiple of that: the nearest is --seq-length 32",
    ),
    (
        "-e 1 -g 2 --mixed-precision tf32 --activation-checkpointing --site leonardo",
        "--activation-checkpointing needs --mixed-precision: use bf16 in place of tf32",
    ),
    ("-e 1 -g 2 --unified-memory", "--unified-memory has an effect on GPUs only, and site local runs on CPUs"),
    (
        "-e 1 -g 2 --unified-memory --memory-snapshot --site jupiter",
        "--memory-snapshot reads PyTorch's allocator, and with",
    ),
    ("-e 1 -g 2 --unified-memory --site aws-p5", "--unified-memory needs GH200, and site aws-p5 has NVIDIA H100 80GB"),
    # NCCL
    (["-e", "1", "--nccl", "ALGO"], "--nccl: 'ALGO' has no value: write KEY=VALUE"),
    (["-e", "1", "--nccl", "algo=Ring"], "at most 64 characters, such as ALGO or NCCL_ALGO: did you mean ALGO?"),
    (["-e", "1", "--nccl", "A;B=1"], "--nccl: 'A;B' is not the name of a variable"),
    (["-e", "1", "--nccl", "NCCL_=1"], "--nccl: 'NCCL_' is not the name of a variable"),
    (
        ["-e", "1", "--nccl", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=1"],
        "is not the name of a variable",
    ),
    (["-e", "1", "--nccl", "ALGO="], "--nccl: ALGO takes text on one line, of 1 to 1000 characters"),
    (["-e", "1", "--nccl", "ALGO=a\nb"], "--nccl: ALGO takes text on one line"),
    (["-e", "1", "--nccl", "NCCL_DEBUG_FILE=/x"], "--nccl: the harness itself sets NCCL_DEBUG_FILE: --nccl-debug"),
    (["-e", "1", "--nccl", "ALGO=Ring", "--nccl", "ALGO=Tree"], "ALGO=Ring and ALGO=Tree set the same variable"),
    (
        ["-e", "1", "--no-ib", "--nccl", "IB_DISABLE=0"],
        "--no-ib sets NCCL_IB_DISABLE to 1, and --nccl IB_DISABLE=0 to 0: drop one",
    ),
    (
        ["-e", "1", "--nccl-p2p-level", "NVL", "--nccl", "P2P_LEVEL=SYS"],
        "--nccl-p2p-level sets NCCL_P2P_LEVEL to NVL, and --nccl P2P_LEVEL=SYS to SYS: drop one",
    ),
    (["-e", "1", "--nccl-debug", "--nccl", "DEBUG=WARN"], "--nccl-debug to INFO: drop one"),
    (["-e", "1", "--nccl-p2p-level", "PIZ"], "takes one of LOC, NVL, PIX, PXB, PHB, SYS: did you mean PIX?"),
    (
        "-e 0 --site local --no-ib --nccl-debug --nccl-p2p-level SYS --nccl ALGO=Ring",
        ["--no-ib has an effect on GPUs only", "--nccl-debug has", "--nccl-p2p-level has", "--nccl has"],
    ),
    # faults
    (["-e", "1", "--fault", "pauze,ms=5"], "--fault: there is no fault 'pauze': did you mean pause?"),
    (["-e", "1", "--fault", "pause,ms=5", "--fault", "pause"], "--fault: pause: ms is missing"),
    (["-e", "2", "-g", "2", "--fault", "pause,ms=5,rank=2"], "the nearest is rank=1"),
    (["-e", "1", "--fault", "pause,ms=5,rank=99"], "there is no rank 99"),
    (["-e", "0", "--fault", "pause,ms=5"], "takes no training flags"),
    (["-e", "3", "--engine", "megatron-lm", "--site", "leonardo", "--fault", "pause,ms=5"], "drop one"),
    (["-e", "1", "--active-steps", "4", "--fault", "pause,ms=5,every=21"], "steps: the nearest is every=20"),
    (["-e", "1", "--fault", "sync"], "--fault sync has no effect on the CPU, where this training runs: drop it"),
    (["-e", "3", "--fault", "tiny-kernels"], "works in exercise 1 and 2, not in exercise 3: drop it or use -e 1"),
    (["-e", "3", "--fault", "uneven-stages"], "a pipeline of one stage cannot be uneven: add --pp 2"),
    (["-e", "3", "--pp", "2", "--fault", "uneven-stages,layers=2"], "must keep one: the nearest is layers=1"),
    (["-e", "3", "--tp", "2", "--fault", "small-buckets,kb=8"], "has one replica, so no gradients are exchanged"),
    (["-e", "1", "-g", "1", "--fault", "slow-link,ms=1,rank=0"], "a single rank sends no messages"),
    (["help", "faults", "pause", "crash"], "help faults: unexpected word 'crash'"),
    (["help", "faults", "pauze"], "there is no fault 'pauze': did you mean pause?"),
    (
        "-e 1 --no-profile --steps 20 --checkpoint-every 21",
        "would write none in a training of 20 steps: the nearest is",
    ),
    ("-e 1 --fault slow-checkpoint,ms=5", "the training writes no checkpoints: add --checkpoint-every 5"),
    ("-e 2 --mixed-precision fp8 --site jupiter", "--mixed-precision fp8 is for exercise 1: exercise 2 computes in"),
    ("-e 1 --mixed-precision --no-mixed-precision", "exclude each other: drop one"),
    ("-e 1 --profiler torch --no-profile", "--profiler torch and --no-profile exclude each other: drop one"),
    ("-e 1 --no-profile --profiler torch", "--no-profile and --profiler torch exclude each other: drop one"),
    # the arguments of the course's slide, and a part of a flag
    (
        "-e 2 -- --model-path /x/Mistral",
        "--model-path is on the course's slide; here type --model NAME or --model PATH;",
    ),
    ("-e 2 -- --data-path x", "in exercise 2 type --data FILE; without it the training reads the data of the site"),
    ("-e 1 -- --no-validation", "--no-validation is on the course's slide; here leave it out: the training validates"),
    ("-e 2 -- --data-sample=5000", "--data-sample is on the course's slide; here leave it out: the number of batches"),
    ("-e 2 -- --epochs 1", "--epochs is on the course's slide; here leave it out"),
    ("-e 2 -- -deepspeed-config a.json", "-deepspeed-config is on the course's slide; here type the flags --ds-"),
    ("-e 2 -- --hpz 4", "unknown flag --hpz: did you mean --ds-hpz-partition?"),
    ("-e 2 -- --heavy-comm", "unknown flag --heavy-comm: did you mean --ds-heavy-comm?"),
    # nsys
    ("-e 1 --nsys-per rank --profiler torch", "--nsys-per is for nsys, and --profiler torch records instead: drop one"),
    ("-e 2 --python-sampling --no-profile", "--python-sampling is for nsys, and --no-profile records nothing: drop"),
    ("-e 3 --nic-metrics", "--nic-metrics: for nsys only, and at site local --profiler auto means torch: add"),
    ("-e 1 --nsys-per gpu --profiler nsys", "--nsys-per: got 'gpu', takes one of node, rank"),
    ("-e 1 --capture-delay 0.5 --profiler nsys", "--capture-delay: got '0.5', takes a whole number ≥ 1"),
    ("-e 1 --nsys-options full --profiler torch", "--nsys-options is for nsys, and --profiler torch records instead"),
]


@pytest.mark.parametrize(("typed", "said"), REFUSED)
def test_a_wrong_request_gets_one_sentence_for_each_mistake_and_writes_nothing(
    harness: Harness, tmp_path: Path, typed: list[str] | str, said: str | list[str]
) -> None:
    done = harness(*(typed.split() if isinstance(typed, str) else typed))
    sentences = [line for line in done.stderr.splitlines() if not line.startswith("site:")]
    wanted = [said] if isinstance(said, str) else said
    assert (done.returncode, done.stdout, len(sentences)) == (2, "", len(wanted)), done.stderr
    assert [part for part in wanted if not any(part in sentence for sentence in sentences)] == [], sentences
    assert list(tmp_path.iterdir()) == []


def test_the_bootstrap_passes_the_sentence_and_the_exit_status_on() -> None:
    done = subprocess.run(
        ["bash", "slurm.sh", "lss"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=limit_s(120)
    )
    assert (done.returncode, "did you mean ls?" in done.stderr, "Traceback" in done.stderr) == (2, True, False)


def asked(*words: str) -> Experiment:
    pairs = [(w.split("=")[0], w.split("=")[1] if "=" in w else True) for w in words]
    return build_experiment(pairs, [], list(all_options()))


def complaints(*words: str) -> list[str]:
    with pytest.raises(RequestError) as caught:
        asked(*words)
    return str(caught.value).splitlines()


def test_rules_that_a_wrong_value_decides_are_not_judged() -> None:
    found = complaints("-e=1", "--steps=x", "--active-steps=3")
    assert found == ["--steps: got 'x', takes a whole number ≥ 1 and ≤ 10000000"]


@pytest.mark.parametrize("number", ["4_0", " 4", "4 ", "\uff14", "\u0664", "0x4", "nan", "1e400", ""])
@pytest.mark.parametrize("flag", ["--nodes", "--monitor-hz"])
def test_a_number_is_written_in_plain_digits(flag: str, number: str) -> None:
    assert [f"{flag}: got {number!r}" in c.replace("-n/", "") for c in complaints("-e=1", f"{flag}={number}")] == [True]


@pytest.mark.parametrize(
    "word", ["--seed=4294967200", "--steps=10000001", "--seq-length=1" + "0" * 30, "--micro-batch-size=99999999"]
)
def test_a_number_that_no_training_could_take_is_refused_before_the_queue(word: str) -> None:
    (sentence,) = complaints("-e=1", "--no-profile", word)
    assert "; the nearest is " in sentence


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-e=2", "--ds-heavy-comm"], "--ds-heavy-comm needs --mixed-precision"),
        (["-e=2", "--mixed-precision", "--ds-heavy-comm", "--activation-checkpointing"], "exclude each other"),
        (["-e=2", "--ds-stage2", "--ds-hpz-partition=2"], "stage 2 does not shard"),
        (["-e=2", "--ds-stage1", "--ds-hpz-partition=2"], "stage 1 does not shard"),
        (["-e=2", "-n=2", "-g=2", "--ds-hpz-partition=3"], "does not divide the world size 4"),
        (["-e=3", "-g=4", "--tp=3"], "does not divide the world size 4"),
        (["-e=3", "-g=4", "--tp=2", "--micro-batch-size=2", "--global-batch-size=6"], "= 2 × 2 = 4: try 8"),
        (["-e=3", "-g=4", "--tp=4", "--vpp=2"], "--pp is 1"),
        (["-e=1", "--nsys2prv", "--no-profile"], "--no-profile records nothing"),
        (["-e=1", "--fault=a"], "--fault: there is no fault 'a"),
    ],
)
def test_rules_between_flags(words: list[str], sentence: str) -> None:
    assert any(sentence in c for c in complaints(*words)), complaints(*words)


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        (["-e=1", "--profiler=none", "--no-profile"], {"profiler": "none"}),
        (["-e=1", "--mixed-precision", "--mixed-precision"], {"mixed_precision": True}),
        (["-e=2", "--ds-no-overlap", "--ds-stage2"], {"overlap_comm": False, "zero_stage": 2}),
        (["-e=2", "--ds-stage1"], {"zero_stage": 1}),
        (["-e=3", "-n=1", "-g=4", "--tp=1", "--pp=4"], {"pp": 4}),
    ],
)
def test_flags_set_the_fields_that_they_name(words: list[str], fields: dict[str, Any]) -> None:
    found = asked(*words).model_dump()
    assert {name: found[name] for name in fields} == fields


@pytest.mark.parametrize(
    ("site", "word", "bf16"),
    [
        ("leonardo", "--pp=1", True),
        ("leonardo", "--no-mixed-precision", False),
        ("local", "--pp=1", False),  # a CPU without bf16 units is several times slower in bf16
        ("local", "--mixed-precision", True),
    ],
)
def test_megatron_trains_in_bf16_on_gpus(harness: Harness, site: str, word: str, bf16: bool) -> None:
    done = harness("-e", "3", "--site", site, "--dry-run", "--", word, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    assert ("-mixed1-" in done.stdout, "-mixed0-" in done.stdout) == (bf16, not bf16)
    assert ("--mixed-precision" in done.stdout) == bf16


@pytest.mark.parametrize("hz", HZ_RANGE)
def test_the_monitor_takes_what_the_request_takes_and_no_more(hz: float) -> None:
    beyond = hz + (0.001 if hz == max(HZ_RANGE) else -0.001)
    asked("-e=1", f"--monitor-hz={hz}")
    assert f"--monitor-hz: got '{beyond}'" in complaints("-e=1", f"--monitor-hz={beyond}")[0]


def test_flags_stand_before_or_after_the_dashes_and_a_lesson_is_named_in_either_case(harness: Harness) -> None:
    before = harness("-e", "1", "--slow-dataloading", "--dry-run")
    after = harness("-e", "1", "--dry-run", "--", "--slow-dataloading")
    assert before.stdout == after.stdout and "--slow-dataloading" in before.stdout
    one, other = (harness("lesson", name, "--no-run", "--json") for name in ("1A", "1a"))
    assert one.returncode == 0 and one.stdout == other.stdout


def test_a_wrong_harness_site_is_named_and_does_not_keep_help_away(harness: Harness) -> None:
    wrong = "HARNESS_SITE: there is no site 'leonado'"
    assert wrong in harness("-e", "1", HARNESS_SITE="leonado").stderr
    for words, shown in ((["help", "launch"], "Usage: slurm.sh"), (["sites"], "leonardo  ")):
        done = harness(*words, HARNESS_SITE="leonado")
        assert (done.returncode, shown in done.stdout, wrong in done.stderr) == (0, True, True)


def test_the_first_line_says_which_site_and_why(harness: Harness) -> None:
    done = harness("-e", "1", "--dry-run")
    assert done.stderr.splitlines()[0] == "site: local (HARNESS_SITE)"
    detected = harness("-e", "1", "--dry-run", HARNESS_SITE="", SLURM_CLUSTER_NAME="leonardo")
    assert detected.stderr.splitlines()[0] == "site: leonardo (SLURM_CLUSTER_NAME is leonardo)"

"""A wrong request gets one clear sentence per mistake, exit code 2, and leaves nothing behind."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness.common.errors import RequestError
from harness.experiment.exercises import DDP, DeepSpeed, Megatron
from harness.experiment.parse import all_options, build_experiment
from harness.monitor.record import HZ_RANGE
from tests.launch.launch_shared import ROOT, Harness
from tests.waiting import limit_s

LONG = "/" + "x" * 300  # cannot be read, also not by root


def asked(*words: str) -> object:
    pairs = [(w.split("=")[0], w.split("=")[1] if "=" in w else True) for w in words]
    return build_experiment(pairs, [], list(all_options()))


def complaints(*words: str) -> list[str]:
    with pytest.raises(RequestError) as caught:
        asked(*words)
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-e", "5"], "there is no exercise '5'"),
        (["-e", "one"], "there is no exercise 'one'"),
        (["-e", "--5"], "there is no exercise '--5'"),
        (["-e", "²"], "there is no exercise '²'"),
        (["-e", "1", "-e", "2"], "-e/--exercise is given twice, as 1 and as 2: drop one"),
        (["check", "a", "b", "--runs", "2", "--runs=3"], "check: --runs is given twice, as 2 and as 3: drop one"),
        (["export", "csv", "x", "-o", "a", "-o", "b"], "export: -o/--out is given twice, as a and as b: drop one"),
        (["lesson", "9z"], "there is no lesson '9z' (slurm.sh lesson lists all)"),
        (["check", "a"], "check: B is missing (slurm.sh help check)"),
        (["run", "-n", "2"], "run: name your script after --, as in"),
        (["run", "train.py"], "run: name your script after --, as in"),
        (["run", "-e", "1", "--", "--fsdp"], "run: name your script after --, as in"),
        (["run", "last", "-n", "2"], "run: unknown flag -n (slurm.sh help run lists all flags)"),
        (["export", "svg", "x"], "export svg: did you mean csv? (it takes paraver, perfetto, csv, parquet, json)"),
        (["help", "chekc"], "there is no command 'chekc': did you mean check? (slurm.sh help lists all commands)"),
        (["--help", "xyzzy"], "there is no command 'xyzzy' (slurm.sh help lists all commands)"),
        (["help", "lesson", "mystery", "anwser"], "there is no part 'anwser': did you mean answer?"),
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
        (["-e", "3", "--gradient-accumulation-steps", "2"], "follows from --global-batch-size"),
        (["-e", "1", "--activation-checkpointing"], "needs --mixed-precision"),
        (["-e", "1", "--model", "/nowhere/model"], "--model: '/nowhere/model' is neither a model of the harness"),
        (["-e", "1", "--model", "llama-3.2-1"], "did you mean llama-3.2-1b?"),
        (["-e", "1", "--data", "/nowhere.json"], "--data: /nowhere.json does not exist"),
        (["-e", "1", "--site", "leonado"], "did you mean leonardo?"),
        (["-e", "1", "--site", "/nowhere.yaml"], "site file /nowhere.yaml: cannot be read"),
        (["-e", "1", "--time", "soon"], "--time: got 'soon', takes HH:MM:SS"),
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
        (["7"], "there is no command '7' (slurm.sh help lists all commands)"),
        (["status", "nope"], "there are no runs yet"),
        (["-e", "1", "--data", "~nouser/x"], "/~nouser/x does not exist"),
        (["-e", "1", "--data", "/tmp"], "--data: /tmp exists but is not a file"),
        (["-e", "1", "--data", LONG], f"--data: {LONG} cannot be read (File name too long)"),
        (["-e", "1", "--model", "~nouser/x"], "--model: '~nouser/x' is neither a model of the harness"),
        (["-e", "1", "--model", LONG], f"--model: {LONG} cannot be read (File name too long)"),
        (["-e", "1", "--site", "~nouser/x"], "site file ~nouser/x: cannot be read"),
        (["-e", "1", "--site", "x" * 300], "--site: there is no site"),
        (["-e", "3", "--", "--data-path", "/"], "--data-path: / does not exist as PREFIX.bin"),
    ],
)
def test_a_wrong_request_gets_one_sentence(harness: Harness, tmp_path: Path, words: list[str], sentence: str) -> None:
    done = harness(*words)
    assert done.returncode == 2, done
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert len([line for line in done.stderr.splitlines() if not line.startswith("site:")]) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-e", "5", "--site", "local"], "there is no exercise '5'"),
        (["-e", "1", "--site", "leonado"], "did you mean leonardo?"),
        (["lss"], "there is no command 'lss': did you mean ls?"),
    ],
)
def test_the_bootstrap_passes_the_sentence_and_the_exit_status_on(words: list[str], sentence: str) -> None:
    done = subprocess.run(
        ["bash", "slurm.sh", *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=limit_s(120)
    )
    assert done.returncode == 2, done
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "parts"),
    [
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
    ],
)
def test_no_mistake_hides_another(harness: Harness, words: list[str], parts: list[str]) -> None:
    done = harness(*words)
    assert done.returncode == 2
    assert all(part in done.stderr for part in parts), done.stderr


def test_an_unknown_exercise_gets_the_list_of_four_and_none_is_called_the_nearest(harness: Harness) -> None:
    said = harness("-e", "5").stderr
    assert "0 communication tests, 1 DDP, 2 DeepSpeed ZeRO, 3 Megatron" in said and "nearest" not in said


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (["\u2013mixed-precision"], "--mixed-precision"),
        (["-e", "1", "--", "\u2014mixed\u2013precision"], "--mixed-precision"),
        (["\u2014e", "1", "-n", "2"], "-e"),
        (["\u2212e1"], "-e1"),
        (["-e", "1", "\u2013\u2013steps=9"], "--steps=9"),
        (["-e", "1", "\u2013", "--mixed-precision"], "--"),
        (["lesson", "1a", "-\u2013hint"], "--hint"),
    ],
)
def test_a_dash_of_a_slide_gets_the_flag_with_hyphens(
    harness: Harness, tmp_path: Path, words: list[str], flag: str
) -> None:
    done = harness(*words)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.endswith(f": a flag begins with a hyphen (-), and this is another dash: type {flag}\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (["reprot", "last"], "did you mean report? (slurm.sh help lists all commands)"),
        (["-e", "1", "--mixed-precison"], "did you mean --mixed-precision? (slurm.sh --help lists all flags)"),
        (["-e", "1", "--site", "leonado"], "did you mean leonardo? (slurm.sh sites lists all;"),
        (["-e", "1", "--model", "tiny-lama"], "did you mean tiny-llama? (the last lines of slurm.sh --help"),
        (["-e", "1", "--fault", "pauze,ms=5"], "did you mean pause? (slurm.sh help faults lists all)"),
        (["ls", "--limt", "3"], "ls: unknown flag --limt: did you mean --limit? (slurm.sh help ls lists all flags)"),
        (
            ["lesson", "mystery", "reveal", ".", "--jsn"],
            "unknown flag --jsn: did you mean --json? (slurm.sh help lesson mystery reveal",
        ),
        (["sweep", "gas", "--repeat", "3"], "did you mean --repeats? (slurm.sh help sweep lists all flags)"),
        (["lesson", "1aa"], "did you mean 1a? (slurm.sh lesson lists all)"),
        (["sweep", "gass"], "did you mean gas? (slurm.sh sweep lists all"),
        (["lesson", "mystery", "-e", "1", "--levle", "2"], "unknown flag --levle: did you mean --level? ("),
        (["ls", "last"], "ls: unexpected word 'last' (slurm.sh help ls)"),
        (["version"], "did you mean --version? (slurm.sh help lists all commands)"),
    ],
)
def test_a_typo_gets_the_nearest_word_and_where_the_list_is_not_the_list(
    harness: Harness, words: list[str], where: str
) -> None:
    (line,) = [line for line in harness(*words).stderr.splitlines() if not line.startswith("site:")]
    assert where in line
    assert "there are " not in line and line.count(",") <= 2


def test_a_lesson_is_named_in_either_case(harness: Harness) -> None:
    one, other = (harness("lesson", name, "--no-run", "--json") for name in ("1A", "1a"))
    assert one.returncode == 0 and one.stdout == other.stdout


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
    assert len(complaints("-e=1", "--no-profile", word)) == 1
    assert "; the nearest is " in complaints("-e=1", "--no-profile", word)[0]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--no-mixed-precision", "--mixed-precision"], ["--mixed-precision", "--no-mixed-precision"]),
        (["--mixed-precision", "--no-mixed-precision"], ["--mixed-precision", "--no-mixed-precision"]),
        (["--no-profile", "--profiler", "torch"], ["--profiler torch", "--no-profile"]),
        (["--profiler", "torch", "--no-profile"], ["--profiler torch", "--no-profile"]),
    ],
)
def test_contradicting_switches_are_refused_in_any_order(harness: Harness, words: list[str], named: list[str]) -> None:
    done = harness("-e", "1", *words, "--dry-run")
    assert done.returncode == 2
    assert "exclude each other: drop one" in done.stderr
    assert all(name in done.stderr for name in named)


def test_the_same_switch_given_twice_is_no_contradiction() -> None:
    ddp = asked("-e=1", "--profiler=none", "--no-profile", "--mixed-precision", "--mixed-precision")
    assert isinstance(ddp, DDP)
    assert (ddp.profiler, ddp.mixed_precision) == ("none", True)


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
    ],
)
def test_rules_between_flags(words: list[str], sentence: str) -> None:
    assert any(sentence in c for c in complaints(*words)), complaints(*words)


def test_pipeline_stages_are_not_limited_to_the_number_of_nodes() -> None:
    experiment = asked("-e=3", "-n=1", "-g=4", "--tp=1", "--pp=4")
    assert isinstance(experiment, Megatron)
    assert experiment.pp == 4


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


def test_switches_set_the_fields_that_they_name() -> None:
    zero = asked("-e=2", "--ds-no-overlap", "--ds-stage2")
    assert isinstance(zero, DeepSpeed)
    assert (zero.overlap_comm, zero.zero_stage) == (False, 2)
    least = asked("-e=2", "--ds-stage1")
    assert isinstance(least, DeepSpeed) and least.zero_stage == 1
    ddp = asked("-e=1", "--no-profile")
    assert isinstance(ddp, DDP)
    assert ddp.profiler == "none"


def test_flags_stand_before_or_after_the_dashes(harness: Harness) -> None:
    before = harness("-e", "1", "--slow-dataloading", "--dry-run")
    after = harness("-e", "1", "--dry-run", "--", "--slow-dataloading")
    assert before.returncode == after.returncode == 0
    assert before.stdout == after.stdout
    assert "--slow-dataloading" in before.stdout


def test_a_wrong_harness_site_is_named_and_does_not_keep_help_away(harness: Harness) -> None:
    wrong = "HARNESS_SITE: there is no site 'leonado'"
    assert wrong in harness("-e", "1", HARNESS_SITE="leonado").stderr
    for words, shown in ((["--help"], "Usage: slurm.sh"), (["sites"], "leonardo  ")):
        done = harness(*words, HARNESS_SITE="leonado")
        assert done.returncode == 0
        assert shown in done.stdout
        assert wrong in done.stderr


def test_the_first_line_says_which_site_and_why(harness: Harness) -> None:
    done = harness("-e", "1", "--dry-run")
    assert done.stderr.splitlines()[0] == "site: local (HARNESS_SITE)"
    detected = harness("-e", "1", "--dry-run", HARNESS_SITE="", SLURM_CLUSTER_NAME="leonardo")
    assert detected.stderr.splitlines()[0] == "site: leonardo (SLURM_CLUSTER_NAME is leonardo)"

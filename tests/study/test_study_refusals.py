"""A wrong request is a sentence and exit status 2, and nothing is written: one table for all commands of studies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.experiment.exercises import DDP
from tests.study.check_shared import LAUNCH, git, repository, write_metrics
from tests.study.kit import Say, a_mystery, completed
from tests.study.reference_runs import alone, recorded, two


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository as the current folder, and beside it runs: two that can be compared, a mystery, a reference."""
    folder = tmp_path_factory.mktemp("scene")
    repository(folder / "project", 100, 112)
    with pytest.MonkeyPatch.context() as patch:
        root = alone(folder / "runs", patch)
        root.mkdir()
        recorded(root, "ref")
    two(folder / "project")
    for name, asked in {"local-91": DDP(), "local-92": DDP()}.items():
        write_metrics(completed(root, name, asked).path, 100)
    a_mystery(root, "local-93", ("data-stall,ms=60",))
    return folder


@pytest.fixture(autouse=True)
def _in_scene(scene: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone(scene / "runs", monkeypatch)
    monkeypatch.setenv("HARNESS_SITE", "local")
    monkeypatch.chdir(scene / "project")


REV = "--rev main main"
# Of each command: the words after it, and what it says; {} is the repository.
CHECK: list[tuple[list[str], str]] = [
    (["local-91", "local-91"], "is given twice"),
    (["local-91,", "local-92"], "has a comma without a run"),
    (["local-91", "local-99"], "there is no run 'local-99'"),
    (["local-91", "local-92", "--metric", "step_n"], "did you mean step_ns?"),
    (["local-91", "local-92", "--metric", "tokens_per_step"], "a larger value is neither better nor worse"),
    (["local-91", "local-92", "--fail-above", "5"], "--fail-above takes a percentage from 0.1% to 100%, as 5%, not '5"),
    (["local-91", "local-92", "--fail-above", "0%"], "not '0%'"),
    (["local-91", "local-92", "--fail-above", "101%"], "not '101%'"),
    (["local-91", "local-92", "--runs", "8"], "--runs is for launches in quotes"),
    (["bash /my/kit/slurm.sh -e 1", "local-91"], "check: one of A and B is runs, the other a launch"),
    (["local-91"], "check: B is missing (bash slurm.sh help check)"),
    ([], "A is missing (bash slurm.sh help check)"),
    (["-e", "1", "-e", "1"], "put each launch into quotes"),
    (["-e 1", "local-91"], "one of A and B is runs, the other a launch"),
    (["-e 1 --nods 2", "-e 1"], "A: unknown flag --nods: did you mean --nodes?"),
    (["-e 1", "-e 1 --wait"], "B: --wait does not go with a launch inside of a check: drop it"),
    (["-e 1 -g 1", "-e 1 -g 2"], "A has ranks 1 and B 2: make them the same"),
    (["-e 1", "-e 1 --no-profile"], "A has profiler torch and B none"),
    (["-e 0", "-e 0"], "only trainings have steps"),
    (["-e 1", "-e 1", "--resume", "check-x"], "--resume check-x: there is no run of such a check"),
    (["-e 1", "-e 1", "--runs", "1"], "--runs"),
    (["--rev", "mian", "main", LAUNCH], "--rev 'mian': there is no such revision in {}: did you mean main?"),
    (["--rev=--all", "main", LAUNCH], "--rev '--all': there is no such revision"),
    (["--rev", "-x y", "main", LAUNCH], "--rev 'slurm.sh -x y': there is no such revision"),
    (["--rev", "", "main", LAUNCH], "--rev '': there is no such revision"),
    (["--rev", "main", "main..main~1", LAUNCH], "--rev 'main..main~1': there is no such revision"),
    ([*REV.split()], "--rev takes two revisions, then one launch in quotes"),
    ([*REV.split(), LAUNCH, LAUNCH], "--rev takes two revisions, then one launch in quotes"),
    ([*REV.split(), "local-91"], "--rev takes two revisions, then one launch in quotes"),
    ([*REV.split(), "-e 1"], "--rev takes a training of your own"),
    ([*REV.split(), "run -- 'x"], "is no command line"),
    ([*REV.split(), "run -g 1 -- '{}/train.py'"], "is a file of your working tree, the same for each revision: give i"),
    (["--set", "NCCL_ALGO", LAUNCH], "--set takes NAME=VALUE, as NCCL_ALGO=Ring, not 'NCCL_ALGO'"),
    (["--set", "1A=2", LAUNCH], "--set takes NAME=VALUE, as NCCL_ALGO=Ring, not '1A=2'"),
    (["--unset", "A=2", LAUNCH], "--unset takes the name of a variable, as NCCL_ALGO, not 'A=2'"),
    (["--set", "A=1", "--unset", "A", LAUNCH], "--unset A: A is given twice"),
    (["--set", "JOB_ID=1", LAUNCH], "JOB_ID is the script's own: leave it out"),
    (["--set", "HF_TOKEN=hf_abcdefghij", LAUNCH], "HF_TOKEN looks like a secret"),
    (
        ["--unset", "A_NAME_THAT_NO_SHELL_HAS", LAUNCH],
        "--unset: A and B would be the same, so there is nothing to comp",
    ),
    (["--set", "A=1"], "--set takes NAME=VALUE, then one launch in quotes, as in"),
    (["--set", "A=1", LAUNCH, LAUNCH], "--set takes NAME=VALUE, then one launch in quotes, as in"),
    (["--python", "no/such", "{}", LAUNCH], "--python no/such: does not exist"),
    (["--python", "{}", "{}", LAUNCH], "--python {}: is a folder"),
    (["--python", "/usr/bin/python3", "/usr/bin/python3", LAUNCH], "--python: A and B would be the same"),
    (["--python", "a", "b", "-e 1"], "--python takes a script or a module of your own, as in 'run -g 2 -- train.py'"),
    (["--python", "a", "b", "--requirements", "c", "d", LAUNCH], "--python and --requirements both name the Python"),
    (["--python", "a", "b", "--image", "c", "d", LAUNCH], "a training runs in an image or with a Python"),
    (["--image", "a.sif", "b.sif", LAUNCH], "--image a.sif: there is no such file"),
    (["--nodes", "n1", "n2", LAUNCH], "--nodes: site local is this machine alone: name one with Slurm with --site"),
    (["--nodes", "n1", "n2,n3", "-e 1 --site leonardo -n 1"], "--nodes n2,n3: the launch takes 1 node (-n)"),
    (["--modules", "", "cuda", "-e 1"], "--modules: one of the two is empty"),
    (["--modules", "a;b", "cuda", "-e 1"], "--modules a;b: 'a;b' is no name: it takes one word of letters"),
    (["--set", "A=1", "--which", LAUNCH], "--which: only A=1 differs, so there is nothing to halve: leave it out"),
    (["--set", "A=1", "--set", "B=1", "--which", LAUNCH], "add --yes to start at most 24 runs: there is no terminal"),
    (["--which", *REV.split(), LAUNCH], "--which halves packages, variables and modules; commits are for git bisect"),
    (["--python", "a", LAUNCH], "check --python OLD NEW 'run -g 2 -- train.py'"),
    (["--set", "A=1", "run", "-g", "2", "--", "train.py"], "check: run: put each launch into quotes"),
    (["--which", LAUNCH], "--which halves what A and B have of their own: add --set, --python, --requirements"),
    (["--which", LAUNCH, LAUNCH], "--which halves what A and B have of their own: add --set, --python, --requirements"),
    ([*REV.split(), LAUNCH, "--markdown", "no/x.md"], "--markdown no/x.md: there is no folder no"),
    ([*REV.split(), LAUNCH, "--markdown", "."], "--markdown .: is a folder"),
]
MYSTERY: list[tuple[list[str], str]] = [
    (["anwser", "last"], "there is no part 'anwser': did you mean answer?"),
    (["last"], "there is no part 'last' (bash slurm.sh help lesson mystery lists all); to start a mystery, begin with"),
    (["-e", "1", "--level", "3"], "--level: got '3', takes one of 1, 2"),
    (["-e", "1", "--seed", "x"], "--seed: got 'x', takes a whole number ≥ 0"),
    (["-e", "1", "--fault", "pause,ms=5"], "--fault: a mystery draws its own faults: drop it"),
    (["-e", "1", "--no-profile"], "--no-profile: the cause is found in a trace"),
    (["-e", "1", "--profiler", "none"], "--no-profile: the cause is found in a trace"),
    (["-e", "1", "--script", "train_todo.py"], "--script: a mystery runs the exercise's own script"),
    (["-e", "0"], "-e 0: a mystery is a training: use -e 1, -e 2 or -e 3"),
    (["--level", "2"], "-e/--exercise is missing"),
    (["-e", "3", "--engine", "megatron-lm"], "--engine megatron-lm: a mystery needs the harness's own"),
    (["answer", "local-93", "--cause", "data-stal"], "--cause: there is no cause 'data-stal': did you mean data-stall"),
    (["answer", "local-93", "--cause", "xyz"], "there is no cause 'xyz' (bash slurm.sh help faults lists all)"),
    (["answer", "local-93", "--cause", "gc", "--rank", "0,5"], "no rank 5, the ranks are 0 to 1: the nearest is 1"),
    (["answer", "local-93", "--cause", "gc", "--rank", "x"], "--rank takes all, or ranks as in 0,3, not 'x'"),
    (["answer", "local-91", "--cause", "gc"], "local-91 is not a mystery: start one with bash slurm.sh lesson mystery"),
]
LESSON: list[tuple[list[str], str]] = [
    (["1z"], "there is no lesson '1z'"),
    (["1a", "--again", "--no-run"], "--again starts both runs, and --no-run starts none: drop one"),
    (["1c", "--answer"], "lesson 1c needs a run of: bash slurm.sh -e 1"),
    (["1b", "--site", "leonardo", "--answer", "--no-run"], "(or bash slurm.sh lesson 1b --site leonardo --run)"),
    (["2a", "--reference", "ref"], "--reference ref: has no two runs for lesson 2a; it answers 1a"),
    (["1a", "--reference", "rfe"], "no reference 'rfe': did you mean ref? (bash slurm.sh reference show lists all)"),
    (["--reference", "ref"], "--reference ref: say which lesson"),
    (["1a", "--reference", "ref", "--again"], "--reference answers from stored runs: drop --run, --again and --hint"),
]
SWEEP: list[tuple[list[str], str]] = [
    (["gass"], "there is no sweep 'gass': did you mean gas? (bash slurm.sh sweep lists all"),
    (["/no/such.yaml"], "sweep file /no/such.yaml: cannot be read"),
    (["gas", "--repeats", "0"], "--repeats: got '0', takes a whole number ≥ 1 and ≤ 1000"),
    (["gas", "--name", "../x"], "--name: got '../x'"),
    (["gas", "--follow"], "unknown flag --follow"),
    (["gas", "--", "--tp", "2"], "--tp belongs to exercise 3"),
    (["gas", "--gradient-accumulation-steps", "2"], "gradient_accumulation_steps varies in this sweep"),
    (["gas", "-e", "2"], "-e: this sweep is of exercise 1: drop it"),
]
RECORD: list[tuple[list[str], str]] = [
    (["--list", "workshop", "--site", "local"], "its runs are for GPUs, and this site has CPUs: use --list mini"),
    (["--name", "a b", "--site", "local"], "--name a b"),
    (["--list", "two.yaml", "--name", "ref"], "there is a reference of this name in {}/runs/references/ref, which is "),
    (["--list", "workshp"], "there is no list 'workshp'; there are miniatures, workshop, or give a file: did you mean"),
    (["--repeats", "0"], "--repeats: got '0', takes a whole number ≥ 1 and ≤ 1000"),
    (["--micro-batch-size", "4"], "--micro-batch-size: the list has the experiments"),
    (["--site", "leonardo", "-a", "mine", "--name", "x"], "add --yes to start "),
]
OTHERS: list[tuple[list[str], str]] = [
    (["reference", "check", "ref"], "ref is a reference: give the older one with --against"),
    (["reference", "check", "ref", "--against", "ref"], "--against ref: is the checked reference itself"),
    (["reference", "check", "local-93"], "local-93 is a mystery: bash slurm.sh lesson mystery reveal local-93 ends it"),
    (["reference", "rekord"], "there is no command 'reference rekord': did you mean record?"),
    (["whatif", "local-99"], "there is no run 'local-99'"),
    (["-e", "2", "--plan", "--nodse", "2"], "did you mean --nodes"),
    (["-e", "2", "--plan", "--dry-run"], "--plan and --dry-run exclude each other"),
]


def files(folder: Path) -> list[Path]:
    """All files but the numbers of a run, which every command may keep."""
    return sorted(path for path in folder.rglob("*") if path.name != "summary.json")


def table() -> Iterator[tuple[list[str], str]]:
    """Every line, as it is typed."""
    of = {"check": CHECK, "lesson mystery": MYSTERY, "lesson": LESSON, "sweep": SWEEP, "reference record": RECORD}
    for command, rows in of.items():
        yield from (([*command.split(), *words], sentence) for words, sentence in rows)
    yield from OTHERS


@pytest.mark.parametrize(("words", "sentence"), list(table()))
def test_a_wrong_request_is_a_sentence_and_writes_nothing(
    scene: Path, say: Say, words: list[str], sentence: str
) -> None:
    before = files(scene)
    said = say(*(word.replace("{}", str(scene / "project")) for word in words))
    assert (said.code, said.out) == (2, ""), said.err
    assert sentence.replace("{}/runs", f"{scene}/runs").replace("{}", str(scene / "project")) in said.err
    assert files(scene) == before


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("none", "git finds no working tree here"),
        ("empty", "the repository has no commit yet"),
        ("bare.git", "is a bare repository, without files: type this in a clone of it"),
    ],
)
def test_revisions_need_a_repository_with_files_and_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Say, place: str, sentence: str
) -> None:
    (tmp_path / place).mkdir()
    if place != "none":
        git(tmp_path / place, "init", "--quiet", *(["--bare"] if place == "bare.git" else []))
    monkeypatch.chdir(tmp_path / place)
    said = say("check", *REV.split(), LAUNCH)
    assert said.code == 2 and sentence in said.err

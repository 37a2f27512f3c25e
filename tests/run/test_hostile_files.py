"""No file of a run, however wrong, ends a command with a traceback, makes it wait, or takes the machine's memory."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from harness.cli.main import main
from harness.common.faults.mystery import HIDDEN_FILE
from tests.run.hostile_files import KINDS, MONITOR, NOT_A_FILE, WRONG_BYTES, WRONG_JSON, whole_run
from tests.waiting import limit_s

ALONE, OTHER, TESTS = (f"{{{name}}}" for name in ("run", "other", "tests"))  # the runs, as the commands name them
REPORT, PERFETTO = f"report {ALONE} --json --no-html", f"export perfetto {ALONE}"
STATUS, LS, LOGS, CANCEL = f"status {ALONE}", "ls --json", f"logs {ALONE}", f"cancel {ALONE}"
RERUN, COMPARE, WHATIF = f"run {ALONE} --dry-run", f"compare {OTHER} {ALONE}", f"whatif {ALONE}"
CHECK, LESSON, PLAN = f"check {OTHER} {ALONE}", "lesson 1a --no-run", "-e 1 --plan --json"
TESTED = f"report {TESTS} --no-html"
UNREADABLE = {*NOT_A_FILE, "a terabyte"}  # what is no file of this kind, whatever the kind


class File(NamedTuple):
    """A file of a run. read_by: commands; names: those of them that name the file where it is UNREADABLE."""

    path: str
    read_by: tuple[str, ...]
    names: tuple[str, ...] = ()
    run: str = "run"
    is_json: bool = True

    @property
    def kinds(self) -> list[str]:
        return [kind for kind in KINDS if self.is_json or kind not in WRONG_JSON]


FILES = [
    File("run.json", (STATUS, LS, LOGS, CANCEL, RERUN, REPORT, COMPARE, PERFETTO), names=(STATUS, LOGS, CANCEL, RERUN)),
    File("status.json", (STATUS, LS, CANCEL, LESSON)),
    File("node-status/0.json", (STATUS,)),
    File("metrics/rank0.jsonl", (REPORT, PERFETTO), names=(REPORT,)),
    File(f"{MONITOR}/meta.json", (REPORT, PERFETTO), names=(PERFETTO,)),
    File(f"{MONITOR}/samples.csv", (REPORT, PERFETTO), is_json=False),
    File("summary.json", (LS, COMPARE, WHATIF, CHECK, PLAN)),
    File("plan.json", (REPORT,)),
    File("memory/rank0.json", (REPORT,), names=(REPORT,)),
    File("environment/node0-0.json", (REPORT,)),
    File(HIDDEN_FILE, (REPORT,), is_json=False),
    File("mystery-revealed.json", (REPORT,)),
    File("torch/rank0.json.gz", (REPORT, PERFETTO), names=(REPORT, PERFETTO), is_json=False),
    File("comm/collectives.json", (TESTED, PLAN), names=(TESTED,), run="tests"),
    File("comm/verdict.json", (TESTED,), names=(TESTED,), run="tests"),
    File("log.out", (LOGS,), is_json=False),
    File("log.err", (LOGS,), is_json=False),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two trainings and a run of exercise 0, to be copied."""
    root = tmp_path_factory.mktemp("whole")
    for number, tests in ((1, False), (2, False), (3, True)):
        whole_run(root, f"local-{number}", tests=tests)
    return root


@pytest.fixture
def root(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the runs, as the folder of all runs."""
    copied = tmp_path / "runs"
    shutil.copytree(runs, copied, copy_function=os.link)
    monkeypatch.setenv("HARNESS_RUNS", str(copied))
    monkeypatch.setenv("HARNESS_SITE", "local")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.cli.watch.follow.MOST_BYTES", 1 << 16)
    return copied


def _answer(command: str, folders: dict[str, Path], output: pytest.CaptureFixture[bytes]) -> tuple[int, str]:
    """The exit code and all that was said of a command, which neither waits for long nor takes much memory."""
    with _bounded():
        code = main([word.format_map(folders) for word in command.split()])
    return code, b"".join(output.readouterr()).decode("utf-8", "replace")  # a log's own bytes go to a pipe


@contextmanager
def _bounded() -> Iterator[None]:
    """A gigabyte more than now, and a minute of an idle machine: no command takes a tenth of either."""

    def too_long(*_: Any) -> None:
        raise TimeoutError

    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    alarm = signal.signal(signal.SIGALRM, too_long)
    resource.setrlimit(resource.RLIMIT_AS, (now + (1 << 30), before[1]))
    signal.alarm(round(limit_s(60)))
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, alarm)
        resource.setrlimit(resource.RLIMIT_AS, before)


PAIRS = [(file, kind) for file in FILES for kind in file.kinds]


# Every third by default: each file is among them, and each kind with several files.
@pytest.mark.parametrize(
    ("file", "kind"),
    [
        pytest.param(file, kind, id=f"{file.path}-{kind}", marks=pytest.mark.long if number % 3 else ())
        for number, (file, kind) in enumerate(PAIRS)
    ],
)
def test_a_wrong_file_of_a_run_is_a_sentence_and_the_rest_is_answered(
    file: File, kind: str, root: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    folders = {
        name: next(root.glob(f"*/profiler/*-local-{n}-n1")) for n, name in enumerate(("run", "other", "tests"), 1)
    }
    is_log = file.path.startswith("log.")
    spoiled = (root / "exercise_1_DDP/logs/local-1" if is_log else folders[file.run]) / file.path
    KINDS[kind](spoiled)
    for command in file.read_by:
        code, said = _answer(command, folders, capsysbinary)
        assert code in (0, 1, 2, 3), (command, said)
        assert "Traceback" not in said and "Errno" not in said, (command, said)
        if command in file.names and kind in UNREADABLE:
            assert spoiled.name in said, (command, said)


def test_of_a_rank_whose_metrics_are_a_pipe_the_report_says_so_and_has_the_other(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    KINDS["a pipe"](next(root.glob("*/profiler/*-local-1-n1")) / "metrics/rank0.jsonl")
    assert main(["report", "local-1", "--json", "--no-html"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [rank["rank"] for rank in told["training"]] == [0]  # rank 1's file was copied from rank 0's
    found = {(each["what"], each["evidence"]) for each in told["quality"]["problems"]}
    assert ("training metrics cannot be read", "rank0.jsonl: is a pipe, not a file") in found


@pytest.mark.parametrize("kind", [*NOT_A_FILE, *WRONG_BYTES, *WRONG_JSON])
def test_a_wrong_file_that_a_flag_names_is_refused_with_its_name(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("HARNESS_SITE", "local")
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    for name, flag in (("site.yaml", "--site"), ("model.yaml", "--model"), ("config.json", "--model")):
        file = (checkpoint if name == "config.json" else tmp_path) / name
        file.write_text(json.dumps({"name": "x", "description": "y", "cpus_per_node": 4, "env": {"A": "b"}}, indent=1))
        KINDS[kind](file)
        given = checkpoint if name == "config.json" else file
        with _bounded():
            code = main(["-e", "1", flag, str(given), "--dry-run"])
        said = capsys.readouterr().err
        assert code == 2 and str(given) in said, (name, said)
        assert len(said.splitlines()) < 6, said


BOMBS = {
    "ten lists of ten lists": "a: &a [x]\n" + "".join(
        f"b{n}: &b{n} [{', '.join([f'*b{n - 1}' if n else '*a'] * 10)}]\n" for n in range(9)
    ),
    "merged ten times": "a: &a {x: 1}\n" + "".join(
        f"b{n}: &b{n} {{<<: [{', '.join([f'*b{n - 1}' if n else '*a'] * 10)}]}}\n" for n in range(9)
    ),
    "a list inside of itself": "a: &a [*a]\n",
    "100,000 lists": "[" * 100_000,
    "20,000 dashes": "- " * 20_000 + "x",
    "a number of 5,000 hexadecimal digits": f"max_nodes: 0x{'f' * 5000}",
    "a date that is none": "time: 2024-13-45",
    "a truth that is none": "exclusive: !!bool x",
}  # fmt: skip


@pytest.mark.parametrize("bomb", BOMBS)
def test_yaml_that_grows_or_ends_the_process_is_a_sentence(
    bomb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path))
    file = tmp_path / "site.yaml"
    file.write_text(BOMBS[bomb])
    with _bounded():
        code = main(["-e", "1", "--site", str(file), "--dry-run"])
    said = capsys.readouterr().err
    assert code == 2
    assert said.startswith(f"slurm.sh: site file {file}: is not valid YAML in line ") or "month must be" in said, said

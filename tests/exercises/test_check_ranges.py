"""The student's check names what is missing, too rare or misplaced, in both kinds of traces."""

from __future__ import annotations

import gzip
import re
import sqlite3
import subprocess
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest

from exercises.exercise_1_DDP import check_ranges
from exercises.exercise_1_DDP.check_ranges import main
from harness.cli.main import main as harness
from harness.run import Run, Stage
from harness.run.record import RunRecord, State, Status
from tests.synthetic import kineto as synthetic
from tests.synthetic.nsys import Nsys

Named = tuple[str, int, int]  # name, start, end


def whole_step(number: int) -> list[Named]:
    """All ranges of one step."""
    begin = 1000 * number
    parts = ["forward", "backward", "optimizer_step", "scheduler_step", "zero_grad"]
    inner = [(name, begin + 100 * (i + 2), begin + 100 * (i + 3)) for i, name in enumerate(parts)]
    load = (f"DataLoad batch {number}", begin, begin + 200)
    return [(f"batch_{number}", begin, begin + 900), load, *inner]


def kineto(path: Path, ranges: list[Named]) -> Path:
    """A torch.profiler trace with these ranges."""
    events = [synthetic.said(name, 1000 * start, 1000 * (end - start)) for name, start, end in ranges]
    path.write_bytes(gzip.compress(synthetic.kineto_text(events)))
    return path


def nsys(path: Path, ranges: list[Named]) -> Path:
    """An nsys export with these ranges; every second name is in the string table, as nsys does for registered ones."""
    made = Nsys()
    for row, (name, start, end) in enumerate(ranges):
        text, registered = (name, None) if row % 2 else (None, name)
        made.range(text, start, end - start, registered=registered)
    return made.saved(path)


STEPS = whole_step(16) + whole_step(17)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness that the check asks runs in this process: its start takes most of the time of a case."""

    def run(argv: Sequence[str], **_: object) -> subprocess.CompletedProcess[str]:
        out, err = StringIO(), StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = harness(list(argv[len(check_ranges.HARNESS) :]))
        return subprocess.CompletedProcess(argv, code, out.getvalue(), err.getvalue())

    monkeypatch.setattr(check_ranges, "subprocess", SimpleNamespace(run=run))


def test_a_whole_trace_passes(tmp_path: Path) -> None:
    kineto(tmp_path / "rank0.json.gz", STEPS)
    nsys(tmp_path / "profile_node0.sqlite", STEPS)
    assert main([str(tmp_path)]) == 0


def without(start: str, step: int | None = None) -> list[Named]:
    """Both steps without the ranges of this beginning, in both steps or in one."""
    left_out = [r for r in STEPS if r[0].startswith(start) and step in (None, r[1] // 1000)]
    return [r for r in STEPS if r not in left_out]


# What the recording cut: the first step's beginning and the last step's end, which lose their step ranges.
CUT = [
    *(r for r in whole_step(15) if r[0] in {"backward", "optimizer_step", "scheduler_step", "zero_grad"}),
    *STEPS,
    *(r for r in whole_step(18) if r[0] in {"DataLoad batch 18", "forward"}),
]
MOVED = [(n, s - 250, e - 250) if n.startswith("DataLoad") else (n, s, e) for n, s, e in STEPS]
LABELS = ("batch_", "DataLoad", "forward", "backward", "optimizer", "scheduler", "zero")

# Ranges, and what is said of them; nothing: they are right.
CHECKED: dict[str, tuple[list[Named], str]] = {
    **{f"no {label}": (without(label), f"MISSING {label}…: not in the trace") for label in LABELS},
    "in one step": (without("forward", 17), "MISSING forward: 1 times in 2 steps"),
    "outside": (MOVED, "MISSING DataLoad batch <i>: 2 of 2 lie outside every batch_<i>"),
    "cut by the recording": (CUT, ""),
}


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("write", [kineto, nsys])
@pytest.mark.parametrize("case", CHECKED)
def test_a_range_that_is_missing_rare_or_outside_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], write: Callable[..., Path], case: str
) -> None:
    ranges, said = CHECKED[case]
    path = write(tmp_path / ("t.json.gz" if write is kineto else "t.sqlite"), ranges)
    assert main([str(path)]) == (1 if said else 0)
    pattern = re.escape(said).replace("…", ".*")
    assert any(re.search(pattern, line) for line in capsys.readouterr().out.splitlines())


@pytest.mark.usefixtures("in_process")
def test_what_the_training_said_of_the_scripts_calls_is_wrong_beside_a_whole_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kineto(tmp_path / "rank0.json.gz", STEPS)
    (tmp_path / "metrics").mkdir()
    for rank in (0, 1):
        said = '{"event": "observed", "rank": 0, "notes": ["the script never called Stop"]}'
        (tmp_path / f"metrics/rank{rank}.jsonl").write_text(f'{{"event": "start"}}\n{said}\n{said[:40]}')
    assert main([str(tmp_path)]) == 1
    assert [line for line in capsys.readouterr().out.splitlines() if " ok " not in line] == [
        "calls: WRONG   the script never called Stop"
    ]


def a_run(root: Path, state: State, missing: list[str], profiler: str = "torch") -> Path:
    """The folder of a run that the harness knows, `local-1`."""
    record = {
        "job_id": "local-1", "backend": "slurm", "experiment": {"exercise": 1, "profiler": profiler},
        "site": {"name": "x", "description": "x"}, "job": {}, "command": [], "git": {}, "versions": {},
        "user": "x", "submit_host": "x", "created_ns": 1,
    }  # fmt: skip
    status = Status(state=state, missing=missing)
    made = RunRecord.model_validate(record).model_copy(update={"status": status})
    with Stage(root / "exercise_1_DDP") as stage:
        Run(stage.path).write_record(made)
        run = stage.publish("run-local-1", "local-1")
    run.write_status(status)
    return run.path


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the harness looks for its runs."""
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", ["last", "local-1", "run-local-1"])
def test_a_run_is_found_by_what_the_harness_calls_it(runs: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    folder = a_run(runs, "completed", [])
    (folder / "torch").mkdir()
    kineto(folder / "torch" / "rank0.json.gz", STEPS)
    assert main([name]) == 0
    assert f"{name}: ok      forward: 2 times" in capsys.readouterr().out


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("state", ["completed", None])
def test_a_run_without_a_trace_is_one_sentence(
    runs: Path, capsys: pytest.CaptureFixture[str], state: State | None
) -> None:
    if state is not None:
        a_run(runs, state, ["torch/rank0.json.gz"])
    assert main(["last"]) == 2
    (line,) = capsys.readouterr().out.splitlines()
    said = "has no trace: torch.cuda.cudart().cudaProfilerStart() starts the recording (GAP 1)"
    assert line.startswith("last: ") and (said if state else "there are no runs yet") in line


def test_the_check_says_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert capsys.readouterr().out == "say which run to check, for example: check_ranges.py last\n"


def test_an_export_without_any_range_misses_all_seven(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """nsys creates the table of ranges with the first range."""
    path = tmp_path / "profile_node0.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
    connection.close()
    assert main([str(path)]) == 1
    assert capsys.readouterr().out.count("not in the trace") == 7


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rank0.json.gz", gzip.compress(b'{"traceEvents": []}', mtime=0)[:-9]),
        ("rank0.json.gz", b"not gzip"),
        ("run.json", b"[1, 2]"),
        ("run.json", b'{"job_id": "1"}'),
        ("train.py", b"import torch"),
        ("picture.png", b"\x89PNG\xff"),
        ("profile_node0.sqlite", b"not a database, but a text of some length"),
    ],
)
def test_a_file_that_is_no_trace_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert main([str(path)]) == 2
    assert capsys.readouterr().out.startswith(f"{path}: ")

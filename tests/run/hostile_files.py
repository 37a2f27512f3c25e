"""Files that are not what they should be, by what is wrong with them; and a whole run to put them into."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from harness.analysis.summary import RankTraining, Summary
from harness.common.faults.mystery import HIDDEN_FILE, hidden_text
from harness.experiment.comm_tests import CommTests
from harness.experiment.exercises import DDP, AnyExperiment
from harness.run import Run
from harness.run.mystery import MysteryAnswer, MysterySolution
from harness.run.record import NodeStatus, Status
from tests.analysis.memory_files import memory_snapshot
from tests.launch.launch_shared import a_run
from tests.study.check_shared import write_metrics
from tests.synthetic.one_gpu import training

Spoil = Callable[[Path], None]
_NUMBER = re.compile(rb"(?<=[\s:,\[])-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?=[\s,\]}])")
_PART = re.compile(rb"(?<=: )[{\[][^{}\[\]]*[}\]]")
_TEXT = re.compile(rb'(?<=: )"[^"\\]*"')


def _holding(content: bytes) -> Spoil:
    return lambda path: _in_its_place(path, lambda: path.write_bytes(content))


def _in_its_place(path: Path, make: Callable[[], object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    make()


def _changed(change: Callable[[bytes], bytes]) -> Spoil:
    def spoil(path: Path) -> None:
        after = change(path.read_bytes())
        _in_its_place(path, lambda: path.write_bytes(after))

    return spoil


def _with_numbers(number: bytes) -> Spoil:
    return _changed(lambda text: _NUMBER.sub(number, text))


def _longer_than_any(path: Path) -> None:
    _in_its_place(path, path.touch)
    os.truncate(path, 1 << 40)  # sparse: no byte of it is on the disk


# What a file can be instead of itself. Each takes the path of a good file, and leaves other links to that as it was.
NOT_A_FILE: dict[str, Spoil] = {
    "a folder": lambda path: _in_its_place(path, path.mkdir),
    "a pipe": lambda path: _in_its_place(path, lambda: os.mkfifo(path)),
    "a device": lambda path: _in_its_place(path, lambda: path.symlink_to("/dev/zero")),
    "a link to itself": lambda path: _in_its_place(path, lambda: path.symlink_to(path.name)),
}
WRONG_BYTES: dict[str, Spoil] = {
    "empty": _holding(b""),
    "not UTF-8": _holding(b'{"a": "\xff\xfe\x80"}\n'),
    "zeros": _holding(bytes(4096)),
    "cut in half": _changed(lambda content: content[: len(content) // 2]),
    "a terabyte": _longer_than_any,
}
WRONG_JSON: dict[str, Spoil] = {
    "1,000 deep": _holding(b'{"a":' * 1000 + b"1" + b"}" * 1000),
    "100,000 deep": _holding(b"[" * 100_000 + b"]" * 100_000),
    "a list": _holding(b"[1, 2]"),
    "no fields": _holding(b"{}"),
    "texts for parts": _changed(lambda text: _PART.sub(b'"x"', text)),
    "a number": _holding(b"7"),
    "nothing": _holding(b"null"),
    "texts of half a character": _changed(lambda text: _TEXT.sub(rb'"\\ud800"', text)),
    "texts for numbers": _with_numbers(b'"x"'),
    "numbers that are none": _with_numbers(b"NaN"),
    "numbers beyond a float": _with_numbers(b"1e400"),
    "numbers of 400 digits": _with_numbers(b"9" * 400),
    "numbers of 5,000 digits": _with_numbers(b"9" * 5000),
}
KINDS = NOT_A_FILE | WRONG_BYTES | WRONG_JSON

MONITOR = "gpus-monitor/node0"
META = {
    "schema": 1, "host": "node0", "source": "nvml", "period_ns": 10**9, "started_unix_ns": 10**18, "monitor_pid": 1,
    "devices": [{"index": 0, "name": "a GPU", "memory_total_bytes": 1 << 30}],
}  # fmt: skip
SAMPLES = "unix_ns,device,utilization_percent,memory_used_bytes,power_watts\n" + "".join(
    f"{10**18 + second * 10**9},0,50.0,{1 << 29},100.000\n" for second in range(4)
)
PLAN = {"numbers": {"step_ns": {"label": "step", "value": 1.0e7, "unit": "ns", "low": 1.0e6, "high": 2.0e7}}}
ENVIRONMENT = {"host": "node0", "node": 0, "packages": {"torch": "2.7"}, "used": ["torch"], "system": {"kernel": "6"}}
HIDDEN = ("pause,ms=5",)
KEPT = {
    "version": 1, "looked": [2, 4], "rank": 0, "tensors": [{"where": ["train.py", 7, "main"], "bytes_per_step": 4096}],
    "growing": [{"name": "kept", "kind": "graph", "bytes_per_step": 4096, "where": ["train.py", 9, "main"]}],
    "objects": [],
}  # fmt: skip
RESULTS = {
    "world_size": 2, "backend": "gloo", "device_name": "a CPU", "hosts": ["node0"],
    "results": [{
        "collective": "all_reduce", "scope": "intra", "ranks": 2,
        "fit": {"alpha_ns": 2.0, "beta_ns_per_byte": 0.05, "r2_log": 0.99},
        "points": [{"message_bytes": 1024, "time_ns": 50.0, "busbw_gbytes_per_s": 1.0, "correct": True}],
    }],
}  # fmt: skip
VERDICT = {"verdict": "good", "findings": [{"level": "info", "message": "as it should be"}]}
_OF_TESTS = {"comm/collectives.json": json.dumps(RESULTS), "comm/verdict.json": json.dumps(VERDICT)}
_OF_TRAINING = {
    f"{MONITOR}/meta.json": json.dumps(META, indent=1),
    f"{MONITOR}/samples.csv": SAMPLES,
    "plan.json": json.dumps(PLAN),
    "memory/rank0.json": json.dumps(memory_snapshot(0)),
    "kept/rank0.json": json.dumps(KEPT),
    "environment/node0-0.json": json.dumps(ENVIRONMENT, indent=1),
    "summary.json": Summary(training=[RankTraining(rank=0, median_step_ns=10_000_000)]).model_dump_json(indent=1),
    HIDDEN_FILE: hidden_text(HIDDEN),
    "mystery-revealed.json": MysterySolution(faults=HIDDEN).model_dump_json(indent=1),
    "mystery-answer.json": MysteryAnswer(cause="pause").model_dump_json(),
    "torch/rank0.json.gz": json.dumps(training()),
}


def whole_run(root: Path, job_id: str, *, tests: bool = False) -> Run:
    """A completed training of two ranks with every file that one leaves, or `tests`: a run of exercise 0."""
    asked: AnyExperiment = CommTests(nodes=1, gpus_per_node=2) if tests else DDP(nodes=1, gpus_per_node=2)
    run = a_run(root, job_id, asked=asked)
    run.write_status(Status(state="completed", exit_code=0, started_ns=10**18, ended_ns=10**18 + 10**10))
    ended = NodeStatus(node=0, host="node0", exit=0, started_ns=10**18, ended_ns=10**18 + 10**10)
    for log in (run.out, run.err):
        log.write_text("step 1\nstep 2\n")
    for name, text in (_OF_TESTS if tests else _OF_TRAINING | {"node-status/0.json": ended.model_dump_json()}).items():
        file = run.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    if not tests:
        write_metrics(run.path, 10.0)
        (run.path / "metrics/rank1.jsonl").write_bytes((run.path / "metrics/rank0.jsonl").read_bytes())
    return run

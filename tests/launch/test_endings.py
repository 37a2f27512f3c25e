"""How a run ended, by all that witnessed it; and why, by its ranks and its log. The logs are of real programs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from harness.common.run_folder.run_files import HEARTBEATS, METRICS
from harness.experiment.exercises import OwnTraining
from harness.heartbeats.dead import first_death
from harness.launch.backends import local
from harness.launch.on_node import supervise
from harness.launch.poll import look_at
from harness.measure.request import ReportRequest, measure_request
from harness.run import Run
from harness.run.ended import why_it_wrote_no_more
from harness.run.record import NodeStatus, Status
from tests.launch.launch_shared import Harness, a_run, kept_by
from tests.waiting import limit_s

Line = dict[str, Any]
S = 1_000_000_000
ASKED = 100 * S


def begun(rank: int, pid: int, at_s: int, attempt: int = 0) -> Line:
    known = {"event": "rank", "rank": rank, "world": 2, "local": rank, "pid": pid, "attempt": attempt}
    return {**known, "unix_ns": at_s * S, "steps": None}


def gone(rank: int, pid: int, at_s: int, error: str = "", ended: bool = False, **more: Any) -> Line:
    kind, _, message = error.partition(": ")
    told = {"type": kind, "message": message, "place": ["/home/ann/train.py", 6, "main"], "unix_ns": at_s * S}
    known = {"event": "gone", "rank": rank, "pid": pid, "step": 12, "place": None, "unix_ns": at_s * S}
    return {**known, "ended": ended, "oom": None, "error": told if error else None, **more}


class Case(NamedTuple):
    """What the node's monitor wrote, the nodes' exit status, what was asked for; and what is said of that."""

    name: str
    lines: list[Line]
    state: str
    says: str
    code: int = 0
    asked: str = ""


HIDDEN = "; its command left with exit status 0 all the same"
VALUE = "ValueError: loss is not finite"
FELL = "RuntimeError: a GPU fell off the bus"
LEFT = "it was asked to end, and left with exit status 0"
ENDED = [gone(rank, 100 + rank, 50, ended=True) for rank in (0, 1)]
SECOND = [begun(0, 200, 60, 1), begun(1, 201, 60, 1)]
RESTART = [gone(1, 101, 50, FELL), gone(0, 100, 51, ended=True), *SECOND]
BEFORE = "it was started again after this: "
AGAIN = f"{BEFORE}rank 1 failed first, in step 12: {FELL} (train.py:6)"
CASES = [
    Case("all is well", ENDED, "completed", ""),
    Case("a footer hides an error", [gone(0, 100, 50, VALUE)], "failed",
         f"rank 0 failed first, in step 12: {VALUE} (train.py:6){HIDDEN}"),
    Case("a pipe hides a program that left with a status", [gone(0, 100, 50, "sys.exit: 1")], "failed",
         f"rank 0 failed first, in step 12: sys.exit(1) (train.py:6){HIDDEN}"),
    Case("a subshell hides a signal", [gone(0, 100, 50, "Segmentation fault")], "failed",
         f"rank 0 failed first, in step 12: Segmentation fault (train.py:6){HIDDEN}"),
    Case("`wait` hides the kernel's kill", [gone(0, 100, 50, oom="machine")], "failed",
         f"rank 0 failed first, in step 12: the kernel killed it: the machine's memory ran out{HIDDEN}"),
    Case("who was killed at the end by its program is named, and is no failure", [gone(0, 100, 50)], "completed",
         "the process of rank 0 ended in step 12 and told no error"),
    Case("`timeout` stops a training on purpose", [gone(0, 100, 50, ended=True)], "completed", ""),
    Case("stopped by its limit, and it leaves with 0", [gone(0, 100, 120, ended=True)], "timeout", LEFT, 0, "timeout"),
    Case("cancelled, and it leaves with 0", [gone(0, 100, 120, ended=True)], "cancelled", LEFT, 0, "cancelled"),
    Case("cancelled, of what is no training", [], "cancelled", LEFT, 0, "cancelled"),
    Case("the limit came after the training", ENDED, "completed", "", 0, "timeout"),
    Case("torchrun started the ranks again", [*RESTART, gone(0, 200, 90, ended=True, attempt=1)],
         "completed", AGAIN),
    Case("torchrun started them again in vain", [*RESTART, gone(0, 200, 90, VALUE, attempt=1)], "failed",
         f"rank 0 failed first, in step 12: {VALUE} (train.py:6); {AGAIN}", 1),
    Case("a rank is not seen in the second start",
         [gone(1, 101, 50, FELL), SECOND[0], gone(0, 200, 90, VALUE, attempt=1)],
         "failed", f"rank 0 failed first, in step 12: {VALUE} (train.py:6); {AGAIN}", 1),
    Case("a shell's loop tried again", [begun(1, 101, 1), gone(1, 101, 50, FELL), begun(1, 102, 60),
                                        gone(1, 102, 90, ended=True)], "completed", AGAIN),
    Case("nobody says why", [], "failed", "exit 3: no rank reported an error, and its log shows none", 3),
]  # fmt: skip


def a_training(root: Path, lines: list[Line], codes: list[int] | None = None, log: str = "") -> Run:
    """A run on this machine that has ended, with these words of its ranks."""
    run = a_run(root, "local-1", nodes=len(codes or [0]), asked=OwnTraining(command=("x.py",), start_in="/"))
    HEARTBEATS.folder(run.path).mkdir()
    HEARTBEATS.path(run.path, "n0").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (run.path / "node-status").mkdir()
    for number, code in enumerate(codes or []):
        run.write_node(NodeStatus(node=number, host=f"n{number}", exit=code, started_ns=1, ended_ns=120 * S))
    run.err.write_text(log)
    METRICS.folder(run.path).mkdir()
    METRICS.path(run.path, 0).write_text('{"event": "step"}\n' * 20)
    return run


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_one_decision_is_told_by_all_commands(tmp_path: Path, harness: Harness, case: Case) -> None:
    run = a_training(tmp_path / "runs", case.lines, [case.code])
    code = supervise.record_end(run, case.code, case.asked, ASKED)
    assert (code == 0) == (case.state == "completed")
    told = run.status()
    assert told is not None and (told.state, told.why or told.note) == (case.state, case.says)
    assert look_at(run)[:2] == (case.state, case.says)
    assert json.loads(harness("ls", "--json").stdout)[0]["state"] == case.state
    (summary,) = measure_request(ReportRequest(tokens=[str(run.path)], window="steps")).summaries
    found = {p.what: p.evidence for p in summary.quality.problems}
    said = found.get("the run did not complete", found.get("the training was started again", ""))
    assert said in (f"{case.state}: {case.says}", case.says.removeprefix(BEFORE), "")
    assert said or case.state == "completed"


@pytest.mark.parametrize(
    ("lines", "last", "state", "says"),
    [
        (ENDED, ["completed", "completed"], "completed", "all its ranks completed; its exit status was not written"),
        (ENDED, ["completed", "stopped"], "failed", "it ended without an exit status"),
        (ENDED[:1], ["completed", ""], "failed", "it ended without an exit status"),
        ([ENDED[0], gone(1, 101, 50, VALUE)], ["completed", "failed"], "failed",
         f"kill; rank 1 failed first, in step 12: {VALUE}"),
    ],
)  # fmt: skip
def test_what_the_ranks_said_counts_where_the_supervisor_was_killed(
    tmp_path: Path, lines: list[Line], last: list[str], state: str, says: str
) -> None:
    run = a_training(tmp_path, lines)
    for rank, status in enumerate(last):
        end = json.dumps({"event": "end", "rank": rank, "status": status, "unix_ns": 50 * S})
        METRICS.path(run.path, rank).write_text('{"event": "step"}\n' + f"{end}\n" * bool(status))
    kept_by(run, 1)
    run.write_status(Status(state="running", pid=1, host=run.record.submit_host, started_ns=1))
    for _ in range(2):  # it is written down, and stays
        found = look_at(run)
        assert found.state == state and says in found.why


def start_of(pid: int, host: str = socket.gethostname()) -> str:
    return json.dumps({"event": "start", "pid": pid, "host": host}) + "\n"


def end_as(status: str) -> str:
    return start_of(os.getpid()) + json.dumps({"event": "end", "status": status}) + "\n"


@pytest.mark.parametrize(
    ("before", "again", "takes_over"),
    [
        ("", "0", False),  # it has just begun
        (start_of(os.getpid()), "0", False),
        (start_of(1 << 22), "0", True),  # no process has this number
        (start_of(1, "another"), "0", False),
        (start_of(1, "another"), "1", True),  # torchrun has started its ranks again
        (end_as("failed"), "0", True),
        (end_as("stopped"), "0", True),
        (end_as("completed"), "0", False),
        (end_as("completed"), "1", True),
    ],
)
def test_a_process_takes_the_place_of_one_that_failed_or_is_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, again: str, takes_over: bool
) -> None:
    from harness.observe import watch

    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", again)
    (tmp_path / "rank0.jsonl").write_text(before)
    assert watch._takes_over(tmp_path / "rank0.jsonl") == takes_over


# --- the log --------------------------------------------------------------------------------------------------------

SITE = "/opt/venv/lib/python3.11/site-packages/torch/distributed"
IMPORT = """\
Traceback (most recent call last):
  File "/home/ann/import_error.py", line 3, in <module>
    import flash_attn_4  # not installed on this node
    ^^^^^^^^^^^^^^^^^^^
ModuleNotFoundError: No module named 'flash_attn_4'
"""
LAUNCHER = f"""\
Traceback (most recent call last):
  File "/opt/venv/bin/torchrun", line 10, in <module>
    sys.exit(main())
             ^^^^^^
  File "{SITE}/run.py", line 1028, in main
    run(args)
"""
CHILD = f"{LAUNCHER}torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
ROOT_CAUSE = """\
Root Cause (first observed failure):
[0]:
  time      : 2026-11-30_07:44:49
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 25554)
"""
TAKEN = "DistNetworkError: The server socket has failed to listen on any local network address. port: 29777, "
TAKEN += "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
SIGNAL = f"{LAUNCHER}torch.distributed.elastic.multiprocessing.api.SignalException: Process 9 got signal: 15\n"
REFUSED = IMPORT.replace("ModuleNotFoundError: No module named 'flash_attn_4'", "RuntimeError: Connection refused")
ELASTIC = "E1130 07:44:49.120000 25551 site-packages/torch/distributed/elastic/multiprocessing/api.py:1032] failed\n"
AT = "(import_error.py:3)"
LOGS = {
    "before PyTorch": (IMPORT, f"the program failed: ModuleNotFoundError: No module named 'flash_attn_4' {AT}"),
    "two ranks at once": (IMPORT + IMPORT + CHILD + ROOT_CAUSE,
                          f"rank 1 failed first: ModuleNotFoundError: No module named 'flash_attn_4' {AT}"),
    "lines of two ranks mixed": ("".join(line * 2 for line in IMPORT.splitlines(keepends=True)),
                                 f"the program failed: ModuleNotFoundError: No module named 'flash_attn_4' {AT}"),
    "a syntax error": ('  File "/home/ann/train.py", line 5\n    def f(:\n          ^\nSyntaxError: invalid syntax\n',
                       "the program failed: SyntaxError: invalid syntax (train.py:5)"),
    "in a library": (IMPORT.replace("    import", f'    import x\n  File "{SITE}/rpc.py", line 9, in f\n    import'),
                     f"the program failed: ModuleNotFoundError: No module named 'flash_attn_4' {AT}"),
    "the last of two": (IMPORT + IMPORT.replace("No module", "again: no module"),
                        f"the program failed: ModuleNotFoundError: again: no module named 'flash_attn_4' {AT}"),
    "a port that is taken": (f"{LAUNCHER}torch.distributed.{TAKEN}\n", f"torchrun failed: {TAKEN}"),
    "by rank": ("".join(f"[rank{rank}]: {line}" for rank, text in ((2, IMPORT), (0, REFUSED))
                        for line in text.splitlines(keepends=True)),
                f"rank 2 failed first: ModuleNotFoundError: No module named 'flash_attn_4' {AT}"),
    "refused, if nobody else failed": (REFUSED + SIGNAL, f"the program failed: RuntimeError: Connection refused {AT}"),
    "a shell": ("epoch: 3: loss 2\n/home/ann/run.sh: line 3: torchrum: command not found\nfinished\n",
                "torchrum: command not found (run.sh:3)"),
    "a shell on a crash": ("run.sh: line 2: 4711 Segmentation fault      (core dumped) ./train\n",
                           "4711 Segmentation fault (core dumped) ./train (run.sh:2)"),
    "arguments": ("usage: train.py [-h]\n               [--steps N]\ntrain.py: error: unrecognized arguments: --x\n",
                  "train.py does not accept its arguments: unrecognized arguments: --x"),
    "an exception named as a function": (IMPORT.replace("ModuleNotFoundError: No", "aiohttp.error: no"),
                                         f"the program failed: error: no module named 'flash_attn_4' {AT}"),
    "what is no error": (f"INFO: all well\n  File: 3\n\x1b[1mDone: yes\x1b[0m\n---\n{ELASTIC}{LAUNCHER}", None),
}  # fmt: skip


@pytest.mark.parametrize(("text", "sentence"), LOGS.values(), ids=LOGS)
def test_the_log_tells_what_no_rank_could(tmp_path: Path, text: str, sentence: str | None) -> None:
    run = a_training(tmp_path, [], [1], text)
    found = first_death(run.path, run.err)
    assert (found.sentence if found else None) == sentence
    supervise.record_end(run, 1, "")
    said = look_at(run).why
    assert said.startswith(sentence or "exit 1: its log ends with: Done: yes")


def test_a_rank_that_was_stopped_on_request_is_not_the_cause(tmp_path: Path) -> None:
    waits = [{"event": "node", "node": 0, "host": "n0", "unix_ns": 1}, begun(0, 100, 1), gone(0, 100, 120)]
    run = a_training(tmp_path, waits, [143, 1], REFUSED + ROOT_CAUSE + SIGNAL)
    supervise.record_end(run, 143, "")
    assert look_at(run).why == f"rank 1 failed first: RuntimeError: Connection refused {AT}"


def test_a_run_without_a_step_names_the_error_that_its_command_hid(tmp_path: Path) -> None:
    run = a_training(tmp_path, [], [0], IMPORT)
    METRICS.path(run.path, 0).unlink()
    assert supervise.record_end(run, 0, "") == 0
    assert look_at(run).why.endswith(f"in its log: the program failed: ModuleNotFoundError: No module named "
                                     f"'flash_attn_4' {AT}")  # fmt: skip


# --- the disk -------------------------------------------------------------------------------------------------------


def _mount(folder: Path, *options: str) -> bool:
    return not subprocess.run(["mount", *options, "tmpfs", folder], check=False, timeout=limit_s()).returncode


@pytest.fixture(params=["size=256k", "nr_inodes=40", "ro"])
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Path, str]]:
    """A disk of its own, and what becomes of it."""
    folder = tmp_path / "disk"
    folder.mkdir()
    options = [] if request.param == "ro" else ["-o", request.param]
    if os.geteuid() or not _mount(folder, "-t", "tmpfs", *options):
        pytest.skip("only root may mount a disk")
    yield folder, request.param
    subprocess.run(["umount", folder], check=True, timeout=limit_s())


def test_what_is_wrong_with_the_disk_is_one_sentence(disk: tuple[Path, str]) -> None:
    folder, what = disk
    run = a_training(folder, [])
    assert why_it_wrote_no_more(run) == ""
    if what == "ro":
        assert _mount(folder, "-o", "remount,ro")
    for number in range(0 if what == "ro" else 1000):
        try:
            (folder / str(number)).write_bytes(b"x" * (4096 if what.startswith("size") else 0))
        except OSError:
            break
    said = why_it_wrote_no_more(run)
    assert said.startswith(f"it ended without an exit status: the disk of {run.path} is ")
    assert ("read-only" in said) == (what == "ro")


def test_what_keeps_a_run_prints_nothing_into_the_terminal(tmp_path: Path) -> None:
    """What a program that is started inside says on stderr, as when its disk is full, is in the run's own folder."""
    program = (
        "import subprocess, sys\nfrom pathlib import Path\nfrom harness.launch.backends import local\n"
        f"with local._with_our_modules(Path({str(tmp_path)!r})):\n    subprocess.run(['sh', '-c', 'echo broken >&2'])\n"
        "print('here', file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=limit_s()
    )
    assert done.stderr == "here\n"
    run = a_run(tmp_path / "runs", "local-1")
    run.controller_dir.parent.mkdir()
    tmp_path.joinpath("controller_log.err").rename(tmp_path / "moved")
    kept_by(run, 1)
    (run.controller_dir / "controller_log.err").write_text((tmp_path / "moved").read_text())
    run.write_status(Status(state="running", pid=1, host=run.record.submit_host, started_ns=time.time_ns()))
    assert local.poll(run).why.endswith(": broken")

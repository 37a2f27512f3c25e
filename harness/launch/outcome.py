"""The job's own status: how its nodes ended, which reports are missing, and the state of the run. The job's program
writes it at the start and at the end, so that a run's status is never guessed."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

from harness.common.bounded_read import read_end
from harness.common.mystery import hides
from harness.experiment.exercises import Own, Profiled
from harness.launch.container import why_not_begun
from harness.live.dead import ends_of_ranks, first_death, first_exits
from harness.live.hang import read_hang
from harness.run import Run, read_json_lines
from harness.run.record import FINAL, NodeStatus, Record, State, Status

_CLOSING_S = 3.0  # helpers of Python's multiprocessing end a moment after their rank
_SHOWN = 5
_NO_STEP = (
    "no step was observed: it called no optimizer and no model's forward, or its Python ran with -I, -E or -S and so "
    "without the observer"
)


def what_is_open(run: Run) -> str:
    """A sentence on a training that ended with status 0; empty if nothing is open, or it is an exercise's."""
    asked = run.record.experiment
    if not isinstance(asked, Own):
        return ""
    end_s = time.monotonic() + _CLOSING_S
    while (left := list(_started_by(run))) and time.monotonic() < end_s:
        time.sleep(0.2)
    if left:
        pids = ", ".join(map(str, left[:_SHOWN])) + (", …" if len(left) > _SHOWN else "")
        many = f"{len(left)} processes of it were" if len(left) > 1 else "a process of it was"
        return f"{many} still running when the program had ended (pid {pids}): what came after is not recorded"
    took, window = max(_steps(run), default=0), asked.window
    if not took:
        return _NO_STEP
    none_wanted = run.record.job.get("profiler") == "none" or asked.recorded_by_time
    if none_wanted or took >= window.end or run.traces():
        return ""
    return (
        f"nothing was profiled: it took {took} step{'s' * (took > 1)}, and the profiled ones are {window.start + 1} to "
        f"{window.end}: let it take more, or lower --skip-steps, --warmup-steps and --active-steps"
    )


def _started_by(run: Run) -> Iterator[int]:
    """The processes of the training that live on this machine."""
    wanted = f"HARNESS_OBSERVE={run.path}/".encode()
    own = {os.getpid(), os.getppid()}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) not in own:
            with suppress(OSError):  # another user's, or it has ended
                if any(each.startswith(wanted) for each in (folder / "environ").read_bytes().split(b"\0")):
                    yield int(folder.name)


def _steps(run: Run) -> list[int]:
    found = []
    for path in run.metrics():
        with suppress(OSError, ValueError):
            found.append(sum(line.get("event") == "step" for line in read_json_lines(path)))
    return found


LEAST_BYTES = 1 << 16  # a disk with less is full: a log and a status are as large
USUALLY = {
    "KILL": "the system does this if memory runs out: try a smaller batch or model",
    "SEGV": "a library crashed: its last lines are in the log",
    "ABRT": "a library aborted: its last lines in the log give the reason",
    "BUS": "often /dev/shm is full, which the ranks share",
    "TERM": "something other than slurm.sh cancel asked it to stop",
    "FPE": "a library divided by zero",
    "XFSZ": "a file became larger than the limit of this account (ulimit -f)",
    "XCPU": "it used more CPU time than this account may use (ulimit -t)",
}
PROGRAMS = {126: "a program could not be executed", 127: "a program was not found"}


def what_it_means(code: int | None) -> str:
    """A sentence for a status that a shell gave a meaning to; empty for any other.

    >>> what_it_means(139)
    'exit 139: ended by the signal SEGV; a library crashed: its last lines are in the log'
    >>> what_it_means(7)
    ''
    """
    if code in PROGRAMS:
        return f"exit {code}: {PROGRAMS[code]}; the log names it"
    if code is None or not 128 < code < 128 + signal.NSIG:
        return ""
    try:
        name = signal.Signals(code - 128).name.removeprefix("SIG")
    except ValueError:
        return ""
    usually = f"; {USUALLY[name]}" if name in USUALLY else ""
    return f"exit {code}: ended by the signal {name}{usually}"


def why_it_wrote_no_more(run: Run) -> str:
    """That its disk is full, of a run that could not write how it ended; empty if there is space."""
    own = run.status()
    if own is not None and own.state in FINAL:
        return ""
    try:
        disk = os.statvfs(run.path)
    except OSError:
        return ""
    if disk.f_bavail * disk.f_frsize >= LEAST_BYTES:
        return ""
    return f"it ended without an exit status: the disk of {run.path} is full; free some space, and start it again"


STOPPED = 143  # by TERM
LONGEST_LINE = 1 << 16  # bytes of an end line, and more


def record_start(run: Run) -> None:
    run.write_status(Status(state="running", pid=os.getpid(), host=socket.gethostname(), started_ns=time.time_ns()))


def record_end(run: Run, code: int, reason: str) -> int:
    """Write how the job ended; returns the exit code it should have. The training's own exit status counts, not the
    launcher's: when one node fails, srun ends the others and may report their end instead."""
    as_written = run.nodes()
    nodes = with_first_exits(as_written, first_exits(run.err))
    expected = int(run.record.job["experiment"]["nodes"])
    exit_code = _training_exit(nodes, expected, code)
    if reason and not exit_code and any(_ended_as(path) == "stopped" for path in run.metrics()):
        exit_code = STOPPED  # a rank stopped on request, and nsys ends with 0 when it is asked to end
    expected_files = {name: run.path / name for name in run.record.job["expects"]}
    missing = [name for name, path in expected_files.items() if not (path.is_file() and path.stat().st_size)]
    before = run.status()
    state = _state(exit_code, reason, missing)
    note = what_is_open(run) if state == "completed" else ""
    status = Status(
        state=state,
        note=note,
        why=_why(run, state, exit_code),
        exit_code=exit_code,
        host=socket.gethostname(),
        missing=missing,
        started_ns=before.started_ns if before else None,
        ended_ns=time.time_ns(),
    )
    if before is not None and before.told_by is not None and status.state in ("failed", "cancelled"):
        # Who runs the jobs had given it up, as one on a node that was cut off, and so it was ended.
        status = status.model_copy(update={"state": before.state, "told_by": before.told_by, "why": before.why})
    run.write_record(run.record.model_copy(update={"status": status, "nodes": nodes}))
    for node in nodes:
        if node not in as_written:
            run.write_node(node)
    run.write_status(status)
    for name in missing:
        print(f"expected report is missing or empty: {run.path / name}", file=sys.stderr)
    if status.state == "completed" and (reason := why_nothing_was_recorded(run.record, missing)):
        print(reason, file=sys.stderr)
    return exit_code


def with_first_exits(nodes: Sequence[NodeStatus], told: Sequence[tuple[str, int]]) -> list[NodeStatus]:
    """The nodes with the exit status of the rank that failed first in the place of their launcher's. told: as
    `first_exits`. deepspeed's launcher passes a signal on as 256 - n."""
    left, found, hosts = list(told), list[NodeStatus](), {node.host for node in nodes}
    for node in sorted(nodes, key=lambda each: each.ended_ns or 0):
        code = node.exit or 0
        if code == 1:
            names = [each[0].partition(".")[0] for each in left]  # one that is no node's is localhost, or not told
            own = next((each for each, at in zip(left, names, strict=True) if at == node.host or at not in hosts), None)
            if own is not None:
                left.remove(own)
                code = 128 - own[1] if own[1] < 0 else own[1]
        elif 256 - signal.NSIG < code < 255:
            code = 128 + 256 - code
        found.append(node.model_copy(update={"exit": code}))
    return sorted(found, key=lambda each: each.node)


def _why(run: Run, state: State, exit_code: int) -> str:
    """What the heartbeats say of an end that was not as wished: who is stuck where, or who failed first."""
    if state == "completed":
        return ""
    hang = read_hang(run.path)
    if hang is not None and hang.until_ns is None:
        return hang.since_clock
    if state == "failed" and hides(run.path, "crash"):
        return ends_of_ranks(run.path, run.err)
    if state != "failed":
        return ""
    death = first_death(run.path, run.err)
    if death is None:
        return _why_not_begun(run)
    return "; ".join(filter(None, [death.sentence, what_it_means(exit_code)]))


def _why_not_begun(run: Run) -> str:
    """Of a training in a container, some ranks of which never wrote a line: what the container said."""
    container, image = run.record.site.container, run.record.job.get("image")
    asked = run.record.job["experiment"]
    if container is None or image is None or len(run.metrics()) >= asked["nodes"] * asked["gpus_per_node"]:
        return ""
    failed = [node.host for node in run.nodes() if node.exit not in (0, STOPPED)]
    return why_not_begun(run.err, failed, container, image if isinstance(image, str) else container.image)


def why_nothing_was_recorded(record: Record, missing: list[str]) -> str:
    """Why a completed run probably has no report of nsys, and what to try; empty when it has one."""
    if not any(name.startswith("nsys/") for name in missing):
        return ""
    nothing = "nsys recorded nothing (its own messages are in log.err): "
    asked = record.experiment
    if isinstance(asked, Profiled) and asked.capture_delay is not None:
        return (
            f"{nothing}the training may have ended before the {asked.capture_delay} s of --capture-delay were over: "
            "use more --steps or a shorter delay"
        )
    if record.job.get("container") and not record.site.in_srun:
        return (
            f"{nothing}in the container the training probably could not load nsys's libraries; add their folder to the "
            "site's container.binds, or try --profiler torch"
        )
    return f"{nothing}nsys probably missed the profiled steps; try another version of nsys, or --profiler torch"


def _ended_as(metrics: Path) -> object:
    try:
        last = json.loads(read_end(metrics, LONGEST_LINE).splitlines()[-1])
    except (OSError, ValueError, IndexError):
        return None
    return last.get("status") if isinstance(last, dict) else None


def _training_exit(nodes: list[NodeStatus], expected: int, code: int) -> int:
    failed = [n.exit for n in sorted(nodes, key=lambda n: n.ended_ns or 0) if n.exit]  # the first is the cause
    own = [c for c in failed if c != STOPPED]  # a node that was stopped because another failed
    if failed:
        return (own or failed)[0]
    return code if len(nodes) == expected else code or 1


def _state(code: int, reason: str, missing: list[str]) -> State:
    if not code and not missing:
        return "completed"  # the signal to stop came after the end
    if reason in ("timeout", "stuck", "cancelled"):
        return cast(State, reason)
    return "failed" if code else "completed"

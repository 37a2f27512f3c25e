"""What can be seen of ranks that make no progress: their own answers, py-spy's where they cannot answer, and /proc."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sysconfig
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.common.heartbeats import Evidence
from harness.live import processes
from harness.live.ranks import Rank

ANSWER_S = 3.0  # a rank whose Python runs answers twice a second
PY_SPY_S = 10
CHILD_S = 0.3  # over which it is seen whether children compute
MOST_CHILDREN = 16
MOST_ANSWER_BYTES = 4 << 20
MOST_CRASH_BYTES = 1 << 16
_INSTALLED = (
    "site-packages",
    "dist-packages",
    f"{os.sep}lib{os.sep}python3",
    f"{os.sep}lib64{os.sep}python3",
)


def gather(ranks: list[Rank], memory: Path, now_ns: int) -> list[Evidence]:
    """Ask the ranks for their stacks, and look at their processes."""
    asked = str(time.time_ns())
    temporary = memory / ".ask"
    temporary.write_text(asked, encoding="ascii")
    temporary.replace(memory / "ask")
    end_s = time.monotonic() + ANSWER_S
    answers: dict[int, dict[str, Any]] = {}
    while len(answers) < len(ranks) and time.monotonic() < end_s:
        for rank in ranks:
            if rank.rank not in answers and (answer := _answer(memory, rank.rank, asked)):
                answers[rank.rank] = answer
        time.sleep(0.1)
    return [_evidence(rank, answers.get(rank.rank), now_ns) for rank in ranks]


def _answer(memory: Path, rank: int, asked: str) -> dict[str, Any] | None:
    with suppress(OSError, ValueError), (memory / f"rank{rank}.stacks.json").open("rb") as file:
        found = json.loads(file.read(MOST_ANSWER_BYTES))
        if isinstance(found, dict) and found.get("asked") == asked:
            return found
    return None


def _evidence(rank: Rank, answer: dict[str, Any] | None, now_ns: int) -> Evidence:
    threads, by = (answer["threads"], "the rank") if answer else _from_outside(rank.pid)
    answer = answer or {}
    main = rank.facts.get("tid")
    tid = main if isinstance(main, int) and processes.stat_of(rank.pid, main) else rank.pid
    thread = processes.stat_of(rank.pid, tid)
    return Evidence(
        rank=rank.rank,
        pid=rank.pid,
        started=state.started if (state := processes.stat_of(rank.pid)) else 0,
        since_ns=time.time_ns() - (now_ns - rank.progress_ns),
        quiet_ns=now_ns - rank.life_ns,
        step=int(rank.facts.get("step") or 0),
        phase=rank.facts.get("phase"),
        place=rank.facts.get("place"),
        usual_ns=1000 * rank.usual_us,
        longest_ns=1000 * rank.longest_us,
        state=thread.state if thread else "X",
        waits_in=processes.waits_in(rank.pid, tid),
        frozen=processes.is_frozen(rank.pid),
        computes=rank.computes,
        answered=bool(answer),
        by=by,
        threads=threads,
        collectives=answer.get("collectives") or [],
        groups=answer.get("groups") or {},
        children=_children(rank.pid),
        call=answer.get("call"),
        gone=thread is None,
        ended=bool(rank.facts.get("ended_ns")),
    )


def _from_outside(pid: int) -> tuple[dict[str, list[list[Any]]], str]:
    """The stacks of a process that cannot run Python: by py-spy, which only reads its memory, else by the kernel."""
    program = Path(sysconfig.get_path("scripts")) / "py-spy"
    found = str(program) if program.is_file() else shutil.which("py-spy")
    if found:
        with suppress(OSError, ValueError, KeyError, TypeError, subprocess.TimeoutExpired):
            command = [found, "dump", "--json", "--nonblocking", "--pid", str(pid)]
            done = subprocess.run(command, capture_output=True, timeout=PY_SPY_S, check=False)
            threads = json.loads(done.stdout)
            return {
                _name(thread): [_frame(frame) for frame in thread["frames"]] for thread in threads
            }, "py-spy"
    with suppress(OSError):
        lines = (processes.PROC / str(pid) / "stack").read_text().splitlines()
        frames = [["kernel", 0, line.partition("] ")[2].partition("+")[0], False] for line in lines]
        return {"kernel": frames}, "the kernel"
    return {}, ""


def read_crash(path: Path) -> dict[str, Any] | None:
    """What Python's faulthandler wrote of a process that a signal ended, as an error; None: nothing."""
    with suppress(OSError), path.open("rb") as file:
        lines = file.read(MOST_CRASH_BYTES).decode(errors="replace").splitlines()
        found = [match for line in lines if (match := _CRASHED_AT.match(line))]
        if lines and lines[0].startswith(_FATAL):
            users = next((each for each in found if is_users(each[1])), None)
            place = [users[1], int(users[2]), users[3]] if users else None
            return {"type": lines[0][len(_FATAL) :], "message": "", "place": place, "unix_ns": time.time_ns()}
    return None


_FATAL = "Fatal Python error: "
_CRASHED_AT = re.compile(r'  File "(.+)", line (\d+) in (.+)')


def is_users(file: str) -> bool:
    """Whether a file of another Python is no installed package, of its standard library or of a fault."""
    ours = f"{os.sep}exercises{os.sep}utils{os.sep}faults{os.sep}"
    return not file.startswith("<") and not any(part in file for part in (*_INSTALLED, ours))


def _name(thread: dict[str, Any]) -> str:
    name = str(thread.get("thread_name") or thread.get("thread_id"))
    return "main" if name == "MainThread" else name


def _frame(frame: dict[str, Any]) -> list[Any]:
    file = str(frame["filename"])
    return [file, int(frame["line"]), str(frame["name"]), is_users(file)]


def _children(pid: int) -> list[dict[str, Any]]:
    """The processes below a rank: whether they live and compute, and what they wait in."""
    pids = processes.below(pid)[:MOST_CHILDREN]
    before = {child: processes.stat_of(child) for child in pids}
    if pids:
        time.sleep(CHILD_S)
    found = []
    for child in pids:
        first, now = before[child], processes.stat_of(child)
        if first is None:
            continue
        spent_ns = now.cpu_ns - first.cpu_ns if now else 0
        found.append(
            {
                "pid": child,
                "started": first.started,
                "program": first.name,
                "state": now.state if now else "X",
                "frozen": processes.is_frozen(child),
                "computes": spent_ns > processes.TICK_NS,
                "waits_in": processes.waits_in(child) if now else "",
            }
        )
    return found

"""Which rank of a failed run failed first, by what and where: not the last lines of the others' broken connections."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from harness.common.display.format import amount
from harness.common.display.text import where
from harness.common.run_folder.heartbeats import CALLS
from harness.common.run_folder.run_files import ERR, HEARTBEATS, MEMORY_SNAPSHOTS
from harness.common.run_folder.run_store import UnreadFileError
from harness.heartbeats.lines import Error, GoneLine, ProgramLine, decoded, node_files
from harness.heartbeats.silent_nodes import SILENT_S, silent_nodes, who_is_silent

_MOST_HELD = 3  # uses of memory
TAIL_BYTES = 1 << 18  # of a node's file: its ranks end at its end
LOG_BYTES = 1 << 18
# What a rank says whose neighbour has gone.
_VICTIM = re.compile(
    r"Connection (?:closed by peer|reset by peer|refused)|Broken pipe|remote process exited|NCCL (?:error|communicator)"
    r"|Watchdog caught|Timed out waiting|recvBytes|sendBytes|Read timeout|DistNetworkError|DistStoreError"
    r"|Socket Timeout|process group .*(?:aborted|terminated)|Application timeout",
    re.IGNORECASE,
)
_EXITS = (
    re.compile(rb"exitcode\s*:\s*(-?\d+)\s*\(pid:\s*(\d+)\)"),  # torchrun's summary
    re.compile(rb"\(exitcode: (-?\d+)\) local_rank: \d+ \(pid: (\d+)\)"),  # its first line
)
SIGNALS = {4: "ILL", 6: "ABRT", 7: "BUS", 8: "FPE", 9: "KILL", 11: "SEGV", 15: "TERM", 24: "XCPU", 25: "XFSZ"}
MEMORY = {
    "cgroup": "the kernel killed it: the job used more memory than its cgroup allows",
    "machine": "the kernel killed it: the machine's memory ran out",
}
_ABORTED = ("Aborted",)  # as Python's faulthandler names it
_MEETINGS = ("init_process_group", "new_group", "destroy_process_group")


class Death(NamedTuple):
    """place: the user's line that raised; without an error the last one that was seen (`seen`). left: it did not
    fail, but left the training before the others. lost: of a node that fell silent, with the first of its ranks:
    which. held: what tensors held when there was no memory for another one. call: the function of torch.distributed in
    which it ended. apart: the collectives that the ranks were in, where those are not the same."""

    rank: int
    pid: int
    unix_ns: int
    step: int | None
    error: str = ""
    oom: str | None = None
    place: ProgramLine | None = None
    seen: bool = False
    victim: bool = False
    exit_code: int | None = None
    left: bool = False
    lost: str = ""
    held: str = ""
    call: str = ""
    apart: str = ""

    @property
    def sentence(self) -> str:
        """For status, logs and the page."""
        if self.lost:
            return f"{self.lost}, and the other ranks lost their connection to it"
        at = where(self.place)
        at = f" ({'last seen at ' if self.seen else ''}{at})" if at else ""
        step = "" if self.step is None else f" in step {self.step}"
        if self.left:
            how = f" by {self.error}" if self.error else ""
            return f"rank {self.rank} left the training{step}{how}{at}, and the others could not go on without it"
        return f"rank {self.rank} failed first,{step}: {self.how}{at}{self.held}{self.apart}".replace(",:", ":")

    @property
    def short(self) -> str:
        """For a list of runs: the rank, the kind of its error, and the line."""
        kind = self.error.partition(":")[0] or self.how
        return self.lost or " ".join(filter(None, (f"rank {self.rank}: {kind}", where(self.place))))

    @property
    def how(self) -> str:
        if self.oom is not None:
            return MEMORY[self.oom]
        if self.error:
            return self.error
        if self.exit_code is not None and self.exit_code < 0:
            return f"it was ended by the signal {SIGNALS.get(-self.exit_code, str(-self.exit_code))}"
        if self.exit_code:
            return f"it ended with exit status {self.exit_code}"
        return "its process ended and told no error"


def first_death(run: Path, log: Path | None = None) -> Death | None:
    """The rank that failed first; None: none did, or nobody saw it. log: of the run, for the exit codes."""
    ends = deaths(run, log)
    failed = [death for death in ends if not death.left]
    first = next((death for death in failed if not death.victim), None)
    if apart := _apart(failed):
        return (first or failed[0])._replace(apart=apart)
    if first is not None:
        return first._replace(held=_held(run, first.rank)) if "memory" in first.error.lower() else first
    if not failed:
        return None
    if failed[0].victim and (lost := _lost(run, failed[0].step)):
        return lost
    return next((death for death in ends if death.left and death.unix_ns < failed[0].unix_ns), failed[0])


def deaths(run: Path, log: Path | None = None) -> list[Death]:
    """The ends of all ranks' processes that were seen, the first one first. log: as above."""
    codes = exit_codes(log)
    gone = list(_gone(run))
    last = max((line.step for line in gone if line.step is not None), default=None)
    return sorted((_death(line, codes, last) for line in gone), key=lambda death: death.unix_ns)


def _apart(failed: list[Death]) -> str:
    """The collectives that the ranks were in, if these do not fit together and all ranks broke off or aborted in them;
    else empty. If one rank raised an error of its own, that is the cause, and the others are its victims."""
    inside = sorted(
        (death for death in failed if death.call and death.call not in _MEETINGS), key=lambda each: each.rank
    )
    alone = [death for death in failed if not death.victim and death.error not in _ABORTED]
    if alone or len({(death.call, death.place) for death in inside}) < 2:
        return ""
    told = "; ".join(f"rank {d.rank} was in {d.call}" + (f" ({where(d.place)})" if d.place else "") for d in inside)
    if len({death.call for death in inside}) < 2 and not any(death.error in _ABORTED for death in inside):
        return ""
    return f"; {told}: all ranks of a group must make the same collectives in the same order"


def _held(run: Path, rank: int) -> str:
    """Who held the memory when an allocation failed, if the run has snapshots of it."""
    with suppress(UnreadFileError, KeyError, TypeError, AttributeError):
        held = MEMORY_SNAPSHOTS.as_json.read(MEMORY_SNAPSHOTS.path(run, rank))["failure"]["bytes"]
        parts = sorted(((size, name) for name, size in held.items() if size > 0), reverse=True)
        named = ", ".join(f"{name} {amount(size)}" for size, name in parts[:_MOST_HELD])
        return f"; tensors held {amount(sum(held.values()))} then: {named}" if parts else ""
    return ""


def _lost(run: Path, step: int | None) -> Death | None:
    """A node that fell silent, of which all ranks that were seen to fail may be victims."""
    silent = silent_nodes(run, SILENT_S)
    if not silent:
        return None
    first = min(silent, key=lambda node: node.since_ns)
    return Death(first.ranks[0], pid=0, unix_ns=first.since_ns, step=step, lost=who_is_silent(silent))


def _gone(run: Path) -> Iterator[GoneLine]:
    for path in node_files(run):
        yield from (line for line in decoded(HEARTBEATS.end(path, TAIL_BYTES)) if isinstance(line, GoneLine))


def _death(line: GoneLine, codes: dict[int, int], last: int | None) -> Death:
    error = line.error or Error()
    text = f"{error.type}: {error.message}" if error.message else error.type
    if error.type in ("sys.exit", "os._exit"):
        text = f"{error.type}({error.message})"
    code = codes.get(line.pid)
    return Death(
        rank=line.rank,
        pid=line.pid,
        unix_ns=error.unix_ns or line.unix_ns,
        # Without an error of Python's its last heartbeat may be older than its end; the others came as far as it did.
        step=line.step if error.message and line.step is not None else last,
        error=text,
        oom=line.oom if line.oom in MEMORY and code in (None, -9) and not line.error else None,
        place=error.place if line.error else line.place,
        seen=not line.error,
        # A rank that is told to end ends by the signal TERM.
        victim=bool(_VICTIM.search(text)) or (not line.error and code == -15),
        exit_code=code,
        left=line.ended or text == "os._exit(0)",
        call=error.call if error.call in CALLS else "",
    )


def exit_codes(log: Path | None) -> dict[int, int]:
    """By process, as the launcher wrote them into the log."""
    found: dict[int, int] = {}
    if log is not None:
        text = ERR.end(log, LOG_BYTES)
        for pattern in _EXITS:
            found.update({int(pid): int(code) for code, pid in pattern.findall(text)})
    return found

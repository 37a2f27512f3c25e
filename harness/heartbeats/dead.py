"""Which rank of a failed run failed first, by what and where: not the last lines of the others' broken connections."""

from __future__ import annotations

import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from harness.common.display.format import amount, cut
from harness.common.display.printable import printable
from harness.common.display.text import where
from harness.common.run_folder.run_files import ERR, MEMORY_SNAPSHOTS, NODE_STATUS
from harness.common.run_folder.run_store import UnreadFileError
from harness.common.system.bounded_read import BoundedReadError
from harness.heartbeats.lines import Error, GoneLine, NodeLine, ProgramLine, RankHeader, both_ends, node_files
from harness.heartbeats.log_errors import LOG_BYTES, MOST_TOLD, LoggedError, errors_of
from harness.heartbeats.out_of_memory import WORKER_KILLED, Shortage, of_device, of_host, read_beside
from harness.heartbeats.silent_nodes import SILENT_S, silent_nodes, who_is_silent

_MOST_HELD = 3  # uses of memory
# What a rank says whose neighbour has gone.
_VICTIM = re.compile(
    r"Connection (?:closed by peer|reset by peer|refused)|Broken pipe|remote process exited|NCCL (?:error|communicator)"
    r"|Watchdog caught|Timed out waiting|recvBytes|sendBytes|Read timeout|DistNetworkError|DistStoreError"
    r"|Socket Timeout|process group .*(?:aborted|terminated)|Application timeout",
    re.IGNORECASE,
)
_OF_MEMORY = re.compile(r"memory|DataLoader worker \(pid", re.IGNORECASE)
_TAKEN = re.compile(r"EADDRINUSE|address already in use", re.IGNORECASE)  # a program of somebody else's has the port
_EXITS = (
    re.compile(rb"exitcode\s*:\s*(-?\d+)\s*\(pid:\s*(\d+)\)"),  # torchrun's summary
    re.compile(rb"\(exitcode: (-?\d+)\) local_rank: \d+ \(pid: (\d+)\)"),  # its first line
)
EXITS = ("sys.exit(", "os._exit(")  # of a program that left with a status of its own
_STOPPED = -15  # by TERM, as its launcher asks a rank to end
_KILLED = -9
SIGNALS = {4: "ILL", 6: "ABRT", 7: "BUS", 8: "FPE", 9: "KILL", 11: "SEGV", 15: "TERM", 24: "XCPU", 25: "XFSZ"}
MEMORY = {
    "cgroup": "the kernel killed it: the job used more memory than its cgroup allows",
    "machine": "the kernel killed it: the machine's memory ran out",
}


class Death(NamedTuple):
    """place: the user's line that raised; without an error the last one that was seen (`seen`). left: it did not
    fail, but left the training before the others. told: of a node that fell silent, with the first of its ranks, or of
    a program that is no rank: the sentence on it. held: what tensors held when there was no memory for another one.
    last_bytes: of its host memory at its last sign of life. beside: bytes that the others under its limit of memory
    had when it had ended. shortage: what used up its memory."""

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
    told: str = ""
    held: str = ""
    last_bytes: int | None = None
    beside: int | None = None
    shortage: Shortage | None = None

    @property
    def sentence(self) -> str:
        """For status, logs and the page."""
        if self.told:
            return self.told
        at = where(self.place)
        at = f" ({'last seen at ' if self.seen else ''}{at})" if at else ""
        step = "" if self.step is None else f" in step {self.step}"
        if self.left:
            how = f" by {self.error}" if self.error else ""
            return f"rank {self.rank} left the training{step}{how}{at}, and the others could not go on without it"
        ran_out = self.shortage.said if self.shortage else ""
        return f"rank {self.rank} failed first,{step}: {self.how}{at}{ran_out}{self.held}".replace(",:", ":")

    @property
    def is_certain(self) -> bool:
        """Whether it is known that it failed, by what it said itself or how its process ended."""
        return bool(self.error or self.oom) or self.exit_code not in (None, 0, _STOPPED)

    @property
    def short(self) -> str:
        """For a list of runs: the rank if it is known, the kind of its error, and the line."""
        if self.told and self.place is None:
            return self.told
        kind = self.error.partition(":")[0] or self.how
        kind += f" ({self.shortage.kind})" if self.shortage and self.shortage.kind else ""
        return " ".join(filter(None, (f"rank {self.rank}:" * (self.rank >= 0), kind, where(self.place))))

    @property
    def how(self) -> str:
        if self.error:
            return self.error
        if self.oom is not None:
            return MEMORY[self.oom]
        if self.exit_code is not None and self.exit_code < 0:
            return f"it was ended by the signal {SIGNALS.get(-self.exit_code, str(-self.exit_code))}"
        if self.exit_code:
            return f"it ended with exit status {self.exit_code}"
        return "its process ended and told no error"


def first_death(run: Path, log: Path | None = None) -> Death | None:
    """The rank or program that failed first; None: none did, or nobody saw it. log: of the run, for exit codes and for
    what failed before it was observed."""
    ends = deaths(run, log)
    failed = [death for death in ends if not death.left]
    own = [death for death in failed if not death.victim]
    if own and own[0].is_certain:
        return _ran_out(run, own[0]._replace(held=_held(run, own[0], log)))
    logged = last_logged(log)
    if logged is not None and not logged.victim:
        return logged
    return own[0] if own else _first_victim(run, ends, logged)


def _first_victim(run: Path, ends: list[Death], logged: Death | None) -> Death | None:
    """The cause where no rank failed by itself. logged: a rank that lost its connection, by the log. A rank that was
    stopped on request is the last to be named."""
    failed = [death for death in ends if not death.left]
    broken = next((death for death in failed if death.exit_code != _STOPPED or death.error), None)
    if broken is None:
        return logged or next(iter(failed), None)
    if lost := _lost(run, broken.step):
        return lost
    return next((death for death in ends if death.left and death.unix_ns < broken.unix_ns), broken)


def certain_death(ends: list[Death]) -> Death | None:
    """Of these the first that failed without doubt, by itself if there is one."""
    failed = [death for death in ends if death.is_certain and not death.left]
    return next((death for death in failed if not death.victim), next(iter(failed), None))


def deaths(run: Path, log: Path | None = None) -> list[Death]:
    """The ends of all ranks' processes that were seen, the first one first, of the last start of the training. log: as
    above."""
    return _deaths(run, log, of_last=True)


def restarted(run: Path) -> str:
    """A sentence on why the training was started again, in place of processes that had failed; empty if it was not."""
    first = certain_death(_deaths(run, None, of_last=False))
    return first.sentence if first is not None else ""


def _deaths(run: Path, log: Path | None, *, of_last: bool) -> list[Death]:
    """of_last: those of the last start of the training; else those of the starts before."""
    codes, of_nodes = exit_codes(log), _codes_of_nodes(run)
    ended = [(line, node) for line, node, is_last in _ended(run) if is_last is of_last]
    last = max((line.step for line, _ in ended if line.step is not None), default=None)
    found = [_death(line, codes.get(line.pid, of_nodes.get(node)), last) for line, node in ended]
    return sorted(found, key=lambda death: death.unix_ns)


def _ended(run: Path) -> list[tuple[GoneLine, int | None, bool]]:
    """The ends of processes, with the number of the node, and whether no later process took its place."""
    begun: dict[int, RankHeader] = {}
    gone: list[tuple[GoneLine, int | None]] = []
    for path in node_files(run):
        node = None
        with suppress(OSError, BoundedReadError):
            for line in both_ends(path):
                if isinstance(line, NodeLine):
                    node = line.node
                elif isinstance(line, RankHeader):
                    begun[line.rank] = max(line, begun.get(line.rank, line), key=lambda header: header.unix_ns)
                elif isinstance(line, GoneLine):
                    gone.append((line, node))
    last = max((line.attempt or 0 for line in begun.values()), default=0)
    return [(line, node, _is_last(line, begun.get(line.rank), last)) for line, node in gone]


def _is_last(line: GoneLine, newest: RankHeader | None, attempt: int) -> bool:
    replaced = newest is not None and newest.pid not in (None, line.pid) and newest.unix_ns > line.unix_ns
    return not replaced and (line.attempt or 0) >= attempt


def _codes_of_nodes(run: Path) -> dict[int | None, int]:
    """Of each node whose commands were ended by a signal, its number, negative."""
    known = (NODE_STATUS.as_json.known(path) or {} for path in NODE_STATUS.paths(run))
    ends = [(node.get("node"), node.get("exit")) for node in known]
    return {node: 128 - code for node, code in ends if isinstance(code, int) and 128 < code < 128 + signal.NSIG}


def last_logged(log: Path | None) -> Death | None:
    """The last error of the log, of whose program the observer knows nothing; one of a rank that lost its connection
    only if there is no other."""
    found = [_of_log(error) for error in errors_of(log)] if log is not None else []
    return next(iter([death for death in reversed(found) if not death.victim] or reversed(found)), None)


def _of_log(error: LoggedError) -> Death:
    victim = bool(_VICTIM.search(error.text)) and not _TAKEN.search(error.text)
    return Death(
        error.rank, 0, 0, None, error.text, place=error.place, victim=victim, told=error.told * (error.rank < 0)
    )


def _ran_out(run: Path, death: Death) -> Death:
    """The death with what used up the memory, if it was for lack of it; its error then says how much it asked for."""
    is_killed = death.exit_code == _KILLED and not death.error
    if not (death.oom or is_killed or _OF_MEMORY.search(death.error)):
        return death
    own, ranks = read_beside(run, death.rank)
    found = of_device(death.error, own.on_device)
    if found is None:
        certain, last_bytes = death.oom is not None, death.last_bytes
        found = of_host(own.host_limit, ranks, death.beside, death.error, certain=certain, last_bytes=last_bytes)
    if found is None:
        return death
    error = f"{death.error.partition(':')[0]}: {found.asked}" if found.asked else death.error
    # Of one that was killed, the last heartbeat may be older than its last step.
    recorded = own.on_host[-1].step + 1 if own.on_host and not death.error else 0
    return death._replace(error=error, shortage=found, step=max(recorded, death.step or 0))


def _held(run: Path, death: Death, log: Path | None) -> str:
    """What is told with an error: who held the memory when an allocation failed, if the run has snapshots of it; of a
    program that left by itself, what the log says before."""
    if death.error.startswith(EXITS):
        logged = last_logged(log)
        return f"; the last error in its log: {logged.error}" if logged is not None else ""
    if "memory" not in death.error.lower():
        return ""
    with suppress(UnreadFileError, KeyError, TypeError, AttributeError):
        failure = MEMORY_SNAPSHOTS.as_json.read(MEMORY_SNAPSHOTS.path(run, death.rank))["failure"]
        held, module, operator = failure["bytes"], failure.get("module"), failure.get("operator")
        by = f"; {cut(printable(f'{module} asked for it in {operator}'), MOST_TOLD)}" if module and operator else ""
        parts = sorted(((size, name) for name, size in held.items() if size > 0), reverse=True)
        named = ", ".join(f"{name} {amount(size)}" for size, name in parts[:_MOST_HELD])
        return by + (f"; tensors held {amount(sum(held.values()))} then: {named}" if parts else "")
    return ""


def _lost(run: Path, step: int | None) -> Death | None:
    """A node that fell silent, of which all ranks that were seen to fail may be victims."""
    silent = silent_nodes(run, SILENT_S)
    if not silent:
        return None
    first = min(silent, key=lambda node: node.since_ns)
    told = f"{who_is_silent(silent)}, and the other ranks lost their connection to it"
    return Death(first.ranks[0], pid=0, unix_ns=first.since_ns, step=step, told=told)


def _death(line: GoneLine, code: int | None, last: int | None) -> Death:
    error = line.error or Error()
    text = f"{error.type}: {error.message}" if error.message else error.type
    if error.type in ("sys.exit", "os._exit"):
        text = f"{error.type}({error.message})"
    is_killed = bool(WORKER_KILLED.search(text)) or (code in (None, _KILLED) and not line.error)
    return Death(
        rank=line.rank,
        pid=line.pid,
        unix_ns=error.unix_ns or line.unix_ns,
        # Without an error of Python's its last heartbeat may be older than its end; the others came as far as it did.
        step=line.step if error.message and line.step is not None else last,
        error=text,
        oom=line.oom if line.oom in MEMORY and is_killed else None,
        place=error.place if line.error else line.place,
        seen=not line.error,
        # A rank that is told to end ends by the signal TERM.
        victim=bool(_VICTIM.search(text)) or (not line.error and code == _STOPPED),
        exit_code=code,
        left=line.ended or text == "os._exit(0)",
        last_bytes=line.host_bytes,
        beside=line.beside_bytes,
    )


def exit_codes(log: Path | None) -> dict[int, int]:
    """By process, as the launcher wrote them into the log."""
    found: dict[int, int] = {}
    if log is not None:
        text = ERR.end(log, LOG_BYTES)
        for pattern in _EXITS:
            found.update({int(pid): int(code) for code, pid in pattern.findall(text)})
    return found

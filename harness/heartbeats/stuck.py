"""Whether a run is stuck: who is stuck where, who waits for whom, since when. From the evidence of all its nodes.

A rank that waits in a collective waits for another rank; the cause is a rank that does not, or that ranks wait in
different collectives. Slow but alive is not stuck: see `threshold_s`; before a step has ended, preparing.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from harness.common.display.text import ranks_named, where
from harness.common.paths import COMMAND
from harness.common.run_folder.heartbeats import LEAST_S, TIMES_USUAL, Evidence
from harness.heartbeats.hang import FOR_LOCK, LOADS, Hang, Wait, place_of, waits_for_ranks
from harness.heartbeats.lines import ProgramLine
from harness.heartbeats.preparing import UNKNOWN_S, at_work
from harness.heartbeats.silent_nodes import NodeEvidence, who_is_silent

SLOW = 3  # times longer, where a rank may only be slow: it waits for its loader, compiles, saves
COMPUTING_S = 60.0  # without progress, for a rank that computes in code that is not observed
RECEIVING_S = 600.0  # the same, for a rank that receives what arrives slowly, such as a download
LONGEST_S = 30.0  # a step as long as this is not expected again
SAVES = ("torch/serialization.py", "safetensors/", "torch/distributed/checkpoint/", "shutil.py")
COMPILES = ("torch/_dynamo/", "torch/_inductor/", "torch/utils/cpp_extension.py", "triton/")


ADVICE = {
    "sleeps": "that line sleeps: give it an end, or let all ranks reach it",
    "computes": "that line computes without an end, or for long: print how far it is, or let all ranks reach it",
    "lock": "a thread holds the lock that this rank waits for: the other threads' stacks show which",
    "file": "nobody writes to what it reads: look who should",
    "socket": "the other end of the connection sends nothing: give the call a timeout",
    "child": "the program that it has started does not end: look at its output, and give the call a timeout",
    "stopped": "somebody stopped the process (SIGSTOP, a debugger): kill -CONT continues it",
    "disk": "the file system does not answer: tell the operators the node and the path",
    "worker": "a worker of its data loader hangs: run with --dataloader-workers 0, and the line shows itself",
    "worker died": "a worker of its data loader has died, often for lack of memory in /dev/shm: use fewer workers",
    "gone": "its process has ended and nobody stopped the others: look at its last lines in the log",
    "node gone": "its node does not answer: tell the operators, and start the run again without it",
    "left early": "it had fewer batches than the others: give every rank as many, as with a DistributedSampler",
    "other collective": "all ranks of a group must make the same collectives in the same order: look for an `if rank`",
    "other size": "all ranks of a group must give tensors of the same size",
    "order": "two groups are used in opposite order: use them in the same order on all ranks",
    "group": "every rank calls new_group for every group, in the same order, also for those that it is not in",
    "no partner": "every send needs its receive: compare the order of both ranks' messages",
    "meeting": "set MASTER_ADDR and MASTER_PORT to the same values for all ranks: the host of rank 0, and a free port",
    "network": "all ranks are in the same collective: look at the network between their nodes with "
    f"{COMMAND} -e 0 --health",
    "own code": "look at that line",
}
IN_COLLECTIVE = ("group", "other collective", "other size", "order", "no partner", "meeting", "network")
"""The causes for which all ranks wait in collectives or for messages."""

_AT_THE_END = ("_shutdown", "_python_exit", "_exit_function")  # of threading, concurrent.futures, multiprocessing

_CALLS = {
    "sleeps": ("sleeping",),
    "lock": (FOR_LOCK,),
    "socket": ("receiving", "accepting", "connecting", "sending", "polling"),
    "file": ("reading", "opening", "writing", "flushing", "locking"),
}


class _Scene(NamedTuple):
    """All ranks that are there, and what those of them that wait for others wait in."""

    ranks: Sequence[Evidence]
    waits: dict[int, Wait]

    def stuck(
        self,
        kind: str,
        causing: Sequence[int],
        said: str,
        program_line: ProgramLine | None = None,
        waiting: Sequence[int] | None = None,
    ) -> Hang:
        """The finding. said: what the causing ranks do; waiting: default: all that wait and do not cause it."""
        waiting = [rank for rank in self.waits if rank not in causing] if waiting is None else waiting
        step = max(rank.step for rank in self.ranks)  # a stopped rank's last heartbeat may be older than its step
        at = f"in step {step}" if step else "before the first step has ended"
        return Hang(
            kind=kind,
            ranks=tuple(sorted(causing)),
            waiting=tuple(sorted(waiting)),
            step=step,
            since_ns=max(rank.since_ns for rank in self.ranks),
            place=program_line,
            sentence=f"{at}: {'; '.join([*self._waiting(waiting), said])}",
            advice=ADVICE[kind],
            lines=tuple(map(self._line, sorted(self.ranks, key=lambda each: each.rank))),
        )

    def _waiting(self, waiting: Sequence[int]) -> list[str]:
        by_place: dict[str, list[int]] = {}
        for rank in sorted(waiting):
            by_place.setdefault(_shown(self.waits[rank]), []).append(rank)
        return [f"{ranks_named(ranks)} wait{'s' * (len(ranks) == 1)} in {at}" for at, ranks in by_place.items()]

    def _line(self, rank: Evidence) -> str:
        if rank.rank in self.waits:
            return f"rank {rank.rank}: waits in {_shown(self.waits[rank.rank], with_sizes=True)}"
        if _has_left(rank):
            return f"rank {rank.rank}: its program has ended, and its process is still there"
        return f"rank {rank.rank}: {state_of(rank, cause_of(rank))}"


def judge(node_evidence: NodeEvidence) -> Hang | None:
    """The run's state of being stuck; None: it is alive, or may be."""
    ranks = node_evidence.ranks
    if node_evidence.alive or not ranks:
        return None
    scene = _Scene(ranks, {rank.rank: wait for rank in ranks if (wait := waits_for_ranks(rank))})
    idle_s = min(node_evidence.now_ns - rank.since_ns for rank in ranks) / 1e9
    usual_s = max(rank.usual_ns for rank in ranks) / 1e9
    others = [rank for rank in ranks if rank.rank not in scene.waits]
    if idle_s < max((threshold_s(rank, usual_s) for rank in others), default=threshold_s(ranks[0], usual_s)):
        return None
    if not usual_s and at_work(node_evidence):
        return None
    if missing := _missing(node_evidence, scene):
        return missing
    return _in_own_code(others, scene) if others else _among_collectives(scene)


def threshold_s(rank: Evidence, usual_s: float) -> float:
    """How long a rank that does not wait for others may make no progress before it counts as stuck."""
    if not usual_s:
        return UNKNOWN_S
    least_s = max(LEAST_S, TIMES_USUAL * usual_s, min(1.5 * rank.longest_ns / 1e9, LONGEST_S))
    if rank.quiet_ns / 1e9 < least_s:  # it computes, reads or writes
        receives = rank.waits_in.startswith(_CALLS["socket"]) and not rank.computes
        return max(RECEIVING_S if receives else COMPUTING_S, SLOW * least_s)
    files = [frame[0] for frame in rank.threads.get("main", [])]
    if any(part in file for file in files for part in (*SAVES, *COMPILES)) or rank.state == "D":
        return SLOW * least_s
    if any(LOADS in file for file in files) and not any(child["state"] in "XZTt" for child in rank.children):
        return SLOW * least_s
    return least_s


def _missing(node_evidence: NodeEvidence, scene: _Scene) -> Hang | None:
    """Ranks that are not there: on a silent node, or gone."""
    if node_evidence.silent:
        ranks = [rank for node in node_evidence.silent for rank in node.ranks]
        return scene.stuck("node gone", ranks, who_is_silent(node_evidence.silent))
    died = [rank for rank, over in node_evidence.gone.items() if not over]
    if died and scene.waits:
        return scene.stuck(
            "gone", died, f"{'each process' if died[1:] else 'the process'} of {ranks_named(died)} has ended"
        )
    left = [rank.rank for rank in scene.ranks if _has_left(rank)] + [
        rank for rank, over in node_evidence.gone.items() if over
    ]
    if left and scene.waits:
        return scene.stuck("left early", left, f"{ranks_named(left)} {'have' if left[1:] else 'has'} left the training")
    return None


def _has_left(rank: Evidence) -> bool:
    """Whether its program has ended, and something keeps the process, as a thread that goes on."""
    return rank.ended or any(frame[2] in _AT_THE_END for frame in rank.threads.get("main", []))


def _in_own_code(others: list[Evidence], scene: _Scene) -> Hang:
    """Ranks that wait for no other rank: those with the same cause as the first that fell behind."""
    first = min(others, key=lambda rank: (rank.step, rank.since_ns))
    kind = cause_of(first)
    causing = [rank.rank for rank in others if cause_of(rank) == kind]
    said = f"{ranks_named(causing)} {'are' if causing[1:] else 'is'} {state_of(first, kind)}"
    return scene.stuck(kind, causing, said, place_of(first))


def cause_of(rank: Evidence) -> str:
    """Why a rank that waits for no other rank makes no progress: a key of ADVICE."""
    if rank.state in "Tt":
        return "stopped"
    frames = rank.threads.get("main", [])
    called = takewhile(lambda frame: not frame[3], frames)  # by the user's innermost line
    if any(LOADS in frame[0] for frame in called) and rank.children:
        dead = any(child["state"] in "XZ" for child in rank.children)
        return "worker died" if dead else "worker"
    if rank.state == "D":
        return "disk"
    return _by_call(rank, frames)


def _by_call(rank: Evidence, frames: Sequence[Sequence[Any]]) -> str:
    """By the call of the system that the main thread waits in."""
    call = rank.waits_in
    in_subprocess = any(frame[0].endswith("subprocess.py") for frame in frames)
    if call.startswith("waiting for a child") or (in_subprocess and rank.children):
        return "child"
    for kind, calls in _CALLS.items():
        if call.startswith(calls):
            return "socket" if kind == "file" and "socket" in call else kind
    return "computes" if rank.computes or rank.state == "R" else "own code"


def state_of(rank: Evidence, kind: str) -> str:
    """Where a rank is, as what follows "rank 1 is". Of one without a stack, whose Python cannot run, where it was seen
    last."""
    place, is_known = where(place_of(rank)), bool(rank.threads.get("main"))
    at = f"{'in' if is_known else 'last seen at'} {place}" if place else ""
    doing = {
        "stopped": "stopped (SIGSTOP)",
        "computes": "computing",
        "sleeps": "sleeping",
        "lock": "waiting for a lock",
    }.get(kind)
    if doing is None:
        waits = {
            "worker": f"waiting for a worker of its data loader{_of_worker(rank)}",
            "worker died": "waiting for a worker of its data loader, which has died",
            "child": f"waiting for {_child(rank)}",
        }.get(kind, rank.waits_in)
        return ", ".join(filter(None, [at, waits]))
    return (" " if is_known else ", ").join(filter(None, [doing, at]))


def _child(rank: Evidence) -> str:
    _, _, named = rank.waits_in.partition(", ")
    if not named and rank.children:
        child = rank.children[0]
        named = f"{child['program']} (pid {child['pid']})"
    return f"its child {named}" if named else "a child"


def _of_worker(rank: Evidence) -> str:
    for child in rank.children:
        if child["state"] in "Tt":
            return f" (pid {child['pid']}), which is stopped"
        if child["waits_in"] and not child["waits_in"].startswith((FOR_LOCK, "polling")):
            return f" (pid {child['pid']}), which is {child['waits_in']}"
    return ""


def _among_collectives(scene: _Scene) -> Hang:
    """All ranks wait for others: their collectives do not fit together."""
    waits = scene.waits
    if made := _alone_in_new_group(scene):
        return made
    messages = {rank: wait for rank, wait in waits.items() if wait.p2p}
    if messages:
        return _of_messages(messages, scene)
    if len({(wait.group, wait.members) for wait in waits.values()}) > 1:
        return _of_groups(scene)
    if apart := _apart_in_order(scene):
        return apart
    shown = _shown(next(iter(waits.values())))
    addresses = sorted({str(rank.call["meets"]["at"]) for rank in scene.ranks if rank.call and "meets" in rank.call})
    if len(addresses) > 1:
        said = f"the ranks are in {shown} at different addresses, {' and '.join(addresses)}"
        return scene.stuck("meeting", [], said, waiting=[])
    at = f" at {addresses[0]}" if addresses else ""
    return scene.stuck("network", [], f"all ranks are in {shown}{at}, and it does not end", waiting=[])


def _apart_in_order(scene: _Scene) -> Hang | None:
    """Ranks of one group are in different collectives, or have made different numbers of them."""
    waits = scene.waits
    if apart := _apart({rank: (wait.op, wait.sizes, wait.code_line) for rank, wait in waits.items()}):
        first, *others = (waits[ranks[0]] for ranks in apart)
        same_line = all((first.op, first.code_line) == (other.op, other.code_line) for other in others)
        return _of_different("other size" if same_line else "other collective", apart, scene)
    if apart := _apart({rank: wait.seq for rank, wait in waits.items()}):
        causing = _causing(apart)
        counts = "; ".join(f"{ranks_named(ranks)} made {waits[ranks[0]].seq} collectives" for ranks in apart)
        return scene.stuck("other collective", causing, counts, waits[causing[0]].code_line, waiting=[])
    return None


def _alone_in_new_group(scene: _Scene) -> Hang | None:
    waits = scene.waits
    made = [rank for rank, wait in waits.items() if wait.op == "new_group"]
    if not 0 < len(made) < len(waits):
        return None
    who = f"{ranks_named(made)} alone is" if len(made) == 1 else f"{ranks_named(made)} are"
    said = f"{who} in {_shown(waits[made[0]])}, which all ranks of the job must call"
    return scene.stuck("group", made, said, waits[made[0]].code_line)


def _of_messages(left_ns: dict[int, Wait], scene: _Scene) -> Hang:
    """Ranks wait for messages: the last of those that wait for each other."""
    rank, seen = min(left_ns), set[int]()
    while left_ns[rank].peer in left_ns and rank not in seen:
        seen.add(rank)
        rank = left_ns[rank].peer or 0
    wait = left_ns[rank]
    at = f" ({where(wait.code_line)})" if wait.code_line else ""
    said = f"rank {rank} waits to {'receive from' if 'recv' in wait.op else 'send to'} rank {wait.peer}{at}"
    if wait.peer in scene.waits:
        said += f", which waits in {_shown(scene.waits[wait.peer])}"
    return scene.stuck("no partner", [rank], said, wait.code_line, waiting=[])


def _of_groups(scene: _Scene) -> Hang:
    """Ranks wait in collectives of several groups: a circle, or one that the others do not make."""
    waits = scene.waits
    for rank, wait in sorted(waits.items()):
        for other, its in waits.items():
            if its.group != wait.group and other in wait.members and rank in its.members:
                said = f"rank {rank} waits in {_shown(wait)} of group {wait.group}, and rank {other} in "
                said += f"{_shown(its)} of group {its.group}: each waits for the other"
                return scene.stuck("order", [rank, other], said, wait.code_line, waiting=[])
    rank, wait = min(waits.items(), key=lambda each: len(each[1].members))
    said = f"rank {rank} waits in {_shown(wait)} of group {wait.group}"
    return scene.stuck("other collective", [rank], said, wait.code_line)


def _of_different(kind: str, apart: Sequence[Sequence[int]], scene: _Scene) -> Hang:
    """Ranks are in different collectives of one group. apart: those of each collective, the fewest first."""
    causing = _causing(apart)
    shown = [
        f"{ranks_named(ranks)} wait{'s' * (len(ranks) == 1)} in {_shown(scene.waits[ranks[0]], with_sizes=True)}"
        for ranks in apart
        if set(ranks) <= set(causing)
    ]
    return scene.stuck(kind, causing, "; ".join(shown), scene.waits[causing[0]].code_line)


def _apart(kinds: dict[int, Any]) -> list[list[int]]:
    """The ranks that do the same, the fewest first; none if all do the same."""
    counted: dict[Any, list[int]] = {}
    for rank, kind in sorted(kinds.items()):
        counted.setdefault(kind, []).append(rank)
    return sorted(counted.values(), key=len) if len(counted) > 1 else []


def _causing(apart: Sequence[Sequence[int]]) -> list[int]:
    """The ranks that are not with the most; all, where no collective has more ranks: who is wrong is not known."""
    most = apart[-1] if len(apart[-1]) > len(apart[-2]) else []
    return sorted(rank for ranks in apart if ranks is not most for rank in ranks)


def _shown(wait: Wait, with_sizes: bool = False) -> str:
    size = f" of {wait.sizes}" if with_sizes and wait.sizes else ""
    return f"{wait.op}{size} ({where(wait.code_line)})" if wait.code_line else f"{wait.op}{size}"

"""Heartbeats of a run: what a rank leaves in its node's memory, and the one file per node that the monitor makes of it.

`live/<node>.jsonl` in the run, appended to every PERIOD_S seconds; each line is an object with an `event`:

- `node`: the first line of a monitor: node, host, name, unix_ns.
- `rank`: a process has begun to train as a rank: rank, world, local, pid, attempt (how often torchrun had started the
  ranks before), steps (planned; null: not known), unix_ns; again when it has learnt how many steps are planned.
- `place`: id, file, line, function; before the first beat that names the id, and again after 32 KB.
- `beat`: unix_ns; `ranks`, a list of `Beat`s as lists; `samples` and `tokens`, of the node's ranks since the last one.
- `gone`: a rank's process is no more: rank, pid, attempt, step, place, unix_ns, `ended` (it had said that its training
  was over, at that time), `oom` (the kernel's count of processes killed for memory rose: "cgroup", "machine" or null),
  `error` (its type, message, place and unix_ns; null: it told none), `host_bytes` (its memory at its last sign of
  life), `beside_bytes` (what the other processes under its limit of memory had then, of its cgroup or its machine).
- `loss`: the first loss of a rank that is not finite: rank, step, loss, `weights` (whether those that gave it were
  finite; null: not known); again after 32 KB.
- `slept`: the monitor itself did not run from unix_ns on for ns, as when a job is suspended.
- `end`: the monitor has ended, as it was asked to.

`live/<node>.stuck.json` is written when no rank of the node has made progress for a while: `unix_ns`, `host`, `ranks`,
a list of `Evidence` as objects. It is gone when one has. `live/stuck.json` is the answer for the whole run.

Standard library only, Python 3.8: the observer reads this file too.
"""

from __future__ import annotations

import math
import string
from pathlib import Path
from typing import Any, NamedTuple

from harness.common.run_folder.job_parts import COMPILATION
from harness.common.run_folder.run_files import HANG

MEMORY = "HARNESS_HEARTBEATS"  # names the folder in the node's shared memory: one file per rank, gone with the job
PERIOD_S = 2.0  # between two lines of a node
SCHEMA = 1
PHASES = {
    "-": None, "d": "data", "f": "forward", "b": "backward", "o": "optimizer", "e": "evaluation", "c": COMPILATION,
}  # fmt: skip
LEAST_S = 10.0  # without progress, before a run may be called stuck
TIMES_USUAL = 10  # usual steps without progress, before that
RECENT = 20  # steps that count as recent
PYTHON_SIDE = "torch/distributed/distributed_c10d.py"
MESSAGES = ("send", "recv", "isend", "irecv", "batch_isend_irecv")
CALLS = (  # functions of torch.distributed that wait for other ranks
    *MESSAGES,
    *("all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "gather", "scatter"),
    *("reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "barrier", "monitored_barrier"),
    *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
    *("init_process_group", "new_group", "destroy_process_group"),
)
DIGITS = string.digits + string.ascii_letters + "-_"
STEPS_PER_E = 64 * 64 / math.log(1e10)  # 1 µs to 10,000 s in 4,096 steps of 0.56 %


def live_folder(run: Path) -> Path:
    """Where a run's heartbeats are."""
    return HANG.folder(run)


class Beat(NamedTuple):
    """One rank at one moment, 100 bytes as JSON.

    step: the number of the step it is in, from 0. idle_ms: since its last progress: a step, phase or collective began,
    or ended. quiet_ms: since its last sign of life of any kind, also CPU time, input or output. slot: the id of the
    user's line that its main thread is in; -1: none. use_percent: of its GPU, else of a core by its process and those
    below it.
    loss: None: not known; a number as text, so that "nan" and "inf" are possible. The steps that ended since the beat
    before: they begin with step `first` (-1: none ended), `per` of them share an entry (their mean), `steps` has the
    entries' durations and `own_phase` their time without waiting for other ranks (0: not known), both as `encode`
    writes them.
    """

    rank: int
    step: int
    phase: str  # a key of PHASES
    idle_ms: int
    quiet_ms: int
    slot: int
    memory_mib: int
    use_percent: int | None
    loss: str | None
    first: int
    per: int
    steps: str
    own_phase: str


class Evidence(NamedTuple):
    """A rank that makes no progress: as `live/<node>.stuck.json` has it.

    since_ns: unix time of its last progress. quiet_ns: since its last sign of life of any kind. usual_ns: its median
    step; 0: it has ended none. longest_ns: its longest step. state: of its main thread in /proc, as
    "S". waits_in: the system call and what it is about, as "reading the FIFO /tmp/x"; empty: not known. threads: name
    -> frames, the innermost first, each [file, line, function, is the user's]; the main thread is "main"; written by
    the rank itself, so empty if its Python cannot run.
    collectives: those that have begun and not ended: {op, group, seq, sizes, ranks, line, p2p}. groups: by name: {last:
    the number of the last collective that it began, done: of the last one that ended, ranks}. call: the function of
    torch.distributed that the main thread is in: {op, p2p, peer, sizes}. children: the processes below it: {pid,
    program, state, computes, waits_in}.
    """

    rank: int
    pid: int
    since_ns: int
    quiet_ns: int
    step: int
    place: list[Any] | None
    usual_ns: int
    longest_ns: int
    state: str
    waits_in: str
    computes: bool
    threads: dict[str, list[list[Any]]]
    collectives: list[dict[str, Any]]
    groups: dict[str, dict[str, Any]]
    children: list[dict[str, Any]]
    call: dict[str, Any] | None
    gone: bool
    ended: bool


def encode(microseconds: list[float]) -> str:
    """Durations as two characters each, to 0.3 %; harness/heartbeats/model.py decodes them.

    >>> encode([1, 1000, 250_000])
    '00jdyz'
    """
    return "".join(map(_encoded, microseconds))


def _encoded(us: float) -> str:
    number = min(round(STEPS_PER_E * math.log(us)), 4095) if us > 1 else 0
    return DIGITS[number >> 6] + DIGITS[number & 63]

"""Hangs and deaths of one rank of a real training: who is named, and how the run ends with --on-hang stop."""

from __future__ import annotations

from tests.faults.fault import BOTH, LOCAL, Fault, Place, Setting, nothing
from tests.faults.in_ranks import LOGS, METRICS

HANGS = {
    "file": ("it reads a file that nobody writes", "rank 1 is in … reading the FIFO"),
    "stopped": ("it is stopped and never continued", "rank 1 is stopped (SIGSTOP)"),
}


def _setting(*words: str) -> Setting:
    """Two ranks, one on each node; here both on this machine."""
    return Setting(training="real", nodes=2, steps=9999, words=words)


def _hang(kind: str, what: str, tells: str) -> Fault:
    return Fault(
        name=f"hang-{kind}",
        what=f"one of two ranks hangs, because {what}, with `--on-hang stop`",
        inject=nothing,
        where=BOTH,
        state="stuck",
        slurm="FAILED",
        tells=tells,
        kept="metrics of every step so far, and all stacks",
        keeps=(METRICS, "live/stuck.json"),
        then="slurm.sh status RUN says who is stuck where",
        setting=_setting("--on-hang", "stop", "--fault", f"hang,kind={kind},rank=1,step=6"),
    )


def _death(name: str, kind: str, what: str, tells: str, where: tuple[Place, ...]) -> Fault:
    return Fault(
        name=name,
        what=what,
        inject=nothing,
        where=where,
        state="failed",
        tells=tells,
        kept="metrics of every step so far",
        keeps=(METRICS, "status.json"),
        then=LOGS,
        setting=_setting("--fault", f"crash,kind={kind},rank=1,step=6"),
    )


FAULTS = (
    *(_hang(kind, what, tells) for kind, (what, tells) in HANGS.items()),
    _death(
        "died-first",
        "exception",
        "one of two ranks raises an exception, and the other loses its connection",
        "rank 1 failed first, in step 6: RuntimeError",
        BOTH,
    ),
    _death(
        "segv-first",
        "segv",
        "a library crashes in one of two ranks (`SEGV`), and the other loses its connection",
        "rank 1 failed first, in step …: Segmentation fault",
        LOCAL,
    ),
    Fault(
        name="loss-nan",
        what="the loss of one of two ranks becomes NaN",
        inject=nothing,
        where=("local",),
        state="completed",
        exit_code=0,
        tells="the loss is NaN since step … on rank",
        kept="everything",
        keeps=(METRICS, "status.json"),
        then="slurm.sh status RUN says since which step",
        setting=Setting(training="real", nodes=2, steps=6, words=("--fault", "nan,rank=1,step=4")),
    ),
)

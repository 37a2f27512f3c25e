"""The faults that `--fault NAME[,key=value…]` injects into a training: each declared once, with what it needs.

The command line, its refusals, the help, `slurm.sh help faults`, docs/faults.md and the training scripts derive from
`FAULTS`. exercises/utils/faults/inject.py lists the injectors. Knows no framework.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.common.faults.kinds import ALSO_OWN, LARGEST_RANK, ONCE, FaultCondition, FaultKey, FaultKind, InMystery

ONE_OF_THEM = FaultKey("rank", "the rank that has the fault", "0", most=LARGEST_RANK)
EVERY = FaultKey("every", "K: every K-th step has the fault", "1", least=1, most=1_000_000)
PHASES = ("forward", "backward", "optimizer")
ONE_REPLICA = (
    "the model has one replica, so no gradients are exchanged: ask for more ranks (-g, -n) or a smaller --tp or --pp"
)
NO_CHECKPOINT = "the training writes no checkpoints: add --checkpoint-every 5"
BEFORE = "0: the line is written before the fault acts"
HANGS_ALONE = {
    "sleep": "it sleeps in its own code",
    "loop": "it computes in Python without end",
    "lock": "it waits for a lock that no thread releases",
    "file": "it reads a FIFO that nobody writes",
    "socket": "it reads a socket to which nobody sends",
    "child": "it waits for the end of a process that it started",
    "stopped": "its process is stopped (SIGSTOP) and never continued",
    "worker-hangs": "a worker of a data loader sleeps, and the rank waits for its batch",
    "worker-stopped": "a worker of a data loader is stopped (SIGSTOP), and the rank waits for its batch",
}
HANGS_TOGETHER = {
    "other-collective": "it calls a broadcast, and the other ranks an all-reduce",
    "other-size": "all ranks call an all-reduce, and its tensor is twice as large",
    "order": "all ranks call an all-reduce in each of two process groups, and it in the opposite order",
}
"""Kinds of `hang` with which every rank acts."""
HANGS_IN_COLLECTIVE = {
    "missing-collective": "it calls a barrier, and the other ranks do not",
    **HANGS_TOGETHER,
    "left-early": "its script ends with status 0, but its process stays, because a thread of it waits",
    "no-receive": "it receives from a rank that does not send",
}
CRASHES = {
    "exception": "its code raises RuntimeError",
    "segv": "it reads at the address 0 (SIGSEGV)",
    "abort": "it aborts (SIGABRT)",
    "kill": "it is killed (SIGKILL), as by a kernel without memory",
    "exit": "its script exits with status 3",
    "gone": "its process ends at once with status 0 (os._exit)",
}
NAN = {
    "loss": "what the model returns, and so the loss",
    "gradient": "the gradient of what the model returns, and so the weights of the next step",
}
ONE_RANK = "a single rank waits for no other rank: ask for more with -g or -n"
IN_TURN = "the stages of a pipeline begin forward in turn, and so cannot meet there: drop --pp"


def _ms(meaning: str) -> FaultKey:
    return FaultKey("ms", meaning, least=0.001, most=60_000, whole=False)


def _s(meaning: str) -> FaultKey:
    return FaultKey("s", meaning, least=0.01, most=3600, whole=False)


def _rank(default: str | None = "all") -> FaultKey:
    return FaultKey("rank", "the rank that has the fault", default, most=LARGEST_RANK, words=("all",))


def _step(meaning: str = "the step in which it happens; the first is 0") -> FaultKey:
    return FaultKey("step", meaning, "5", most=1_000_000)


def _words(name: str, meaning: str, default: str, explained: Mapping[str, str]) -> FaultKey:
    return FaultKey(name, meaning, default, words=tuple(explained), explained=tuple(explained.items()))


_TIMED = (
    FaultKind(
        "data-stall",
        "the step's first batch comes late: data loading sleeps",
        (_ms("how long data loading sleeps"), _rank(), EVERY),
        "the sleep",
        mystery=InMystery(),
        exercises=ALSO_OWN,
    ),
    FaultKind(
        "host-stall",
        "the host thread sleeps inside a phase: it launches nothing",
        (
            _ms("how long it sleeps"),
            FaultKey("in", "the phase; a step without this phase is not changed", "forward", words=PHASES),
            _rank(),
            EVERY,
        ),
        "the sleep",
        mystery=InMystery(),
        exercises=ALSO_OWN,
    ),
    FaultKind(
        "extra-compute",
        "the step's first forward does additional matrix products",
        (_ms("their duration; on a GPU approximately"), _rank(), EVERY),
        "the duration of the products on the device",
        mystery=InMystery(one_rank=True),
    ),
    FaultKind(
        "pause",
        "the whole process is stopped and continued (SIGSTOP, SIGCONT), at a different moment of each step",
        (_ms("how long it is stopped"), _rank(), EVERY),
        "the time between the two signals",
        mystery=InMystery(),
        exercises=ALSO_OWN,
    ),
    FaultKind(
        "checkpoint",
        "the model's state is written into a file after the optimizer's step; the training waits for it",
        (_rank("0"), EVERY),
        "the writing",
    ),
    FaultKind(
        "gc",
        "Python's garbage collector goes through a large heap in forward: about 100 ms for the objects of "
        "PyTorch and 20 ms for each 100 thousand more, on a server of 2023",
        (FaultKey("objects", "additional objects on the heap, in thousands", "500", most=100_000), _rank(), EVERY),
        "the collecting",
        exercises=ALSO_OWN,
    ),
    FaultKind(
        "noisy-neighbour",
        "other processes compute on the cores of a rank, at the same priority; they end with the training",
        (FaultKey("procs", "number of processes; each uses one core at a time", "1", least=1, most=1024), _rank()),
        "the time for which the training thread waited for a core",
        exercises=ALSO_OWN,
    ),
    FaultKind(
        "pinned-together",
        "all ranks of a node are bound to one core",
        (),
        "the time for which the training thread waited for the core",
        exercises=ALSO_OWN,
    ),
    FaultKind(
        "slow-link",
        "each message of a rank is delayed: by the latency, plus its bytes divided by the bandwidth",
        (
            _ms("the latency"),
            FaultKey("mbps", "the bandwidth in 10⁶ bit/s", "unlimited", 0.001, 1e7, whole=False, words=("unlimited",)),
            _rank(None),
        ),
        "the delays of all messages of the step",
        needs=(
            FaultCondition(
                lambda setup: setup.world_size != 1, "a single rank sends no messages: ask for more with -g or -n"
            ),
        ),
        exercises=ALSO_OWN,
    ),
)
_SETTINGS = (
    FaultKind(
        "sync",
        "the host waits for the GPU after each layer's forward: nothing is launched ahead",
        recorded="the waiting",
        devices=("cuda",),
    ),
    FaultKind(
        "small-buckets",
        "gradients are sent in many small messages: the buckets of DDP, DeepSpeed and Megatron get this size",
        (
            FaultKey(
                "kb", "the size of a bucket in KiB; a larger parameter has its own bucket", least=1, most=1_000_000
            ),
        ),
        needs=(
            FaultCondition(lambda setup: setup.replicas != 1, ONE_REPLICA),
            FaultCondition(lambda setup: setup.buckets, "FSDP has no buckets: it communicates layer by layer"),
        ),
    ),
    FaultKind(
        "pageable",
        "batches are not pinned, and the host waits for each copy to the GPU",
        exercises=(1, 2),
        devices=("cuda",),
    ),
    FaultKind(
        "tiny-kernels",
        "each micro-batch is computed sample by sample: many small operators give the same result",
        exercises=(1, 2),
        needs=(
            FaultCondition(
                lambda setup: setup.micro_batch_size != 1, "a single sample cannot be split: use --micro-batch-size 2"
            ),
        ),
    ),
    FaultKind(
        "long-sequences",
        "the samples of one rank are longer than those of the others",
        (FaultKey("times", "how many times as long", "2", least=2, most=64), _rank(None)),
        exercises=(1, 2),
    ),
    FaultKind(
        "uneven-stages",
        "the first or last pipeline stage has more layers, and each other stage has fewer",
        (
            FaultKey("stage", "the stage that gets them", "last", words=("first", "last")),
            FaultKey("layers", "how many layers fewer each other stage has", "1", least=1, most=1000),
        ),
        exercises=(3,),
        needs=(
            FaultCondition(lambda setup: setup.stages > 1, "a pipeline of one stage cannot be uneven: add --pp 2"),
            FaultCondition(
                lambda setup: setup.virtual_stages == 1, "interleaved stages have equally many layers: drop --vpp"
            ),
        ),
    ),
)
_BESIDE_STEPS = (
    FaultKind(
        "slow-import",
        "a package of 200 small modules is imported from a slow file system, which delays the opening of each file",
        (_s("how long all delays together take"), _rank()),
        "the import",
        exercises=ALSO_OWN,
        per=ONCE,
    ),
    FaultKind(
        "slow-weights",
        "the model's weights come slowly: each tensor of them takes longer to be made or loaded",
        (_ms("how long each tensor takes"), _rank()),
        "the delays of all tensors",
        exercises=ALSO_OWN,
        per=ONCE,
    ),
    FaultKind(
        "slow-checkpoint",
        "the training's own checkpoints are slow to write, on a rank for which the others wait",
        (_ms("how long each file of a checkpoint takes"), _rank("0")),
        "the delay",
        needs=(FaultCondition(lambda setup: setup.checkpoints, NO_CHECKPOINT),),
        exercises=ALSO_OWN,
        per="file",
    ),
)
_ENDINGS = (
    FaultKind(
        "hang",
        "a rank makes no progress any more, and the others wait for it",
        (_words("kind", "what it does", "sleep", HANGS_ALONE | HANGS_IN_COLLECTIVE), _step(), ONE_OF_THEM),
        BEFORE,
        needs=(
            FaultCondition(lambda setup: setup.world_size != 1, ONE_RANK, tuple(HANGS_IN_COLLECTIVE)),
            FaultCondition(lambda setup: setup.stages == 1, IN_TURN, tuple(HANGS_TOGETHER)),
        ),
        exercises=ALSO_OWN,
        together=tuple(HANGS_TOGETHER),
        ends=True,
    ),
    FaultKind(
        "crash",
        "the process of a rank ends",
        (_words("kind", "how it ends", "exception", CRASHES), _step(), _rank("0")),
        BEFORE,
        exercises=ALSO_OWN,
        ends=True,
    ),
    FaultKind(
        "oom",
        "a rank allocates memory of the host until there is no more: MemoryError under a limit of its address space; "
        "the machine loses no memory",
        (_step(), _rank("0")),
        BEFORE,
        exercises=ALSO_OWN,
        ends=True,
    ),
    FaultKind(
        "nan",
        "the loss or the gradient of a rank is NaN",
        (
            _words("in", "what is NaN", "loss", NAN),
            _step("the step from which on it happens; the first is 0"),
            _rank("0"),
        ),
        BEFORE,
        exercises=ALSO_OWN,
        ends=True,
    ),
)
FAULTS: dict[str, FaultKind] = {kind.name: kind for kind in (*_TIMED, *_SETTINGS, *_BESIDE_STEPS, *_ENDINGS)}

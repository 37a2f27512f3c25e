"""The causes of lost time: one entry each, with how it is found, what it says of the ranks, and what to try."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from harness.analysis import device_time
from harness.analysis.process.host_calls import HostCause as IdleTime
from harness.analysis.summary import Summary
from harness.common.paths import COMMAND
from harness.replay.attribute import device_causes as device
from harness.replay.attribute import host_causes as host
from harness.replay.attribute import rank_causes as rank
from harness.replay.attribute.suspect import Cause, Suspect
from harness.replay.graph.graph import TimeCategory
from harness.replay.measure.context import ReplayContext

Rule = Callable[[ReplayContext], Iterator[Suspect]]


@dataclass(frozen=True)
class WithoutCause:
    """The change "no-NAME" of a cause: the job without all that its rule suspects. meaning: in words; the others as in
    WhatIfKind."""

    meaning: str
    bound: bool = False
    same_work: bool = True
    operators: bool = False


@dataclass(frozen=True)
class CauseOfLoss:
    """label: in tables. doing: what costs time, the subject of a sentence; `{phase}` is the place, as in " in forward".

    advice: what to try if no option of the run helps; it may have `{phase}` and `{who}`. find: the rule that suspects
    it; a rule may suspect several causes. share: where no replay is possible, its share of the devices' time, None
    where it is not known; part: what that part is called, if not by its label. of_host: its loss is at most the time in
    which the devices had no work; on_gpus: so on GPUs only. purpose: its name in an experiment's `on_purpose`.
    more_work: whether larger micro-batches help. own_cores: whether it helps to bind a rank to its own cores, if there
    are enough. any_program: the advice for a program that is not PyTorch, if it is another.

    categories: of the time at whose lines the loss is; empty: it is at no line; None: of its slots, or of all of the
    host's time. of_messages: it is exposed communication. beyond: of a general cause, the causes that are a part of it,
    beyond which it counts, empty: all departures; None: it is not general. without: its change, if it has one of its
    name.
    """

    cause: Cause
    find: Rule
    label: str
    doing: str
    advice: str
    share: Callable[[Summary], float | None] | None = None
    part: str = ""
    part_on_cpu: str = ""
    of_host: bool = False
    on_gpus: bool = False
    purpose: Literal["communication", "data"] | None = None
    more_work: bool = False
    own_cores: bool = False
    any_program: str = ""
    categories: tuple[TimeCategory, ...] | None = None
    of_messages: bool = False
    beyond: tuple[Cause, ...] | None = None
    without: WithoutCause | None = None


_ENTRIES = (
    CauseOfLoss(
        Cause.DATA_STALL,
        host.data,
        "waiting for data",
        "waiting for data",
        "more DataLoader workers, pinned memory and prefetching (num_workers, pin_memory, prefetch_factor)",
        share=device.data_share,
        of_host=True,
        purpose="data",
        any_program="load data ahead, in other threads or processes, into pinned memory",
    ),
    CauseOfLoss(
        Cause.BETWEEN_STEPS,
        host.activities,
        "time between the steps",
        "waiting between the steps",
        "load data with workers (num_workers, prefetch_factor) if the loop loads it between the steps",
        of_host=True,
        any_program="load data ahead, in other threads or processes, if the loop loads it between the steps",
    ),
    CauseOfLoss(
        Cause.HOST_STALL,
        host.host,
        "host stall",
        "a stall of the host{phase}",
        "do this work of the host less often, in another process, or while the device has work",
        of_host=True,
    ),
    CauseOfLoss(
        Cause.PAUSE,
        host.stopped,
        "stopped process",
        "being stopped and continued (SIGSTOP, SIGCONT)",
        "find who stops the processes of {who}: a scheduler that suspends jobs, a debugger, a user",
        of_host=True,
        on_gpus=True,
        categories=(),
        without=WithoutCause("no process that is stopped or falls behind", operators=True),
    ),
    CauseOfLoss(
        Cause.INTERRUPTED,
        host.stopped,
        "host falls behind",
        "a host that falls behind at changing places, also inside operators,",
        "see whether other threads share the cores of {who} (top, taskset -p, --cpus-per-task), and "
        "whether another thread of the process holds the interpreter's lock (py-spy dump)",
        of_host=True,
        on_gpus=True,
        own_cores=True,
        beyond=(),
    ),
    CauseOfLoss(
        Cause.CHECKPOINT,
        host.host,
        "stall between the phases",
        "a stall outside of forward, backward and optimizer, such as a checkpoint,",
        "write checkpoints less often, or in the background (torch.distributed.checkpoint.async_save)",
        of_host=True,
        any_program="write checkpoints less often, or in the background",
    ),
    CauseOfLoss(
        Cause.GARBAGE,
        host.host,
        "garbage collection",
        "garbage collection{phase}",
        "choose when Python collects garbage (gc.disable, then gc.collect every N steps), or use gc.freeze",
        of_host=True,
    ),
    CauseOfLoss(
        Cause.SYNCHRONISATION,
        host.activities,
        "synchronisation",
        "waiting for the device, with no work launched ahead,",
        "take .item(), .cpu() and synchronize out of the loop, or read the value some steps later",
        share=device.idle(IdleTime.SYNCHRONISATION.label),
        of_host=True,
        any_program="take waits for the device out of the loop, or read the value some steps later",
        categories=(TimeCategory.WAIT_TAIL,),
    ),
    CauseOfLoss(
        Cause.BLOCKING_COPY,
        host.activities,
        "blocking copies",
        "waiting for copies of buffers that are not pinned",
        "pin the host buffers (pin_memory=True) and copy with non_blocking=True",
        share=device.idle(IdleTime.COPY.label),
        of_host=True,
        any_program="allocate the host's buffers as pinned memory and copy them asynchronously",
    ),
    CauseOfLoss(
        Cause.ALLOCATION,
        host.activities,
        "memory allocation",
        "allocating or freeing memory of the device",
        "keep buffers instead of making new ones in each step, and leave freed memory to PyTorch's allocator "
        "(no empty_cache in the loop; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)",
        share=device.idle(IdleTime.ALLOCATION.label),
        of_host=True,
        any_program="keep buffers instead of making new ones in each step",
    ),
    CauseOfLoss(
        Cause.FIRST_USE,
        host.activities,
        "first use",
        "making libraries and kernels ready that are used for the first time",
        "record later steps: run several warm-up steps before the recording begins",
        share=device.idle(IdleTime.FIRST_USE.label, IdleTime.CAPTURE.label),
        part="the first use of libraries and kernels",
        of_host=True,
    ),
    CauseOfLoss(
        Cause.TINY_KERNELS,
        host.tiny,
        "many small operators",
        "CPU overhead between small operators{phase} (launch-bound)",
        "larger batches, fused operators (torch.compile) or CUDA graphs",
        share=device.idle(IdleTime.LAUNCH.label),
        part="launch-bound idle time",
        part_on_cpu="time between operators",
        of_host=True,
        more_work=True,
        any_program="larger batches, fused kernels or CUDA graphs",
    ),
    CauseOfLoss(
        Cause.EVALUATION,
        host.evaluation,
        "evaluation",
        "evaluating without training",
        "evaluate in fewer steps, on fewer batches, or with larger ones, since no gradients are kept, and let each "
        "rank evaluate a part",
    ),
    CauseOfLoss(
        Cause.SLOW_LINK,
        host.sending,
        "slow messages",
        "sending messages slower than other ranks",
        f"test the links of {{who}}: {COMMAND} -e 0",
        purpose="communication",
        of_messages=True,
        without=WithoutCause("messages sent at once"),
    ),
    CauseOfLoss(
        Cause.NOISY_NEIGHBOUR,
        host.without_core,
        "cores used by others",
        "sharing CPU cores with other programs",
        "see which other programs run on the cores of {who}, and bind each rank to its own cores",
        of_host=True,
        on_gpus=True,
        own_cores=True,
        categories=(),
        without=WithoutCause(
            "a core for every process that is ready to run", bound=True, same_work=False, operators=True
        ),
    ),
    CauseOfLoss(
        Cause.PINNED_TOGETHER,
        host.without_core,
        "ranks share cores",
        "sharing CPU cores with other ranks",
        "bind each rank to its own cores (--cpus-per-task, numactl)",
        of_host=True,
        on_gpus=True,
        own_cores=True,
        categories=(),
    ),
    CauseOfLoss(
        Cause.EXTRA_COMPUTE,
        rank.extra,
        "more work than others",
        "computing more than other ranks{phase}",
        "find in the timeline the work of {who}{phase} that the others do not have: metrics, an additional "
        "loss, more samples",
    ),
    CauseOfLoss(
        Cause.LONG_SEQUENCES,
        rank.uneven,
        "longer samples than others",
        "computing more than others in forward and backward (more or longer samples, for example)",
        "give every rank the same number of tokens: sort samples by length before you distribute them, or pack them",
    ),
    CauseOfLoss(
        Cause.UNEVEN_STAGES,
        rank.uneven,
        "more layers than other stages",
        "a pipeline stage with more work than the others",
        "give this stage fewer layers: the embedding and the loss take time as well",
    ),
    CauseOfLoss(
        Cause.SLOW_DEVICE,
        rank.uneven,
        "a slower device",
        "running the same kernels slower than other devices",
        "compare clocks, power limit and temperature of the devices of {who} with the others' (nvidia-smi -q -d "
        "CLOCK,POWER,PERFORMANCE,TEMPERATURE), and see whether another program uses them (nvidia-smi)",
        categories=(),
    ),
    CauseOfLoss(
        Cause.LATE_RANK,
        rank.uneven,
        "a late rank",
        "coming late to the collectives",
        f"find in the timeline the work of {{who}} that the others do not have, and test its node ({COMMAND} -e 0)",
        share=device.straggler_share,
        part="the slower rank",
    ),
    CauseOfLoss(
        Cause.IMBALANCE,
        rank.in_turn,
        "uneven work in turn",
        "waiting for each other at messages, with no rank always the last,",
        "give the ranks equal work between two messages, for example as many tokens for each expert, or samples of "
        "equal length",
        of_messages=True,
    ),
    CauseOfLoss(
        Cause.COMMUNICATION,
        device.communication,
        "exposed communication",
        "exposed communication, while nothing is computed,",
        "fewer, larger messages, or more work to hide them behind (micro-batch, overlap)",
        share=device.communication_share,
        purpose="communication",
        of_messages=True,
        categories=(TimeCategory.TRANSFER,),
        beyond=(Cause.SMALL_BUCKETS, Cause.SLOW_LINK),
    ),
    CauseOfLoss(
        Cause.SMALL_BUCKETS,
        device.buckets,
        "many small messages",
        "sending gradients in many small messages",
        "larger buckets (DDP's bucket_cap_mb, DeepSpeed's reduce_bucket_size)",
        purpose="communication",
        of_messages=True,
        categories=(TimeCategory.TRANSFER,),
    ),
    CauseOfLoss(
        Cause.BUBBLE,
        device.bubble,
        "the pipeline's bubble",
        "waiting in the pipeline's bubble",
        "more micro-batches: twice the global batch at the same micro-batch",
        share=device.bubble_share,
        of_messages=True,
        categories=(TimeCategory.TRANSFER,),
    ),
    CauseOfLoss(
        Cause.COPIES,
        device.copies,
        "exposed copies",
        "copying, while nothing is computed,",
        "copy on a separate stream while kernels run",
        share=lambda s: device_time.share(s.devices, "exposed_memory_ns"),
        categories=(TimeCategory.DEVICE_COPY,),
    ),
    CauseOfLoss(
        Cause.PRECISION,
        device.precision,
        "products in 32 bits",
        "running matrix products in 32 bits",
        "mixed precision (bf16)",
        share=device.precision_share,
        categories=(TimeCategory.DEVICE_FP32, TimeCategory.DEVICE_TF32),
    ),
    CauseOfLoss(
        Cause.LAYOUT,
        device.layout,
        "layout conversions",
        "converting tensors between channels first and channels last (NCHW and NHWC)",
        "keep model and images in channels last: model.to(memory_format=torch.channels_last), and the same for the "
        "inputs",
        share=device.layout_share,
        categories=(TimeCategory.DEVICE_LAYOUT,),
    ),
)
CAUSES: dict[str, CauseOfLoss] = {entry.cause.value: entry for entry in _ENTRIES}
RULES: tuple[Rule, ...] = tuple(dict.fromkeys(entry.find for entry in _ENTRIES))


def suspects(context: ReplayContext) -> list[Suspect]:
    return [found for rule in RULES for found in rule(context)]

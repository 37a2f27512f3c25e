"""What each cause of lost time is called, what a rank does that has it, and what helps: one entry each.

The names are those of `Cause` in replay/suspect.py and of the faults in common/faults.py. Knows no summary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class CauseWords:
    """label: in tables. one, many: what a rank does, what several do; `{phase}` is where, as in " in forward".

    advice: what to try where no option of the run helps; it may have `{phase}` and `{who}`. purpose: what an
    experiment's `on_purpose` calls it. more_work: whether larger micro-batches help. own_cores: whether cores of its
    own help a rank, where there are as many.
    """

    label: str
    one: str
    many: str
    advice: str
    purpose: Literal["communication", "data"] | None = None
    more_work: bool = False
    own_cores: bool = False


FEWER_RANKS = "start no more ranks than there are cores (-n, -g)"
_LOOK = "look in the timeline at what {who} does{phase}"
CAUSES: dict[str, CauseWords] = {
    "data-stall": CauseWords(
        "waiting for data",
        "its host stands still, waiting for data",
        "their hosts stand still, waiting for data",
        "more DataLoader workers, pinned memory and prefetching (num_workers, pin_memory, prefetch_factor)",
        purpose="data",
    ),
    "host-stall": CauseWords(
        "host stands still",
        "its host stands still{phase}",
        "their hosts stand still{phase}",
        f"{_LOOK}: printing, .item(), a lock, Python's garbage collection",
    ),
    "pause": CauseWords(
        "process is stopped",
        "its process is stopped, each time at another place of the step",
        "their processes are stopped, each time at another place of the step",
        "see what else runs on the node of {who}: other programs, swapping, a container's CPU limit, a debugger",
    ),
    "checkpoint": CauseWords(
        "host stands still between the phases",
        "its host stands still outside of forward, backward and optimizer, as while a checkpoint is written",
        "their hosts stand still outside of forward, backward and optimizer, as while a checkpoint is written",
        "write checkpoints less often, or in the background (torch.distributed.checkpoint.async_save)",
    ),
    "extra-compute": CauseWords(
        "more work than others",
        "it computes more than the others{phase}",
        "they compute more than the others{phase}",
        f"{_LOOK} that the others do not: metrics, a loss of its own, more samples",
    ),
    "long-sequences": CauseWords(
        "longer samples than others",
        "it computes more than the others in forward and backward, as with longer samples",
        "they compute more than the others in forward and backward, as with longer samples",
        "give every rank as many tokens: sort samples by length before they are shared out, or pack them",
    ),
    "noisy-neighbour": CauseWords(
        "cores used by others",
        "all its work takes longer, as where other programs use its cores",
        "all their work takes longer, as where other programs use their cores",
        "see what else runs on the cores of {who}, and bind each rank to cores of its own",
        own_cores=True,
    ),
    "pinned-together": CauseWords(
        "ranks share cores",
        "it shares its cores with other ranks",
        "they share their cores",
        "bind each rank to cores of its own (--cpus-per-task, numactl)",
        own_cores=True,
    ),
    "uneven-stages": CauseWords(
        "more layers than other stages",
        "its pipeline stage has more work than the others",
        "their pipeline stages have more work than the others",
        "give this stage fewer layers: the embedding and the loss weigh as well",
    ),
    "slow-link": CauseWords(
        "slow messages",
        "its messages take longer than those of the others",
        "their messages take longer than those of the others",
        "test the links of {who}: slurm.sh -e 0",
        purpose="communication",
    ),
    "small-buckets": CauseWords(
        "many small messages",
        "its gradients travel in many small messages",
        "their gradients travel in many small messages",
        "larger buckets (DDP's bucket_cap_mb, DeepSpeed's reduce_bucket_size)",
        purpose="communication",
    ),
    "tiny-kernels": CauseWords(
        "many small operators",
        "its operators are small: much of its host's time passes between them",
        "their operators are small: much of their hosts' time passes between them",
        "larger batches, fused operators (torch.compile) or CUDA graphs",
        more_work=True,
    ),
    "gc": CauseWords(
        "garbage collection",
        "its host stands still{phase} while Python collects garbage",
        "their hosts stand still{phase} while Python collects garbage",
        "collect at a place of your choice (gc.disable, then gc.collect every so many steps), or gc.freeze",
    ),
    "sync": CauseWords(
        "synchronisation",
        "its host waits for the device, and launches nothing ahead",
        "their hosts wait for the devices, and launch nothing ahead",
        "take .item(), .cpu() and synchronize out of the loop, or read the value some steps later",
    ),
    "pageable": CauseWords(
        "copies of pageable memory",
        "its host waits for copies of buffers that are not pinned",
        "their hosts wait for copies of buffers that are not pinned",
        "pin the host buffers (pin_memory=True) and copy with non_blocking=True",
    ),
    "fp32": CauseWords(
        "single precision",
        "its matrix products run in fp32",
        "their matrix products run in fp32",
        "mixed precision (bf16)",
    ),
}

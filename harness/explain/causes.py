"""For each cause of lost time: its name, a sentence about the ranks that have it, and what helps.

The names are those of `Cause` in replay/suspect.py and of the faults in common/faults.py. Knows no summary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class CauseWords:
    """label: in tables. one, many: the sentence about one rank, about several; `{phase}` is the place, as in
    " in forward".

    advice: what to try if no option of the run helps; it may have `{phase}` and `{who}`. purpose: its name in an
    experiment's `on_purpose`. more_work: whether larger micro-batches help. own_cores: whether it helps to bind a rank
    to its own cores, if there are enough.
    """

    label: str
    one: str
    many: str
    advice: str
    purpose: Literal["communication", "data"] | None = None
    more_work: bool = False
    own_cores: bool = False


FEWER_RANKS = "start no more ranks than there are cores (-n, -g)"
CAUSES: dict[str, CauseWords] = {
    "data-stall": CauseWords(
        "waiting for data",
        "it waits for data",
        "they wait for data",
        "more DataLoader workers, pinned memory and prefetching (num_workers, pin_memory, prefetch_factor)",
        purpose="data",
    ),
    "host-stall": CauseWords(
        "host stall",
        "it stalls on the host{phase}",
        "they stall on the host{phase}",
        "find the host's work on {who}{phase} in the timeline: printing, .item(), a lock, Python's garbage collection",
    ),
    "pause": CauseWords(
        "stopped process",
        "its process is stopped and continued (SIGSTOP, SIGCONT) at changing places of the step",
        "their processes are stopped and continued (SIGSTOP, SIGCONT) at changing places of the step",
        "find who stops the processes of {who}: a scheduler that suspends jobs, a debugger, a user",
    ),
    "interrupted": CauseWords(
        "host falls behind",
        "its host falls behind at changing places of the step, also inside operators",
        "their hosts fall behind at changing places of the step, also inside operators",
        "see on the node of {who} whether other threads share its cores (top, taskset -p, --cpus-per-task), and "
        "whether another thread of the process holds the interpreter's lock (py-spy dump)",
        own_cores=True,
    ),
    "checkpoint": CauseWords(
        "stall between the phases",
        "it waits outside of forward, backward and optimizer, for example while a checkpoint is written",
        "they wait outside of forward, backward and optimizer, for example while a checkpoint is written",
        "write checkpoints less often, or in the background (torch.distributed.checkpoint.async_save)",
    ),
    "extra-compute": CauseWords(
        "more work than others",
        "it computes more than the others{phase}",
        "they compute more than the others{phase}",
        "find in the timeline the work of {who}{phase} that the others do not have: metrics, an additional loss, "
        "more samples",
    ),
    "long-sequences": CauseWords(
        "longer samples than others",
        "it computes more than the others in forward and backward, for example because of more or longer samples",
        "they compute more than the others in forward and backward, for example because of more or longer samples",
        "give every rank the same number of tokens: sort samples by length before you distribute them, or pack them",
    ),
    "noisy-neighbour": CauseWords(
        "cores used by others",
        "its CPU cores are shared with other programs",
        "their CPU cores are shared with other programs",
        "see which other programs run on the cores of {who}, and bind each rank to its own cores",
        own_cores=True,
    ),
    "pinned-together": CauseWords(
        "ranks share cores",
        "it shares its cores with other ranks",
        "they share the same cores",
        "bind each rank to its own cores (--cpus-per-task, numactl)",
        own_cores=True,
    ),
    "uneven-stages": CauseWords(
        "more layers than other stages",
        "its pipeline stage has more work than the others",
        "their pipeline stages have more work than the others",
        "give this stage fewer layers: the embedding and the loss take time as well",
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
        "its gradients are sent in many small messages",
        "their gradients are sent in many small messages",
        "larger buckets (DDP's bucket_cap_mb, DeepSpeed's reduce_bucket_size)",
        purpose="communication",
    ),
    "tiny-kernels": CauseWords(
        "many small operators",
        "much of its time is CPU overhead between small operators",
        "much of their time is CPU overhead between small operators",
        "larger batches, fused operators (torch.compile) or CUDA graphs",
        more_work=True,
    ),
    "gc": CauseWords(
        "garbage collection",
        "it stalls{phase} while Python collects garbage",
        "they stall{phase} while Python collects garbage",
        "choose when Python collects garbage (gc.disable, then gc.collect every N steps), or use gc.freeze",
    ),
    "sync": CauseWords(
        "synchronisation",
        "it waits for the device and launches no work ahead",
        "they wait for the devices and launch no work ahead",
        "take .item(), .cpu() and synchronize out of the loop, or read the value some steps later",
    ),
    "pageable": CauseWords(
        "copies of pageable memory",
        "it waits for copies of buffers that are not pinned",
        "they wait for copies of buffers that are not pinned",
        "pin the host buffers (pin_memory=True) and copy with non_blocking=True",
    ),
    "fp32": CauseWords(
        "single precision",
        "its matrix products run in fp32",
        "their matrix products run in fp32",
        "mixed precision (bf16)",
    ),
}

"""The program of a rank of a pipeline: one stage of the model."""

from __future__ import annotations

from functools import partial

from .program import COMM, COMPUTE, US, Follow, Launch, Message, Record, Work
from .ranks import Rank
from .training import Training

SEND_FORWARD, RECV_FORWARD, SEND_BACKWARD, RECV_BACKWARD = 20, 21, 22, 23


class PipelineRank(Rank):
    """Builds the program of one stage: one forward, one backward (Narayanan et al. 2021), then the optimizer.

    Ranks of one pipeline follow each other; the same stage of the other pipelines has the same parameters."""

    def __init__(self, training: Training, rank: int) -> None:
        super().__init__(training, rank)
        stages = training.stages
        self.stage, self.first_rank = rank % stages, rank - rank % stages
        self.group = tuple(range(self.stage, training.ranks, stages))
        self.layers = training.stage_layers.get(self.stage, training.layers)

    def one_step(self) -> None:
        t = self.t
        last = t.stages - 1
        if self.stage in (0, last):
            self.data()
        warm = min(last - self.stage, t.micro_batches)
        for i in range(warm):
            self.forward_of(i)
        for i in range(t.micro_batches - warm):
            self.forward_of(warm + i)
            self.backward_of(i)
        for i in range(t.micro_batches - warm, t.micro_batches):
            self.backward_of(i)
        if len(self.group) > 1:
            self.send("all_reduce", self.group, t.layer_bytes * self.layers)
            self.do.append(Record("reduced", COMM))
            self.do.append(Follow(COMPUTE, "reduced"))
        self.optimizer()
        self.at_the_end()

    def forward_of(self, micro_batch: int) -> None:
        if self.stage:
            self.exchange("recv", self.rank - 1, RECV_FORWARD)
        else:
            self.copy_batch()
        self.forward()
        if self.stage < self.t.stages - 1:
            self.exchange("send", self.rank + 1, SEND_FORWARD)

    def backward_of(self, micro_batch: int) -> None:
        if self.stage < self.t.stages - 1:
            self.exchange("recv", self.rank + 1, RECV_BACKWARD)
        self.backward(reduces=False)
        if self.stage:
            self.exchange("send", self.rank - 1, SEND_BACKWARD)

    def exchange(self, kind: str, peer: int, stream: int) -> None:
        """Send to a neighbour what was just made, or have the compute stream wait for what it sends."""
        t = self.t
        if t.apart:
            return
        source, target = (self.rank, peer) if kind == "send" else (peer, self.rank)
        number = self._sent[kind, peer] = self._sent.get((kind, peer), 0) + 1
        size = 8 << 20
        ns = t.message_ns + round(size / t.gb_per_s)
        message = Message(
            (source, target, number),
            kind,
            (source, target),
            size // 2,
            "BFloat16",
            f"{min(source, target)}-{max(source, target)}",
            ns,
        )
        if kind == "send":
            self.do.append(Record("made", COMPUTE))
            self.do.append(Follow(stream, "made"))
        make = partial(Work, "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", stream, 0, message=message)
        self.do.append(Launch(make, "cudaLaunchKernelExC", t.launch_ns, f"nccl:{kind}", 8 * US, 2 * US))
        if kind == "recv":
            self.do.append(Record("received", stream))
            self.do.append(Follow(COMPUTE, "received"))

"""Jobs simulated from a few costs, as traces: what a change of a cost does to the step is known without any replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.traces.trace import Activity, RangeKind, Trace
from tests.synthetic.columns import MAIN, Made

US, MS = 1_000, 1_000_000
MM, ADD = "aten::mm", "aten::add"
GLOO_THREAD, COMM_STREAM = 50, 20
Where = tuple[int, int]  # rank, step


@dataclass(frozen=True)
class Costs:
    """What a step of every rank costs, in nanoseconds; extra costs by (rank, step).

    stalls: of the host at the begin of `stalled`, one phase or several; held: of the operator in the middle of forward;
    strays: of the host between operators of forward, each step after another one; late: of the last message of a step,
    by the step alone; more: further operators in the phase `more_in`; factor: of all operators of a rank in forward and
    backward; gap_factor: of the time between them; backward_factor: of backward alone; optimizer_factor: of its
    optimizer.
    ranges: whether the phases are marked.
    """

    ranks: int = 2
    steps: int = 8
    operators: int = 20
    operator_ns: int = MS
    gap_ns: int = 20 * US
    data_ns: int = MS // 2
    optimizer_ns: int = 3 * MS
    transfer_ns: int = 4 * MS
    messages: int = 1
    accumulation: int = 1
    stalled: str | tuple[str, ...] = "forward"
    stalls: Mapping[Where, int] = field(default_factory=dict)
    held: Mapping[Where, int] = field(default_factory=dict)
    strays: Mapping[Where, int] = field(default_factory=dict)
    late: Mapping[int, int] = field(default_factory=dict)
    more: Mapping[Where, int] = field(default_factory=dict)
    more_in: str = "forward"
    factor: Mapping[int, float] = field(default_factory=dict)
    gap_factor: Mapping[int, float] = field(default_factory=dict)
    backward_factor: Mapping[int, float] = field(default_factory=dict)
    optimizer_factor: Mapping[int, float] = field(default_factory=dict)
    ranges: bool = True


class _Job:
    """What a simulation leaves: a recording and the steps' times of each rank. now: the moment on each."""

    now: list[int]
    made: list[Made]
    step_ns: list[list[int]]

    def traces(self) -> list[Trace]:
        """One trace per rank."""
        return [made.trace() for made in self.made]

    def mean_step_ns(self, first: int = 1) -> float:
        """Mean over ranks and steps, without the first ones."""
        every = [ns for rank in self.step_ns for ns in rank[first:]]
        return sum(every) / len(every)

    def _range(self, name: str, rank: int, begin: int) -> None:
        self.made[rank].range(begin, self.now[rank], name, kind=RangeKind.ANNOTATION)

    def _operator(self, rank: int, name: str, ns: int) -> None:
        begin = self.now[rank]
        self.now[rank] += ns
        self.made[rank].event(
            begin, self.now[rank], name, activity=Activity.CPU_OP, stream=MAIN, launch_ns=begin, launch_thread=MAIN
        )


class CpuJob(_Job):
    """A data-parallel training without a GPU: gradients are reduced in backward, and every rank waits at its end."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.now = [100 * MS + rank * MS for rank in range(costs.ranks)]
        self.made = [
            Made(rank=r, world_size=costs.ranks, path=f"rank{r}.json", host="node", clock="unix", pid=100 + r)
            for r in range(costs.ranks)
        ]
        self.step_ns: list[list[int]] = [[] for _ in range(costs.ranks)]
        for step in range(costs.steps):
            self._step(step)

    def _step(self, step: int) -> None:
        c = self.costs
        begins = list(self.now)
        issued: list[list[int]] = []
        for rank in range(c.ranks):
            begin = self.now[rank]
            self.now[rank] += c.data_ns + self._stall("data", rank, step)
            self._more("data", rank, step)
            self._range("DataLoad batch", rank, begin)
            self._compute("forward", rank, step)
            issued.append(self._compute("backward", rank, step))
        reduces = step % c.accumulation == c.accumulation - 1
        if reduces:
            self._reduce(issued, c.late.get(step, 0))
        for rank in range(c.ranks):
            if reduces:
                begin = self.now[rank]
                self.now[rank] += self._stall("optimizer", rank, step)
                self._operator(rank, ADD, round(c.optimizer_ns * c.optimizer_factor.get(rank, 1)))
                self._more("optimizer", rank, step)
                self._range("optimizer_step", rank, begin)
            self._idle("between", rank, c.gap_ns + self._stall("between", rank, step))
            self._more("between", rank, step)
            self.made[rank].step(begins[rank], self.now[rank], step)
            self.step_ns[rank].append(self.now[rank] - begins[rank])

    def _stall(self, phase: str, rank: int, step: int) -> int:
        return self.costs.stalls.get((rank, step), 0) if phase in self.costs.stalled else 0

    def _more(self, phase: str, rank: int, step: int) -> None:
        if phase == self.costs.more_in:
            for _ in range(self.costs.more.get((rank, step), 0)):
                self._operator(rank, MM, self.costs.operator_ns)
                self.now[rank] += self.costs.gap_ns

    def _idle(self, name: str, rank: int, ns: int) -> None:
        begin = self.now[rank]
        self.now[rank] += ns
        self._range(name, rank, begin)

    def _compute(self, phase: str, rank: int, step: int) -> list[int]:
        """Its operators; returns when messages were issued."""
        c, issued = self.costs, []
        begin = self.now[rank]
        self.now[rank] += self._stall(phase, rank, step)
        count = c.operators + (c.more.get((rank, step), 0) if phase == c.more_in == "forward" else 0)
        factor = c.factor.get(rank, 1) * (c.backward_factor.get(rank, 1) if phase == "backward" else 1)
        for i in range(count):
            held = c.held.get((rank, step), 0) if phase == "forward" and i == c.operators // 2 else 0
            self._operator(rank, MM if i % 2 else ADD, round(c.operator_ns * factor) + held)
            stray = phase == "forward" and i == (5 * step + 2) % c.operators
            gap_ns = round(c.gap_ns * c.gap_factor.get(rank, 1))
            self.now[rank] += gap_ns + (c.strays.get((rank, step), 0) if stray else 0)
            if count - i <= c.messages:
                issued.append(self.now[rank] - 10 * US)
        self._range(phase, rank, begin)
        return issued

    def _reduce(self, issued: list[list[int]], late_ns: int) -> None:
        """All messages one after the other; then the ranks go on."""
        free = 0
        for number, calls in enumerate(zip(*issued, strict=True), 1):
            arrived = [max(call + 50 * US, free) for call in calls]
            free = max(arrived) + self.costs.transfer_ns + (late_ns if number == len(issued[0]) else 0)
            for rank, made in enumerate(self.made):
                made.collective(arrived[rank], free, size=1 << 20, members=self.costs.ranks)
                span = {"activity": Activity.CPU_COLLECTIVE, "stream": GLOO_THREAD, "launch_thread": MAIN}
                made.events[-1] |= {"name": made.name("gloo:all_reduce"), "launch_ns": calls[rank], **span}
        for rank in range(self.costs.ranks):
            begin = self.now[rank]
            self.now[rank] = max(self.now[rank], free + 30 * US)
            self._range("backward", rank, begin - 1)

    def _range(self, name: str, rank: int, begin: int) -> None:
        if self.costs.ranges:
            super()._range(name, rank, begin)


class PipelineJob(_Job):
    """Stages on CPUs, all micro-batches forward and then all of them backward; each waits for its neighbour's message.

    factor: of all operators of a stage. named: whether a message's record says with whom it is.
    """

    def __init__(
        self,
        *,
        stages: int = 3,
        steps: int = 6,
        micro_batches: int = 4,
        operator_ns: int = 3 * MS,
        factor: Mapping[int, float] | None = None,
        named: bool = True,
    ) -> None:
        self.micro_batches, self.operator_ns, self.named = micro_batches, operator_ns, named
        self.factor = factor or {}
        self.now = [100 * MS] * stages
        self.made = [
            Made(rank=r, world_size=stages, path=f"stage{r}.json", host="node", clock="unix", pid=100 + r)
            for r in range(stages)
        ]
        self.step_ns: list[list[int]] = [[] for _ in range(stages)]
        for step in range(steps):
            begins = list(self.now)
            self._pass("forward", 1)
            self._pass("backward", -1)
            for rank, made in enumerate(self.made):
                made.step(begins[rank], self.now[rank], step)
                self.step_ns[rank].append(self.now[rank] - begins[rank])

    def _pass(self, phase: str, way: int) -> None:
        """All micro-batches through all stages."""
        stages, sent = len(self.made), [0] * self.micro_batches
        for rank in range(stages)[::way]:
            begin = self.now[rank]
            for i in range(self.micro_batches):
                if 0 <= rank - way < stages:
                    self._message("recv", rank, rank - way, max(self.now[rank], sent[i] + 200 * US))
                for name in (MM, ADD):
                    self._operator(rank, name, round(self.operator_ns * self.factor.get(rank, 1)))
                sent[i] = self.now[rank]
                if 0 <= rank + way < stages:
                    self._message("send", rank, rank + way, self.now[rank] + 30 * US)
            self._range(phase, rank, begin)

    def _message(self, kind: str, rank: int, peer: int, end: int) -> None:
        begin, made = self.now[rank], self.made[rank]
        self.now[rank] = end + 10 * US
        made.collective(begin, end, kind, size=1 << 16, peer=peer if self.named else -1)
        made.events[-1] |= {
            "name": made.name(f"gloo:{kind}"),
            "activity": Activity.CPU_COLLECTIVE,
            "stream": MAIN,
            "launch_ns": begin,
            "launch_thread": MAIN,
        }


class GpuJob(_Job):
    """A data-parallel training on GPUs: the host launches, a stream computes, another one reduces the gradients.

    factor: of all kernels of a rank; heavier: the same in single steps."""

    def __init__(
        self,
        *,
        ranks: int = 2,
        steps: int = 6,
        kernels: int = 40,
        launch_ns: int = 10 * US,
        kernel_ns: int = 100 * US,
        transfer_ns: int = 500 * US,
        late: Mapping[Where, int] | None = None,
        factor: Mapping[int, float] | None = None,
        heavier: Mapping[Where, float] | None = None,
    ) -> None:
        self.late, self.factor, self.heavier = late or {}, factor or {}, heavier or {}
        self.kernels, self.launch_ns, self.kernel_ns, self.transfer_ns = (kernels, launch_ns, kernel_ns, transfer_ns)
        self.made = [
            Made(rank=r, world_size=ranks, path=f"gpu{r}.json", host="node", clock="unix") for r in range(ranks)
        ]
        self.now = [100 * MS] * ranks
        self.step_ns: list[list[int]] = [[] for _ in range(ranks)]
        for step in range(steps):
            self._step(step)

    def _step(self, step: int) -> None:
        begins, ready, launched, busy = list(self.now), [], [], []
        for rank, made in enumerate(self.made):
            self.now[rank] += self.late.get((rank, step), 0)
            more = self.heavier.get((rank, step), 1.0)
            free = self._run(rank, self.now[rank], self.kernels, more)
            busy.append(free)
            launched.append(self.now[rank])
            made.call(self.now[rank], self.now[rank] + 5 * US, "cudaLaunchKernelExC")
            self.now[rank] += self.launch_ns
            ready.append(max(free + 2 * US, launched[rank] + 5 * US))
        end = max(ready) + self.transfer_ns
        for rank, made in enumerate(self.made):
            made.collective(ready[rank], end, size=1 << 24, members=len(self.made))
            made.events[-1] |= {"stream": COMM_STREAM, "launch_ns": launched[rank], "launch_thread": MAIN}
            free = self._run(rank, max(end + 2 * US, busy[rank]), 4)
            begin = self.now[rank]
            self.now[rank] = max(begin + 5 * US, free + 8 * US)
            made.call(begin, self.now[rank], "cudaStreamSynchronize")
            made.step(begins[rank], self.now[rank], step)
            self.step_ns[rank].append(self.now[rank] - begins[rank])

    def _run(self, rank: int, free: int, count: int, more: float = 1.0) -> int:
        """Launch and run kernels on a stream that is free from here on; returns when it is free again."""
        made = self.made[rank]
        for _ in range(count):
            made.call(self.now[rank], self.now[rank] + 5 * US, "cudaLaunchKernel")
            start = max(self.now[rank] + 5 * US, free + US)
            free = start + round(self.kernel_ns * self.factor.get(rank, 1) * more)
            made.event(start, free, launch_ns=self.now[rank], launch_thread=MAIN)
            self.now[rank] += self.launch_ns
        return free

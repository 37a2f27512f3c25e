"""One process's columns to its graph: nodes, arcs, its steps, and its part in collectives; and the graph as bytes."""

from __future__ import annotations

import io
import json
import zlib
from dataclasses import dataclass

import numpy as np

from harness.analysis.process.prepared import MeasuredProcess, extent_of
from harness.replay import cpu_collectives, device
from harness.replay.graph import Amounts, Builder, HostThread, TimeCategory, slot
from harness.replay.host import host_segments
from harness.traces.trace import I64


@dataclass(frozen=True)
class ProcessGraph:
    """n nodes, k arcs. Times are on the process's own clock; `epoch_ns` as in View.

    repeated: arcs whose time is also that of others. step_begin, step_end: the nodes of the counted steps. arrive,
    done: the nodes of each row of the process's collectives (collective_rows.py) where it arrives and where it has its
    result, -1 where they lie outside the window; the arc between them is the job's, which knows the other ranks.
    """

    rank: int | None
    path: str
    pid: int | None
    clock: str
    epoch_ns: int | None
    on_cpu: bool
    marked: bool  # its steps were marked; else all of it is one
    time_ns: I64
    source: I64
    target: I64
    amounts: Amounts
    repeated: I64
    step_names: list[str]
    step_begin: I64
    step_end: I64
    arrive: I64
    done: I64


def process_graph(m: MeasuredProcess) -> ProcessGraph | None:
    """The graph of the counted steps; without marked steps of what is recorded, as one step. None without work."""
    if not m.windows:
        return None
    span = Span.of(m)
    builder, thread = Builder(), HostThread(host_segments(m, span.window))
    begin = thread.mark(builder, span.begin_ns)
    end = thread.mark(builder, span.end_ns) if span.marked else builder.add_nodes(span.end_ns)
    arrive, done, lasts = (cpu_collectives.on_cpu if m.view.on_cpu else device.on_gpu)(
        m, span.window, builder, thread
    )
    thread.close(builder)
    if not span.marked:
        _end_with(builder, end, np.append(lasts, thread.last))
    source, target, amounts = builder.all_arcs()
    view = m.view
    return ProcessGraph(
        rank=view.rank,
        path=view.trace.identity.path,
        pid=view.pid,
        clock=view.clock,
        epoch_ns=view.epoch_ns,
        on_cpu=view.on_cpu,
        marked=span.marked,
        time_ns=builder.time_ns,
        source=source,
        target=target,
        amounts=amounts,
        repeated=np.concatenate([np.empty(0, np.int64), *builder.repeated]),
        step_names=span.names,
        step_begin=begin,
        step_end=end,
        arrive=arrive,
        done=done,
    )


@dataclass(frozen=True)
class Span:
    """The stretch to replay: n counted steps, or all that was recorded as one step (not `marked`)."""

    window: tuple[int, int]
    begin_ns: I64
    end_ns: I64
    names: list[str]
    marked: bool

    @staticmethod
    def of(m: MeasuredProcess) -> Span:
        steps = m.steps
        if steps.window is not None and steps.thread is not None:
            rows = np.flatnonzero(steps.counted)
            names = [steps.names[row] for row in rows]
            return Span(steps.window, steps.start_ns[rows], steps.end_ns[rows], names, True)
        first, last = extent_of(m.windows)
        return Span((first, last), np.array([first]), np.array([last]), [], False)


def _end_with(builder: Builder, end: I64, nodes: I64) -> None:
    """The last moment is as late as the last of these nodes."""
    time = builder.time_ns
    arcs = builder.add_arcs(nodes, np.repeat(end, len(nodes)))
    rest = time[end[0]] - time[nodes]
    builder.give_slot(arcs, slot(TimeCategory.DEVICE_GAP), np.where(rest == rest.min(), rest, 0))


_COLUMNS = ("time_ns", "source", "target", "repeated", "step_begin", "step_end", "arrive", "done")
_FACTS = ("rank", "path", "pid", "clock", "epoch_ns", "on_cpu", "marked", "step_names")


def pack_graph(graph: ProcessGraph | None) -> bytes:
    """The graph, compressed; empty without a graph."""
    if graph is None:
        return b""
    columns = {name: getattr(graph, name) for name in _COLUMNS} | graph.amounts._asdict()
    facts = json.dumps({name: getattr(graph, name) for name in _FACTS}).encode()
    buffer = io.BytesIO()
    np.savez(buffer, **columns, facts=np.frombuffer(facts, np.uint8))
    return zlib.compress(buffer.getvalue(), 1)


def unpack_graph(packed: bytes) -> ProcessGraph | None:
    """The inverse of `pack_graph`."""
    if not packed:
        return None
    with np.load(io.BytesIO(zlib.decompress(packed)), allow_pickle=False) as archive:
        facts = json.loads(archive["facts"].tobytes())
        columns = {name: archive[name] for name in _COLUMNS}
        amounts = Amounts(archive["arc"], archive["slot"], archive["ns"])
    return ProcessGraph(**facts, **columns, amounts=amounts)

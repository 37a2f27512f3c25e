"""A process's graph as bytes, to travel with its part."""

from __future__ import annotations

import io
import json
import zlib

import numpy as np

from harness.replay.process import ProcessGraph
from harness.replay.timeline import Amounts

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

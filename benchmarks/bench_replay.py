"""What a replay costs beside reading: eight large traces, and a thousand ranks.

    python benchmarks/bench_replay.py [--trace TRACE --megabytes 45 --files 8] [--ranks 1000]

With a trace (torch's own Kineto layout) it is enlarged and read so many times, and the replay's CPU time is given as
a ratio of reading and measuring. The ranks are simulated, each with its own graph; their simulation is not counted.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from generate_kineto import enlarge

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness.analysis.job.summarise import summarise_job
from harness.analysis.process.kinds import load_rules
from harness.analysis.process.measure import measured_processes
from harness.analysis.process.part import Compressible, RankPart
from harness.analysis.summary import Window
from harness.replay.attribute.diagnosis import diagnose
from harness.replay.graph.process import process_graph
from harness.traces import open_trace
from tests.synthetic.simulated import Costs, CpuJob


def beside_reading(trace: Path, megabytes: float, files: int) -> None:
    """Read, measure and replay copies of one trace; print the ratio."""
    reading = graphs = 0.0
    parts: list[RankPart] = []
    with tempfile.TemporaryDirectory() as folder:
        large = Path(folder) / "large.json"
        enlarge(trace, large, megabytes)
        for number in range(files):
            start = time.process_time()
            for part, measured in measured_processes(open_trace(large), Window.STEPS, load_rules()):
                read = time.process_time()
                graph = process_graph(measured)
                assert graph is not None
                name = f"rank{number}.json"
                compressed = Compressible(replace(graph, rank=number, path=name))
                source = part.source.model_copy(update={"rank": number, "path": name, "world_size": files})
                parts.append(part.model_copy(update={"source": source, "graph": compressed}))
                reading, graphs = reading + read - start, graphs + time.process_time() - read
    summary = summarise_job(parts, files)
    start = time.process_time()
    replay, _ = diagnose(summary, parts)
    solved = time.process_time() - start
    assert replay is not None
    print(
        f"{files} × {megabytes:g} MB: reading and measuring {reading:.1f} CPU-s, replay {graphs + solved:.1f} CPU-s "
        f"(graphs {graphs:.1f}, all what-ifs {solved:.1f}): ratio {(graphs + solved) / reading:.2f}; "
        f"self-replay error {replay.error:.2%}"
    )


def many_ranks(ranks: int) -> None:
    """Graphs of simulated ranks joined and replayed with every change; print CPU time and memory."""
    late = {(ranks // 2, step): 30_000_000 for step in range(10)}
    traces = CpuJob(Costs(ranks=ranks, steps=10, messages=10, stalls=late)).traces()
    start = time.process_time()
    parts = [
        part.model_copy(update={"graph": Compressible(process_graph(measured))})
        for trace in traces
        for part, measured in measured_processes(trace, Window.STEPS, load_rules())
    ]
    summary = summarise_job(parts, ranks)
    measured_by = time.process_time()
    replay, lost = diagnose(summary, parts)
    assert replay is not None
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    found = f"{lost[0].cause} on rank {lost[0].ranks}" if lost else "nothing"
    print(
        f"{ranks} ranks × {replay.steps} steps: measured and made graphs {measured_by - start:.1f} CPU-s, "
        f"joined and replayed with {len(replay.what_ifs)} what-ifs {time.process_time() - measured_by:.1f} CPU-s, "
        f"{held:.1f} GB at most; found {found}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--megabytes", type=float, default=45)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=1000)
    asked = parser.parse_args()
    if asked.trace is not None:
        beside_reading(asked.trace, asked.megabytes, asked.files)
    many_ranks(asked.ranks)


if __name__ == "__main__":
    main()

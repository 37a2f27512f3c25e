"""Draws the pictures of docs/timelines.md and docs/timelines.md from real traces.

python benchmarks/draw_timelines.py [DDP_RUN PIPELINE_RUN]    of the H100, from tests/data/h100; and of these runs:
  bash slurm.sh -e 1 -g 2 --active-steps 6 -- --bucket-cap-mb 0.25
  bash slurm.sh -e 3 -- --model tiny-mistral-deep --tp 1 --pp 2 --global-batch-size 2
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from harness.common.format import duration  # noqa: E402  tests are no part of the installed project
from harness.common.palette import COMMUNICATION, COMPUTE, MEMORY  # noqa: E402
from harness.export.objects import build_object_model  # noqa: E402
from harness.export.paraver import write_paraver  # noqa: E402
from harness.traces import find_traces, open_trace  # noqa: E402
from harness.traces.trace import I64, Activity, Spans, Trace  # noqa: E402
from tests.export.paraver_cfg import Paraver, read_prv, read_view  # noqa: E402

PHASES = {"DataLoad": "#b5651d", "forward": "#3f4fa0", "backward": "#7d6bc4", "optimizer_step": "#1b7a5a"}
CALLS, MARK = "#5f6b78", "#c1272d"
Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]
Row = tuple[str, I64, I64, tuple[str, ...]]  # label, starts and ends in ns; names of phases, or one colour for all


def rows(trace: Trace, shift_ns: int = 0) -> dict[str, Row]:
    """The rows of Nsight's window."""
    events, calls, ranges = trace.events, trace.calls, trace.ranges
    names = [trace.names[name].partition(" stage")[0] for name in ranges.name.tolist()]
    is_phase = np.array([name.startswith(tuple(PHASES)) for name in names])
    main, copies = calls.thread == ranges.thread[0], np.isin(events.activity, (Activity.MEMCPY, Activity.MEMSET))

    def row(label: str, spans: Spans, at: Mask, *look: str) -> Row:
        return label, spans.start_ns[at] + shift_ns, spans.end_ns[at] + shift_ns, look

    return {
        "kernels": row("CUDA HW: kernels", events, events.activity == Activity.KERNEL, COMPUTE),
        "memory": row("CUDA HW: memory", events, copies, MEMORY),
        "nvtx": row("NVTX", ranges, is_phase, *np.array(names)[is_phase].tolist()),
        "calls": row("CUDA API, main thread", calls, main, CALLS),
        "autograd": row("CUDA API, autograd thread", calls, ~main, CALLS),
        "gloo": row("all-reduce", events, events.activity == Activity.CPU_COLLECTIVE, COMMUNICATION),
    }


def begin(row: Row, phase: str, number: int) -> int:
    return int([start for start, name in zip(row[1], row[3], strict=True) if name.startswith(phase)][number])


def draw(drawn: Sequence[Row], begin_ns: int, length_ms: float) -> Figure:
    """Rows from top to bottom, in ms from `begin_ns`."""
    figure = Figure(figsize=(9, 0.9 + 0.37 * len(drawn)), layout="constrained")
    axes = figure.add_subplot(ylim=(len(drawn) - 0.4, -1.2), xlim=(0, length_ms), xlabel="time [ms]")
    for place, (_, start, end, look) in enumerate(drawn):
        low, high = (np.clip((ns - begin_ns) / 1e6, 0, length_ms) for ns in (start, end))
        for i in np.flatnonzero(high > low).tolist():
            name = look[i] if len(look) == len(start) else ""
            fill = next((colour for phase, colour in PHASES.items() if name.startswith(phase)), look[0])
            axes.broken_barh([(low[i], high[i] - low[i])], (place - 0.38, 0.76), facecolor=fill, edgecolor="w", lw=0.2)
            if (high[i] - low[i]) / length_ms > 0.0088 * len(name):
                axes.text((low[i] + high[i]) / 2, place, name, ha="center", va="center", fontsize=7, color="w")
    axes.set_yticks(range(len(drawn)), [row[0] for row in drawn], size=8)
    return figure


def save(figure: Figure, name: str, source: str) -> None:
    figure.supxlabel(f"Drawn by our own program from a real trace of {source}; not a screenshot.", size=7)
    figure.savefig(ROOT / "docs" / "pictures" / f"{name}.png", dpi=115)


def idle(name: str, trained: str, place: tuple[str, int, float], said: str) -> None:
    """The longest idle time in a stretch of a trace of the H100. place: ns after the third of a phase, and ms."""
    trace = open_trace(ROOT / "tests" / "data" / "h100" / f"{trained}.json.gz")
    of, length_ms = rows(trace), place[2]
    begin_ns = begin(of["nvtx"], place[0], 2) + place[1]
    start, end = trace.events.start_ns[1:], np.maximum.accumulate(trace.events.end_ns)[:-1]
    inside = np.flatnonzero((end >= begin_ns) & (start <= begin_ns + length_ms * 1e6))
    longest = inside[np.argmax((start - end)[inside])]
    low, high = ((ns[longest] - begin_ns) / 1e6 for ns in (end, start))
    figure = draw([of[each] for each in ("kernels", "memory", "nvtx", "calls", "autograd")], begin_ns, length_ms)
    figure.axes[0].broken_barh([(low, high - low)], (-0.5, 5), facecolor=MARK, alpha=0.13)
    said = f"{duration(int(1e6 * (high - low)))} {said}"
    figure.axes[0].text((low + high) / 2, -0.65, said, ha="center", color=MARK, fontsize=9, weight="bold")
    save(figure, name, f"an H100 (tests/data/h100/{trained}.json.gz)")


def ranks(name: str, run: Path, number: int, view: str | None) -> None:
    """From each rank's third forward to an optimizer step: NVTX, and all-reduces or what a view shows."""
    traces = [open_trace(path) for path in find_traces([run / "torch"])]
    of = [rows(task.trace, task.offset_ns) for task in build_object_model(traces).tasks]
    begin_ns = min(begin(each["nvtx"], "forward", 2) for each in of)
    end_ns = max(begin(each["nvtx"], "optimizer_step", number) for each in of)
    drawn = [(f"rank {n}: {r[row][0]}", *r[row][1:]) for n, r in enumerate(of) for row in ("nvtx", "gloo")]
    if view is not None:
        with tempfile.TemporaryDirectory() as folder:
            prv = read_prv(write_paraver(traces, Path(folder) / "trace").prv)
        shown = Paraver(prv, read_view((ROOT / "configs" / "paraver" / f"{view}.cfg").read_text()))
        for n, (curve, share) in enumerate(zip(shown.curves[-1], shown.tabulated(None, begin_ns, end_ns), strict=True)):
            at, label = np.flatnonzero(curve.value), f"rank {n}: {view}.cfg, {share[1.0]:.0f} %"
            drawn[2 * n + 1] = label, curve.start_ns[at], np.append(curve.start_ns[1:], prv.end_ns)[at], (COMPUTE,)
    save(draw(drawn, begin_ns, (end_ns - begin_ns) / 1e6), name, "two ranks of a miniature on a CPU")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN")
    pictures = [("nsight-all-reduce", 2, None), ("paraver-bubble", 1, "bubble")]
    for run, (name, number, view) in zip(parser.parse_args().runs, pictures, strict=False):
        ranks(name, run, number, view)
    idle("nsight-data-loading", "slow-data", ("DataLoad", -5_000_000, 260), "without a kernel: it waits for data")
    idle("nsight-idle", "bf16", ("forward", 27_850_000, 0.5), "idle: the next launch comes late")

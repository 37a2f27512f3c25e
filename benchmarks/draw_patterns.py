"""Draws docs/pictures/patterns: compute and collectives in a step of each rank, of each method of exercises 1 to 3.

`python -m benchmarks.draw_patterns FOLDER` makes the runs in FOLDER first, half a minute each, if they are not there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Patch

from harness.analysis.process.kinds import load_rules
from harness.analysis.process.prepared import prepare_process
from harness.analysis.process.view import ProcessView, views
from harness.analysis.summary import Window
from harness.measure.paths import trace_files
from harness.traces import open_trace
from harness.traces.trace import I64, Activity, Spans

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs/pictures/patterns"
WINDOW = "--skip-steps 4 --warmup-steps 2 --active-steps 12"
MEGATRON = f"-e 3 -g 2 -- {WINDOW} --micro-batch-size 2"
METHODS = {  # a picture's name -> its title, and the words of the launch
    "ddp": ("DDP, buckets of 0.25 MB", f"-e 1 -g 2 -- {WINDOW} --bucket-cap-mb 0.25"),
    "fsdp": ("FSDP", f"-e 1 -g 2 -- {WINDOW} --fsdp"),
    "zero1": ("ZeRO-1", f"-e 2 -g 2 -- {WINDOW} --ds-stage1"),
    "zero2": ("ZeRO-2", f"-e 2 -g 2 -- {WINDOW} --ds-stage2"),
    "zero3": ("ZeRO-3", f"-e 2 -g 2 -- {WINDOW}"),
    "hpz": ("hpZ, two nodes of two ranks", f"-e 2 -n 2 -g 2 -- {WINDOW} --ds-hpz-partition 2"),
    "tp": ("TP with sequence parallelism, 2 micro-batches", f"{MEGATRON} --global-batch-size 4 --tp 2"),
    "pp": ("PP, 4 micro-batches", f"{MEGATRON} --global-batch-size 8 --tp 1 --pp 2"),
    "cp": ("CP, 2 micro-batches", f"{MEGATRON} --global-batch-size 4 --tp 1 --cp 2"),
}
ALONE = ("tp", "pp")  # a rank is alone in its data-parallel group, and gloo gives such calls no group size
COMPUTE = "#9db7d1"
PHASES = {"forward": "#dbe8f4", "backward": "#e6dcf0", "optimizer_step": "#dfecd9"}
KINDS = {"all_reduce": "#e07b00", "all_gather": "#009e73", "reduce_scatter": "#b0327a", "broadcast": "#5b4bb5",
         "send": "#c4402a", "recv": "#f0b86a"}  # fmt: skip


def run_of(runs: Path, words: str) -> Path:
    """The run of these words in a folder of its own; it is made if the folder has none."""
    if not any(runs.glob("*/profiler/*/run.json")):
        launch = ["bash", str(ROOT / "slurm.sh"), *words.split()]
        subprocess.run(launch, env={**os.environ, "HARNESS_RUNS": str(runs)}, check=True, cwd=ROOT)
    return next(runs.glob("*/profiler/*/run.json")).parent


def steps_of(view: ProcessView) -> tuple[I64, I64]:
    """Starts and ends of the counted steps, in unix time."""
    steps, ahead = prepare_process(view, Window.STEPS, load_rules()).steps, view.epoch_ns or 0
    return steps.start_ns[steps.counted] + ahead, steps.end_ns[steps.counted] + ahead


def draw(name: str, title: str, ranks: list[ProcessView]) -> None:
    """The step whose slowest rank is the fastest, so the least disturbed one."""
    steps = [steps_of(view) for view in ranks]
    count = min(len(start) for start, _ in steps)
    chosen = int(np.argmin([max(end[i] - start[i] for start, end in steps) for i in range(count)]))
    zero = min(int(start[chosen]) for start, _ in steps)
    length_ms = (max(int(end[chosen]) for _, end in steps) - zero) / 1e6
    height = 1.0 + 0.95 * len(ranks)
    figure, axes = plt.subplots(len(ranks), 1, figsize=(10, height), dpi=100, sharex=True, squeeze=False)
    found = [k for a, v in zip(axes[:, 0], ranks, strict=True) for k in draw_rank(a, v, zero, length_ms, name in ALONE)]
    axes[-1, 0].set_xlabel("time in the step (ms)")
    patches = [Patch(color=KINDS[kind], label=kind.replace("_", "-")) for kind in KINDS if kind in found]
    figure.suptitle(
        f"{title}: one step of each rank (CPU miniature, gloo)", x=0.01, y=1 - 0.05 / height, ha="left", fontsize=11
    )
    patches.insert(0, Patch(color=COMPUTE, label="compute"))
    style: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (0.01, 1 - 0.25 / height), "ncols": 7}
    figure.legend(handles=patches, frameon=False, fontsize=9, **style)
    figure.subplots_adjust(left=0.12, right=0.985, top=1 - 0.58 / height, bottom=0.45 / height, hspace=0.22)
    figure.savefig(PICTURES / f"{name}.png", facecolor="white")
    plt.close(figure)


def draw_rank(axis: Any, view: ProcessView, zero: int, length_ms: float, alone: bool) -> Iterator[str]:
    """The lanes of one rank; yields the kinds of its collectives."""
    names, calls, ahead = np.array([*view.names, ""]), view.collectives, (view.epoch_ns or 0) - zero
    first_words = np.array([name.split(" ")[0] for name in names])
    axis.set(xlim=(0, length_ms), ylim=(-0.15, 2.95), yticks=(0.4, 1.4, 2.4))

    def bars(spans: Spans, rows: Any, lane: int, color: str, least_ms: float = 0) -> list[tuple[float, float]]:
        start, end = ((x[rows] + ahead) / 1e6 for x in (spans.start_ns, spans.end_ns))
        inside = [(max(s, 0), min(e, length_ms)) for s, e in zip(start, end, strict=True) if e > 0 and s < length_ms]
        gaps = [0.4 * (0 < 4 * least_ms < e - s) for s, e in inside]  # so that neighbours can be distinguished
        wide = [(s, max(e - s, least_ms)) for s, e in inside]
        axis.broken_barh(wide, (lane, 0.8), facecolors=color, edgecolor="white", linewidth=gaps)
        return inside

    for phase, color in PHASES.items():
        for start, end in bars(view.ranges, first_words[view.ranges.name] == phase, 0, color):
            label = phase.removesuffix("_step") if end - start > 0.055 * length_ms else ""
            axis.text((start + end) / 2, 0.4, label, ha="center", va="center", fontsize=7.5, color="#333")
    bars(view.events, view.events.activity == Activity.CPU_OP, 2, COMPUTE)
    for kind, color in KINDS.items():
        slow = (kind == "all_reduce") & (calls.end_ns - calls.start_ns > 50_000)
        sent = (calls.group_size > 1) | slow | (kind in {"send", "recv"}) | (not alone)
        rows = (names[calls.kind] == kind) & sent
        if bars(calls, rows, 1, color, 0.002 * length_ms):
            yield kind
    axis.set_yticklabels(("phase", "collectives", "compute"), fontsize=8)
    axis.set_ylabel(f"rank {view.rank}", fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    PICTURES.mkdir(parents=True, exist_ok=True)
    for method, (above, words) in METHODS.items():
        files = trace_files([run_of(Path(sys.argv[1]) / method, words)])
        draw(method, above, sorted((v for f in files for v in views(open_trace(f))), key=lambda v: v.rank or 0))

"""The colours of every plot, the timeline and the slides: each has one meaning everywhere. Okabe and Ito's palette and
tones between, which colour-blind readers can distinguish, on white and on black. Blue tones are compute, orange is
always communication, green is memory traffic, grey and pink are idle."""

from __future__ import annotations

COMPUTE = "#2b7bba"
COMMUNICATION = "#e07b00"
MEMORY = "#009e73"
IDLE = "#9aa0a6"
UNKNOWN = "#d8c8a8"  # withheld: neither busy nor idle
OVERLAP = "#8e5ea2"  # compute and communication at once, in plots without stripes

KINDS = {
    "gemm": "#1f6fb2",
    "attention": "#56b4e9",
    "normalisation": "#3f4fa0",
    "optimizer": "#7d6bc4",
    "embedding": "#8fb8de",
    "layout": "#2f4b7c",
    "elementwise": "#74a9cf",
    "other": "#8a94a0",
    "host": "#b5bbc2",
    "communication": COMMUNICATION,
    "memory": MEMORY,
}
CAUSES = {
    "data loading": "#cc79a7",
    "garbage collection": "#a3578f",
    "profiler": "#d9a8c8",
    "synchronisation": "#c9a800",
    "blocking copy": "#9a8f00",
    "allocation": "#e3d26a",
    "first use": "#7f6f3a",
    "graph capture": "#b8a25e",
    "launch-bound": "#8c8c8c",
    "host work": "#5f6b78",
    "not recorded": "#a9b1ba",
    "communication": "#f0b469",  # the pale twin of communication: the device only waits for it
    "other": "#c4c8cc",
}
# Parts of a job's time: blue for its steps, and tones for what comes before, beside and after them.
JOB_PARTS = {
    "prolog": "#3f4a55",
    "job start": "#5f6b78",
    "launch": "#8a94a0",
    "imports": "#cc79a7",
    "meeting": "#c9a800",
    "model": "#7d6bc4",
    "data": "#a3578f",
    "other": "#c4c8cc",
    "first step": "#7f6f3a",
    "steps": COMPUTE,
    "evaluation": "#56b4e9",
    "checkpoints": MEMORY,
    "traces": "#d9a8c8",
    "tail": COMMUNICATION,
    "ending": "#b5bbc2",
    "conversion": "#e3d26a",
}
# Memory by use: blue tones stay through all steps, warm ones do not.
MEMORY_OF = {
    "weights": "#1f6fb2",
    "gradients": "#56b4e9",
    "optimizer": "#7d6bc4",
    "activations": MEMORY,
    "buffers": COMMUNICATION,
    "inputs": "#c9a800",
    "temporary": "#cc79a7",
    "other": "#9aa0a6",
}
# Kinds of collectives: tones of communication, distinguished by their marks as well.
COLLECTIVES = ("#e07b00", "#a65b1a", "#f0b86a", "#cf4a2b", "#96734a", "#c9a227")
MARKS = ("circle", "square", "diamond", "triangle-up", "cross", "star")
# Ranks, devices, nodes, runs: their colours have no meaning. Paul Tol's "bright", which has no orange.
SERIES = ("#4477aa", "#ee6677", "#228833", "#aa3377", "#ccbb44", "#66ccee", "#8c6bb1", "#888888")


def of_kind(kind: str) -> str:
    """The colour of a kind of work; copies and sets are memory."""
    if kind.startswith(("copy", "memset")):
        return MEMORY
    return KINDS.get(kind, KINDS["other"])


def of_series(index: int) -> str:
    return SERIES[index % len(SERIES)]

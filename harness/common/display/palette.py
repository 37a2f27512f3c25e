"""The colours of every plot, the timeline and the slides: each has one meaning everywhere. Okabe and Ito's palette and
tones between, which colour-blind readers can distinguish, on white and on black. Blue tones are compute, orange is
always communication, green is memory traffic, grey and pink are idle.

What is declared in an entry has its colour there: a kind of work, a cause of idle or lost time, a part of the job's
time, a use of memory."""

from __future__ import annotations

COMPUTE = "#2b7bba"
COMMUNICATION = "#e07b00"
MEMORY = "#009e73"
IDLE = "#9aa0a6"
UNKNOWN = "#d8c8a8"  # withheld: neither busy nor idle

# Kinds of collectives: tones of communication, distinguished by their marks as well.
COLLECTIVES = ("#e07b00", "#a65b1a", "#f0b86a", "#cf4a2b", "#96734a", "#c9a227")
MARKS = ("circle", "square", "diamond", "triangle-up", "cross", "star")
# Ranks, devices, nodes, runs: their colours have no meaning. Paul Tol's "bright", which has no orange.
SERIES = ("#4477aa", "#ee6677", "#228833", "#aa3377", "#ccbb44", "#66ccee", "#8c6bb1", "#888888")


def of_series(index: int) -> str:
    return SERIES[index % len(SERIES)]

"""The file `memory/rank<R>.json` of a run: who held a rank's memory, step by step. Written by a training with
`--memory-snapshot`, read by the harness. Knows nothing of the measuring."""

from __future__ import annotations

VERSION = 1
# What memory is for, as the plan names it where the plan knows it; in the order in which a page stacks them.
CATEGORIES = ("weights", "gradients", "optimizer", "activations", "buffers", "inputs", "temporary", "other")
MOST_POINTS = 600  # of the timeline: a screen does not show more
MOST_HOLDERS = 40  # lines of who held most; the rest is summed up
MOST_STEPS = 10_000

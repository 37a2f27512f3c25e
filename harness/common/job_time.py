"""The job's time, as its ranks record it: `job-time/rank<R>.jsonl`, appended to while a rank runs.

One JSON object per line:

- `process`: rank, host, node (its number), pid, `began_ns` (unix time at which the process was started), unix_ns (the
  observer's begin).
- `place`: id, file, line, function, callers (the user's lines above it, each as file, line, function); before its
  first use.
- `at`: from unix_ns on the main thread is in `part` (one of PARTS; "": none is known) at the place `id` (-1: in none of
  the user's code), doing `what` (of an import the packages, the outermost first). A part ends where the next begins.
- `trains`: the first batch, forward or backward pass or optimizer step begins. In the first step each change is told,
  later only what lies outside of steps for long.
- `belongs`: a function (file, function) of the user's makes modules, calls the model to evaluate it, or (part `steps`)
  is of the loop of steps. What it does otherwise belongs to the part too, unless it is of several.
- `end`: the observer has ended, with the script.

Python 3.8 and its standard library: the observer reads this file too.
"""

from __future__ import annotations

from harness.common import palette

QUEUE = "queue"
PROLOG = "prolog"  # from the moment at which Slurm gave the job its nodes to the job's script
START = "job start"  # from the job's begin to the program of its first node: the batch system, modules, srun
LAUNCH = "launch"  # container, profiler, launcher and Python, until the observer begins
IMPORTS = "imports"
MEETING = "meeting"
MODEL = "model"
DATA = "data"
FIRST_STEP = "first step"
STEPS = "steps"
EVALUATION = "evaluation"
CHECKPOINTS = "checkpoints"
TRACES = "traces"
OTHER = "other"
TAIL = "tail"
ENDING = "ending"  # after the last rank: the launcher's, the profiler's and the monitor's end
CONVERSION = "conversion"  # after the last node: conversion of reports, the monitor's plots

PARTS = {  # each with its colour: blue for the steps, tones for what comes before, beside and after them
    PROLOG: "#3f4a55",
    START: "#5f6b78",
    LAUNCH: "#8a94a0",
    IMPORTS: "#cc79a7",
    MEETING: "#c9a800",
    MODEL: "#7d6bc4",
    DATA: "#a3578f",
    OTHER: "#c4c8cc",
    FIRST_STEP: "#7f6f3a",
    STEPS: palette.COMPUTE,
    EVALUATION: "#56b4e9",
    CHECKPOINTS: palette.MEMORY,
    TRACES: "#d9a8c8",
    TAIL: palette.COMMUNICATION,
    ENDING: "#b5bbc2",
    CONVERSION: "#e3d26a",
}
FROM_OBSERVER = (IMPORTS, MEETING, MODEL, DATA, FIRST_STEP, STEPS, EVALUATION, CHECKPOINTS, TRACES, "")

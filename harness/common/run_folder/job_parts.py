"""The parts of a job's time, in the order of a job, each with its colour. What observer, measurement and report agree
on.

Python 3.8 and its standard library: the observer reads this file too.
"""

from __future__ import annotations

from harness.common.display import palette

PROLOG = "prolog"  # from the moment at which Slurm gave the job its nodes to the job's script
START = "job start"  # from the job's begin to the program of its first node: the batch system, modules, srun
LAUNCH = "launch"  # container, profiler, launcher and Python, until the observer begins
IMPORTS = "imports"
MEETING = "meeting"
MODEL = "model"
DATA = "data"
COMPILATION = "compilation"  # torch.compile's, before the first step and in any step
FIRST_STEP = "first step"
STEPS = "steps"
EVALUATION = "evaluation"
CHECKPOINTS = "checkpoints"
TRACES = "traces"
OTHER = "other"
TAIL = "tail"
STUCK = "stuck"  # from the last progress of any rank, in a run that was stuck to its end
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
    COMPILATION: "#4f8a8b",
    FIRST_STEP: "#7f6f3a",
    STEPS: palette.COMPUTE,
    EVALUATION: "#56b4e9",
    CHECKPOINTS: palette.MEMORY,
    TRACES: "#d9a8c8",
    TAIL: palette.COMMUNICATION,
    STUCK: "#b2182b",
    ENDING: "#b5bbc2",
    CONVERSION: "#e3d26a",
}
FROM_OBSERVER = (
    IMPORTS, MEETING, MODEL, DATA, COMPILATION, FIRST_STEP, STEPS, EVALUATION, CHECKPOINTS, TRACES, ""
)  # fmt: skip

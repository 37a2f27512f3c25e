"""Which program lets the ranks of several nodes meet, as a job tells its launchers. Standard library only."""

TORCHRUN = "HARNESS_TORCHRUN"
"""The variable that names it; without it, torchrun as it comes."""

TORCHRUN_JSC = "torchrun_jsc"

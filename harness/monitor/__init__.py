"""The sidecar that watches one node's devices while a training runs, and what reads its samples afterwards.

    python -m harness.monitor record --out DIR [--hz 1] [--pid PID …]
    python -m harness.monitor plot DIR

It knows nothing of experiments, sites or runs: a folder, a rate and some process ids are all it is told.
"""

"""The sidecar that samples one node's devices while a training runs, and the reader of its samples.

    python -m harness.monitor record --out DIR [--hz 1] [--pid PID …]
    python -m harness.monitor plot DIR

It must not know experiments, sites or runs: its input is a folder, a rate and some process ids.
"""

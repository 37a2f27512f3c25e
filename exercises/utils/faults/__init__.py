"""Faults on purpose: `--fault` makes a training slow in a known way, to prove that a diagnosis is right.

harness/common/faults.py declares them. Each has its injector here, `inject` in the module of its name, which acts by
hooks: the training scripts know nothing of it, and a trace shows no name of it. A side process has a module of its own.
"""

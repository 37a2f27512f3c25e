"""Faults on purpose: `--fault` makes a training slow in a known way, or ends it, to prove that a diagnosis is right.

harness/common/declared_faults.py declares them. Each has its injector here in the module of its name: `inject`, which
acts by hooks, so that the training scripts know nothing of it; or `setting`, where a training must know it when it is
built. A trace shows no name of it. A side process has a module of its own.
"""

"""Faults on purpose: `--fault` makes a training slow in a known way, or ends it, to prove that a diagnosis is right.

harness/common/faults/declared.py declares them. `inject` lists the injector of each, which acts by
hooks, so that the training scripts know nothing of it; `settings` tells a training what it must know when it is built.
A trace shows no name of a fault. A side process has a module of its own.
"""

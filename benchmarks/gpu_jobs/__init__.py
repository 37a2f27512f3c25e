"""GPU jobs in simulated time: the same program with and without a fault, for a proof of the diagnosis where no GPU is.

Written apart from what it tests: nothing here, but for judge.py, imports the harness (a test holds that).
"""

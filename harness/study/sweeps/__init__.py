"""Sweeps: a file that says which settings to run, and what was measured at each of them."""

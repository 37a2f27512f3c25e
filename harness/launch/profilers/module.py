"""Runs a module of the harness where PYTHONPATH is that of somebody's own training and stays so for what it starts.
Runs by its path and with the standard library only."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[3])
    del sys.argv[0]  # of this file; the module's name takes its place
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)

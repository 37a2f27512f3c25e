"""Where our own files lie, in a checkout or installed from the wheel, and paths as people type them.

Knows nothing of what they name.
"""

from __future__ import annotations

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
# The wheel carries configs/ and templates/ inside the package; in a checkout they lie beside it.
IN_CHECKOUT = not (PACKAGE / "configs").is_dir()
ROOT = PACKAGE.parent if IN_CHECKOUT else PACKAGE
CONFIGS = ROOT / "configs"
TEMPLATES = ROOT / "templates"
PYTHON_PATH = PACKAGE.parent  # with it on PYTHONPATH, another process imports this same package
# The command that users type; pyproject.toml has the installed one.
PROGRAM = "slurm.sh" if IN_CHECKOUT else "training-traces"
NCCL_LOGS = "nccl"  # in a run: a file for each process


def expanded(text: str) -> Path:
    """The path with its `~` expanded as in a shell: `~name` of an unknown user stays as typed."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - Path.expanduser raises for such a user

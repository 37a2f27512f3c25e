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
PROGRAM = (
    "slurm.sh" if IN_CHECKOUT else "training-traces"
)  # what people type to start us; pyproject.toml's name


def expanded(text: str) -> Path:
    """The path with its `~` read as a shell does: a user who does not exist stays as typed, and is no error."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - Path.expanduser raises for such a user

"""Names the launch tests share."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SITES = ["aws-p5", "juwels-booster", "jupiter", "leonardo", "local", "marenostrum5", "slurm"]

Harness = Callable[..., "subprocess.CompletedProcess[str]"]


def anywhere(script: str) -> str:
    """The script as it would be in a checkout at /checkout: a name with a space is quoted, that one is not."""
    quoted = re.sub(f"'{re.escape(str(ROOT))}([^'\n]*)'", r"/checkout\1", script)
    return quoted.replace(str(ROOT), "/checkout")

"""The modules of scripts/acceptance import each other by bare names, as they do when the command runs."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts" / "acceptance"))

"""Where exercise 0 is. Its scripts are no package: their folder goes on the path, as when Python runs them."""

from __future__ import annotations

import sys
from pathlib import Path

EXERCISE = Path(__file__).parents[2] / "exercises/exercise_0_Communication_Tests"
if str(EXERCISE) not in sys.path:
    sys.path.insert(0, str(EXERCISE))

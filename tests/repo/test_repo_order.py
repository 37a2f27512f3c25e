"""scripts/module_order.py: which constants belong to the top of a module, and where `__main__` does."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import module_order
from tests.waiting import limit_s

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts/module_order.py"
FUNCTION = "def f() -> int:\n    return 1\n\n\n"
MAIN = 'if __name__ == "__main__":\n    f()\n'


def constants(text: str) -> list[str]:
    return [ast.unparse(statement) for statement in module_order.misplaced(ast.parse(text)).constants]


BELONGS = [
    "LIMIT = 5",
    "_LIMIT: int = 5",
    "LIMIT = TOP + 1",
    "NAMES = {name: len(name) for name in ('a', 'b')}",
    "LIMIT = 5\nMORE = LIMIT + 1",
]
STAYS = [
    "LIMIT = f()",
    "LIMITS = {'a': lambda: f()}",
    "LIMIT: Limit = 5\n\n\nclass Limit: ...",
    "LIMIT = f()\nMORE = LIMIT + 1",
    "LIMIT = 1\nLIMIT = LIMIT + 1",
    "limit = 1\nLIMIT = limit",
    "LIMITS = []\nfor each in range(3):\n    LIMITS.append(each)",
    "from harness import limits\nLIMIT = limits.LIMIT",
    "Limit = int\nLIMIT: Limit = 5",
    "limit = 5",
]


@pytest.mark.parametrize("below", BELONGS + STAYS)
def test_a_constant_that_needs_nothing_of_its_module_belongs_to_the_top(below: str) -> None:
    assert constants(f"TOP = 1\n\n\n{FUNCTION}{below}\n") == (below.split("\n") if below in BELONGS else [])
    assert constants(f"TOP = 1\n{below}\n\n\n{FUNCTION}") == []


def test_main_stands_at_the_end_or_prepares_the_imports() -> None:
    def mains(text: str) -> list[int]:
        return [statement.lineno for statement in module_order.misplaced(ast.parse(text)).mains]

    assert mains(FUNCTION + MAIN) == []
    assert mains(f"{FUNCTION}{MAIN}\n\ndef g() -> None: ...\n") == [5]
    assert mains(f"import sys\n\nif __name__ == '__main__':\n    sys.path.append('.')\n\n{FUNCTION}{MAIN}") == []


def test_the_command_names_the_place(tmp_path: Path) -> None:
    module = tmp_path / "x.py"
    module.write_text(f"{FUNCTION}LIMIT = 5\n{MAIN}LATE = 6\n")
    done = subprocess.run(
        [sys.executable, SCRIPT, module], capture_output=True, text=True, check=False, timeout=limit_s()
    )
    assert (done.returncode, done.stdout.splitlines()) == (
        1,
        [
            f"{module}:5: LIMIT belongs above the first function or class",
            f"{module}:8: LATE belongs above the first function or class",
            f"{module}:6: `__main__` belongs to the end",
        ],
    )
    module.write_text(f"LIMIT = 5\n\n\n{FUNCTION}{MAIN}")
    assert subprocess.run([sys.executable, SCRIPT, module], check=False, timeout=limit_s()).returncode == 0

"""What the harness and the training scripts share is importable where nothing is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import limit_s

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "harness/common").rglob("*.py")
    if path.stem != "__init__"
)


@pytest.mark.parametrize("module", MODULES)
def test_it_imports_without_any_installed_package(module: str) -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {module}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False, timeout=limit_s()
    )
    assert done.returncode == 0, done.stderr

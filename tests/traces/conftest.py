"""Traces recorded once for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.traces.recorded import record


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A trace of each of two ranks, recorded now by torch.profiler with gloo."""
    pytest.importorskip("torch", reason="recording a trace needs PyTorch")
    return record(tmp_path_factory.mktemp("recorded"))

"""Megatron's one hardware queue: the driver reads the setting once, when a process first asks for a GPU."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from harness.common.errors import RequestError


def test_the_queue_is_set_before_anything_asks_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("megatron.core", reason="exercise 3 needs megatron-core")  # seconds, which no other test pays
    import torch

    from exercises.exercise_3_MegatronLM import train

    seen: list[str | None] = []

    def asked() -> bool:
        seen.append(os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS"))
        return False

    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "")  # the test restores it afterwards
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS")
    monkeypatch.setattr(torch.cuda, "is_available", asked)
    monkeypatch.setattr(sys, "argv", ["train.py", "--run-dir", "r", "--model", "configs/models/tiny-mistral.yaml"])
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(RequestError, match="torchrun"):
            train.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert set(seen) == {"1"}

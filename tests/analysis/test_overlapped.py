"""How much of each kernel's time lies beside work of the other class."""

from __future__ import annotations

import pytest

from harness.analysis.process import kernels
from harness.analysis.summary import Summary
from tests.analysis.measuring import summary_of
from tests.synthetic.columns import GEMM, NCCL, Made

OTHER_NCCL = "ncclDevKernel_AllGather_RING_LL"
SOFTMAX = "softmax_warp_forward"


def measured(*rows: tuple[int, int, str]) -> Summary:
    """Kernels, each by its start, its duration and its name."""
    made = Made()
    for start, length, name in rows:
        made.event(start, start + length, name)
    return summary_of(made)


@pytest.mark.parametrize("at_once", [1, 1 << 20])
def test_one_stream_of_communication_adds_up_to_the_devices_exposed_time(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a large trace few events are looked at together."""
    monkeypatch.setattr(kernels, "CHUNK", at_once)
    s = measured((0, 100, GEMM), (60, 80, NCCL), (150, 20, OTHER_NCCL), (160, 100, SOFTMAX))
    by_name = {k.name: (k.overlapped_ns, k.exposed_ns) for k in s.kernels}
    assert by_name == {GEMM: (40, None), NCCL: (40, 40), OTHER_NCCL: (10, 10), SOFTMAX: (10, None)}
    assert sum(exposed or 0 for _, exposed in by_name.values()) == s.devices[0].exposed_communication_ns


def test_whole_cuda_graphs_leave_it_unknown() -> None:
    rows = (0, 100, GEMM), (60, 80, NCCL), (200, 500, "CUDA graph 1")
    assert [(k.overlapped_ns, k.exposed_ns) for k in measured(*rows).kernels] == [(None, None)] * 3

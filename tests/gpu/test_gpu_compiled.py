"""CUDA graphs and torch.compile in loops of our own: are the reports of them true?"""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu.claims import Claim, is_the_truth, of_each_report, precisions
from tests.gpu.truth import read, truth
from tests.gpu.work import Recorded, Work

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="session", params=["eager", "graphs", "compile"])
def loop(request: pytest.FixtureRequest, work: Work) -> Recorded:
    if request.param != "eager":
        request.getfixturevalue("gpu")
    return work.recorded(request.param, 90 if request.param == "compile" else 45)


def test_it_is_recorded(loop: Recorded, record_property: Any) -> None:
    record_property("unrecorded_ns", loop.unrecorded_ns)
    record_property("recorded_ns", loop.recorded_ns)
    record_property("precisions_ns", precisions(loop.summary))
    record_property("kinds", loop.summary["kinds"])
    record_property("kernels", loop.summary["kernels"][:15])
    assert loop.recorded_ns > 0


@of_each_report
def test_its_report(loop: Recorded, claim: Claim) -> None:
    claim(loop.summary)


@pytest.mark.usefixtures("gpu")  # a CPU's trace has no kernels to count
def test_its_report_is_the_truth_also_in_the_sum_of_its_kernels(loop: Recorded, work: Work) -> None:
    known = truth(read(loop.trace))
    whole = work.report(loop.trace, "--window", "gpu")
    assert known["devices"]
    is_the_truth(whole, known)
    assert sum(kernel["duration_ns"] for kernel in whole["kernels"]) == known["kernels"]["duration_ns"]

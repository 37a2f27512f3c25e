"""Whatever is typed or read: no traceback, a sentence for a refusal, nothing written by one, nothing started, no hang.

The same inputs in each run; benchmarks/fuzz.py makes others for a night.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.box import Box
from tests.fuzz.fence import run_case
from tests.fuzz.inputs import KINDS

HOW_MANY = {"commands": 200, "sites": 30, "kineto": 14, "nsys": 18, "rocpd": 18}
NUMBERS = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("kind", KINDS)
def test_every_end_is_one_that_a_person_can_read(box: Box, kind: str) -> None:
    @settings(max_examples=HOW_MANY[kind], derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(NUMBERS, st.lists(NUMBERS, max_size=9))
    def holds(head: int, parts: list[int]) -> None:
        for ended in run_case(box, KINDS[kind](head, parts)):
            assert not ended.fault, f"{ended.argv!r}: {ended.fault}\n{ended.err}"

    holds()

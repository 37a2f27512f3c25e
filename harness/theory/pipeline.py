"""The schedule of a pipeline: how much of it is idle by design."""

from __future__ import annotations


def expected_bubble(stages: int, microbatches: int, virtual_stages: int = 1) -> float:
    """Idle share of a 1F1B schedule, (p−1)/(v·m+p−1). Source: Narayanan et al., SC 2021, section 2.2.

    >>> expected_bubble(2, 4), expected_bubble(4, 8, 2)
    (0.2, 0.15789473684210525)
    """
    return (stages - 1) / (virtual_stages * microbatches + stages - 1)

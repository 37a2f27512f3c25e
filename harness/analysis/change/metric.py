"""Whether more or less of a metric is worse. Knows the metrics' names only."""

from __future__ import annotations

import re

_NEUTRAL = re.compile(
    r"expected_\w+|nccl_\w+|parameter_bytes|message_bytes|tokens_per_step|microbatches|gemm_\w+"
)
_LESS_IS_WORSE = re.compile(r"tokens_per_s(_per_rank)?|mfu|hfu|overlap_fraction|load_balance|\w*efficiency")
_MORE_IS_WORSE = re.compile(
    r"\w+_(ns|bytes|joules|count)|step_ns_per_token|bytes_across_nodes|last_loss|bubble|waiting_share_of_communication"
    r"|(data_loading|exposed_communication|memory|idle\w*)_share|straggler_slowdown"
)


def more_is_worse(name: str) -> bool | None:
    """Of a metric of `metrics_by_name`; None if neither more nor less of it is worse by itself."""
    if _NEUTRAL.fullmatch(name):
        return None
    if _LESS_IS_WORSE.fullmatch(name):
        return False
    return True if _MORE_IS_WORSE.fullmatch(name) else None

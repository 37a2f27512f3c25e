"""Lets ranks wait for each other without a collective, so that a trace does not show it as communication."""

from __future__ import annotations

import torch.distributed as dist


def meet(place: str) -> None:
    """Return when every rank has called this with the same `place`. Use each place once.

    The process group's store counts the ranks; its timeout ends the waiting with an error. A single rank does not
    wait.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    store = dist.distributed_c10d._get_default_store()
    here, complete = f"harness/meeting/{place}", f"harness/meeting/{place}/complete"
    if store.add(here, 1) == dist.get_world_size():
        store.set(complete, "")
    store.wait([complete])

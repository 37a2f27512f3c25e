"""Ranks waiting for each other without a collective, so that nothing of it shows in the communication of a trace."""

from __future__ import annotations

import torch.distributed as dist


def meet(place: str) -> None:
    """Return when every rank has called this with the same `place`; each place is for one meeting.

    Counted in the process group's store, whose timeout ends the waiting with an error. Without other ranks it returns
    at once.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    store = dist.distributed_c10d._get_default_store()
    here, complete = f"harness/meeting/{place}", f"harness/meeting/{place}/complete"
    if store.add(here, 1) == dist.get_world_size():
        store.set(complete, "")
    store.wait([complete])

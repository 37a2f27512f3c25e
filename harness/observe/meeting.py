"""Lets ranks wait for each other, and agree, without a collective: a trace does not show it as communication."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist


def meet(place: str, patience: timedelta | None = None) -> None:
    """Return when every rank has called this with the same `place`. Use each place once.

    The process group's store counts the ranks. patience: how long to wait for them; None: as long as the store does. A
    single rank does not wait.

    Raises:
        torch.distributed.DistError: the others did not come in time, or the store is gone.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    store = dist.distributed_c10d._get_default_store()
    here, complete = f"harness/meeting/{place}", f"harness/meeting/{place}/complete"
    if store.add(here, 1) == dist.get_world_size():
        store.set(complete, "")
    store.wait([complete], *([] if patience is None else [patience]))


def arrive(place: str) -> None:
    """Say that this rank has come to `place`, without waiting for the others. Each rank says so once."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.distributed_c10d._get_default_store().add(f"harness/arrived/{place}", 1)


def all_arrived(place: str) -> bool:
    """Whether every rank has come to `place`. A single rank always has."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return True
    world = dist.get_world_size()
    return bool(dist.distributed_c10d._get_default_store().add(f"harness/arrived/{place}", 0) == world)


def first_said(subject: str, said: str | None) -> str | None:
    """What a rank was the first to say of a subject, now or before; None while none has. said: this rank's word.

    A lookup in the process group's store. A single rank agrees with itself.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return said
    store, key = dist.distributed_c10d._get_default_store(), f"harness/{subject}"
    if said is not None:
        return str(store.compare_set(key, "", said).decode())
    return str(store.get(key).decode()) if store.check([key]) else None

"""Which of a node's GPUs are the job's, by the variable that names them. Knows no driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


class NoGpu(Exception):
    """Why the GPU of a MIG slice is not known."""


@dataclass(frozen=True)
class Choice:
    """The job's GPUs as places in the list of all, why others are not among them, and the slices of those that are
    split."""

    places: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    slices: dict[int, str] = field(default_factory=dict)


def _unknown_slice(name: str) -> str:
    raise NoGpu(f"{name} is not the name of a GPU here")


def choose_visible(
    uuids: Sequence[str | None],
    visible: str | None,
    variable: str = "CUDA_VISIBLE_DEVICES",
    uuid_of_slice: Callable[[str], str] = _unknown_slice,
) -> Choice:
    """The GPUs that `variable` names by number, by the start of a UUID or by a MIG slice; all if it is unset.

    As CUDA and ROCm read it, the list ends at the first entry that names none: empty, -1, NoDevFiles of old Slurm.

    uuids: of the node's GPUs in the order of their numbers; None: it does not answer, so that any UUID may be its own.
    visible: the variable's value. uuid_of_slice: the UUID of a slice's GPU, or it raises NoGpu.
    """
    if visible is None:
        return Choice(tuple(range(len(uuids))))
    chosen: set[int] = set()
    slices: dict[int, str] = {}
    silent = [place for place, uuid in enumerate(uuids) if uuid is None]
    for entry in map(str.strip, visible.split(",")):
        try:
            name = uuid_of_slice(entry) if entry.startswith("MIG-") else entry
        except NoGpu as error:
            end = f"the GPU of {entry} is not known ({error})"
            break
        found = _places(uuids, name)
        if not found and name.startswith("GPU-") and silent:
            found = [silent.pop(0)]
        if len(found) != 1:
            what = "several GPUs" if found else "no GPU of this node"
            end = f"its entry {entry!r} names {what}" if entry else "an empty entry names no GPU"
            break
        chosen.update(found)
        if name is not entry:
            slices[found[0]] = ", ".join(filter(None, (slices.get(found[0]), entry)))
    else:
        return Choice(tuple(sorted(chosen)), (), slices)
    sampled = "only the GPUs before it are sampled" if chosen else "no GPU is sampled"
    return Choice(tuple(sorted(chosen)), (f"{variable} is {visible!r}: {end}, so {sampled}",), slices)


def _places(uuids: Sequence[str | None], name: str) -> list[int]:
    if name.isascii() and name.isdecimal():
        return [int(name)] if int(name) < len(uuids) else []
    return [place for place, uuid in enumerate(uuids) if name and uuid is not None and uuid.startswith(name)]

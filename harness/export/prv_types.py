"""The numbers and labels of our Paraver traces: those of nsys2prv 0.5.8 where it has them.

So the same views open both traces. A view finds a type by its label first, by its number second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum


class EventType(IntEnum):
    """Numbers of event types. Ranges and metrics count on from theirs: +100 per NVTX domain, +1 per counter."""

    START_END = 9004
    CORRELATION = 9200
    METRICS = 9400
    NCCL_REGIONS = 9500
    COLLECTIVE_BYTES = 9501
    COLLECTIVE = 9550
    COLLECTIVE_RANKS = 9551
    COLLECTIVE_GROUP = 9552
    RANGES = 9600
    API = 63000000
    MEMORY = 63000001
    MEMORY_BYTES = 63000002
    KERNEL = 63000006
    NCCL = 63000007


class ThreadState(IntEnum):
    """Numbers of thread states, Extrae's; Paraver's function "Useful" is Running."""

    IDLE = 0
    RUNNING = 1
    GROUP_COMMUNICATION = 13
    MEMORY_TRANSFER = 17


TYPE_LABELS: dict[int, str] = {
    EventType.API: "CUDA library call",
    EventType.KERNEL: "CUDA kernel",
    EventType.MEMORY: "CUDA memcpy kernel",
    EventType.NCCL: "NCCL kernel",
    EventType.MEMORY_BYTES: "Memcopy size",
    EventType.CORRELATION: "Correlation ID",
    EventType.NCCL_REGIONS: "NCCL regions",
    EventType.COLLECTIVE_BYTES: "NCCL Message size [bytes]",
    EventType.COLLECTIVE: "Collective kind",
    EventType.COLLECTIVE_RANKS: "Collective ranks in group",
    EventType.COLLECTIVE_GROUP: "Collective communicator",
    EventType.START_END: "NVTX startend ranges",
}
STATE_LABELS: dict[int, str] = {
    ThreadState.IDLE: "Idle",
    ThreadState.RUNNING: "Running",
    ThreadState.GROUP_COMMUNICATION: "Group Communication",
    ThreadState.MEMORY_TRANSFER: "Memory transfer",
}
STATE_COLOURS: dict[int, tuple[int, int, int]] = {
    ThreadState.IDLE: (200, 200, 200),
    ThreadState.RUNNING: (0, 114, 178),
    ThreadState.GROUP_COMMUNICATION: (213, 94, 0),
    ThreadState.MEMORY_TRANSFER: (86, 180, 233),
}
NCCL_DOMAIN = "NCCL"  # ranges that NCCL records itself; nsys2prv gives them a type of their own
LAUNCH_TAG = 55001  # a line from the API call to its kernel
MEMORY_TAG = 55002  # a line from the API call to its copy


def ranges_label(domain: str) -> str:
    """Label of the ranges of one NVTX domain; "" is the default one."""
    return f"NVTX pushpop ranges {domain or 'default'} domain"


@dataclass(frozen=True)
class Values:
    """An event type as the .pcf describes it. `values`: the label of each value; empty if it is a plain number."""

    number: int
    label: str
    values: Mapping[str, int]


def pcf_text(types: list[Values]) -> str:
    """The whole .pcf file, each label on one line. Without comments: BSC's readers refuse them."""
    parts = [
        "DEFAULT_OPTIONS\n\nLEVEL               THREAD\nUNITS               NANOSEC\nLOOK_BACK           100\n"
        "SPEED               1\nFLAG_ICONS          ENABLED\nNUM_OF_STATE_COLORS 1000\nYMAX_SCALE          37\n",
        "DEFAULT_SEMANTIC\n\nTHREAD_FUNC         State As Is\n",
        "STATES\n" + "".join(f"{int(state)}    {label}\n" for state, label in STATE_LABELS.items()),
        "STATES_COLOR\n"
        + "".join(f"{int(state)}    {{{r},{g},{b}}}\n" for state, (r, g, b) in STATE_COLOURS.items()),
    ]
    return "\n".join(parts + [_type_text(each) for each in types]) + "\n"


def clean(label: str) -> str:
    """The label on one line; "unnamed" if it is empty."""
    return " ".join(label.split()) or "unnamed"


def _type_text(each: Values) -> str:
    text = f"EVENT_TYPE\n0    {each.number}    {clean(each.label)}\n"
    if each.values:
        ordered = sorted(each.values.items(), key=lambda item: item[1])
        text += "VALUES\n0    End\n" + "".join(f"{value}    {clean(label)}\n" for label, value in ordered)
    return text

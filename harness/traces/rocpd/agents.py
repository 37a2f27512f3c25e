"""The GPUs of a rocpd database: its agents, which are numbered together with the CPUs."""

from __future__ import annotations

from typing import NamedTuple

from harness.traces.database import whole
from harness.traces.rocpd.tables import Recording


class Agents(NamedTuple):
    """The trace's number of each GPU by the agent's id, and the GPUs' names by that number."""

    number: dict[int, int]
    names: dict[int, str]


def read_agents(recording: Recording) -> Agents:
    """The GPUs. `type_index` counts them as the machine has them, whichever of them the process may use."""
    table = recording.table("info_agent")
    wanted = ("id", "type", "type_index", "absolute_index", "product_name", "model_name", "name")
    number, names = dict[int, int](), dict[int, str]()
    for agent, kind, index, absolute, *called in recording.database.rows(table, *wanted):
        if kind != "GPU" or whole(agent) is None:
            continue
        device = next((i for i in map(whole, (index, absolute)) if i is not None), agent)
        number[agent] = device
        names[device] = next((str(name) for name in called if name), "GPU")
    return Agents(number, names)

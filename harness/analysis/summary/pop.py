"""How well the devices were used, in the hierarchy of POP and TALP. Fields only; no measurement."""

from __future__ import annotations

from harness.analysis.summary.base import SummaryPart

NO_REPLAY = "the time of the same steps with an ideal network was not replayed"


class PopEfficiency(SummaryPart):
    """Efficiencies over the counted steps of all devices, shares from 0 to 1, and the times that give them.

    parallel = load balance x communication x orchestration; communication = serialisation x transfer.
    """

    devices: int
    steps: int
    elapsed_ns: int
    useful_ns: int
    max_useful_ns: int
    max_active_ns: int
    parallel: float
    load_balance: float
    communication: float
    orchestration: float
    ideal_elapsed_ns: int | None = None
    serialisation: float | None = None
    transfer: float | None = None
    split_unknown: str | None = NO_REPLAY

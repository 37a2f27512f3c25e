"""What a run costs: GPU hours, and an upper bound of its energy. Arithmetic only."""

from __future__ import annotations

SECONDS_PER_HOUR = 3600.0


def gpu_hours(gpus: int, seconds: float) -> float:
    """GPU hours of a job that holds `gpus` devices for `seconds`.

    >>> gpu_hours(8, 1800)
    4.0
    """
    return gpus * seconds / SECONDS_PER_HOUR


def energy_kwh(gpus: int, seconds: float, watts: float) -> float:
    """kWh of `gpus` devices that draw `watts` each for `seconds`.

    With the device's thermal design power it is an upper bound of what the GPUs use, and knows nothing of hosts,
    network and cooling.

    >>> energy_kwh(4, 3600, 500)
    2.0
    """
    return gpus * seconds / SECONDS_PER_HOUR * watts / 1000

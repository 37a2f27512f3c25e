"""The protocol of a source of samples: its columns, its devices, and one row per device at each call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

SampleValue = int | float | None  # None: unknown for this device, or this time


class Source(Protocol):
    """Devices that can be sampled. A column has its unit in its name."""

    @property
    def kind(self) -> str:
        """The source's name in meta.json."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the values in each row."""

    def describe(self) -> Mapping[str, Any]:
        """The source's part of meta.json: driver, devices, and where the power is measured."""

    def sample(self) -> Sequence[Sequence[SampleValue]]:
        """One row per device, in the order of `describe()["devices"]`, each with one value per column."""

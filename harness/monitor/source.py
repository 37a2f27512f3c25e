"""What a source of samples is: it names columns and devices, and gives one row per device when asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

Value = int | float | None  # None: this device cannot say, or could not say this time


class Source(Protocol):
    """Anything that can be sampled. Columns carry their unit in their name."""

    @property
    def kind(self) -> str:
        """Its name in meta.json."""

    @property
    def columns(self) -> tuple[str, ...]:
        """What each row holds."""

    def describe(self) -> Mapping[str, Any]:
        """What goes into meta.json beside the host: driver, devices, where power comes from."""

    def sample(self) -> Sequence[Sequence[Value]]:
        """One row per device, in the order of `describe()["devices"]`, each with one value per column."""

"""Energy of the machine's CPU packages from RAPL, if the user may read it."""

from __future__ import annotations

from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


class _Package:
    """One counter in microjoules, which starts again from 0 at a maximum that the kernel gives."""

    def __init__(self, folder: Path) -> None:
        self._counter = folder / "energy_uj"
        self._range_uj = int((folder / "max_energy_range_uj").read_text())
        self._last_uj = int(self._counter.read_text())
        self._total_uj = (
            self._last_uj
        )  # as the counter says: so a monitor that is started again goes on from it

    def advance(self) -> int:
        """Microjoules since the counter last began at 0 before this object was made."""
        now_uj = int(self._counter.read_text())
        step_uj = now_uj - self._last_uj
        self._total_uj += step_uj if step_uj >= 0 else step_uj + self._range_uj
        self._last_uj = now_uj
        return self._total_uj


class Rapl:
    """The sum of all packages. The energy is the machine's, not the job's."""

    def __init__(self, packages: list[_Package]) -> None:
        self._packages = packages

    def energy_joules(self) -> float | None:
        """Joules since some moment before the start, or None if a counter cannot be read any more."""
        try:
            return sum(package.advance() for package in self._packages) / 1e6
        except (OSError, ValueError):
            return None


def open_rapl(powercap: Path = POWERCAP) -> Rapl | None:
    """The machine's packages; None if there are none or only root may read them.

    Only the top level counts (`intel-rapl:0`, on AMD too): cores and DRAM are parts of it, and it is a part of `psys`.
    """
    packages = []
    for folder in sorted(powercap.glob("intel-rapl:[0-9]*")):
        try:
            if folder.name.count(":") == 1 and (folder / "name").read_text().startswith("package"):
                packages.append(_Package(folder))
        except (OSError, ValueError):
            continue
    return Rapl(packages) if packages else None

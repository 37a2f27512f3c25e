"""The files that exercise 0 leaves for reports, and how to read them. Shows nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from harness.common.display.format import duration
from harness.common.errors import WorkError
from harness.common.model.alpha_beta import MIN_R_SQUARED, bus_factor, is_line
from harness.common.run_folder.run_files import COLLECTIVES, VERDICT
from harness.common.run_folder.run_store import Content, RunFile, UnreadFileError
from harness.run import typed

NO_LINE = (
    "Without α: too few message sizes were measured for a line. R² in place of α: the times do not lie on a straight "
    f"line (at least {MIN_R_SQUARED} is needed), so nothing is concluded from it."
)
_Count = Annotated[int, Field(ge=0, lt=1 << 63)]


class _FilePart(BaseModel):
    """The fields that the report shows; the files have more."""

    model_config = ConfigDict(extra="ignore", defer_build=True)


class MessagePoint(_FilePart):
    """One message size."""

    message_bytes: _Count
    time_ns: float
    busbw_gbytes_per_s: float
    correct: bool
    share_of_link: float | None = None


class Fit(_FilePart):
    """time_ns = alpha_ns + beta_ns_per_byte · bytes, with β above 0, and how well it describes the times."""

    alpha_ns: float
    beta_ns_per_byte: float
    r2_log: float

    def endless_gb_per_s(self) -> float:
        """1/β, the algorithm bandwidth (bytes over time) of an infinitely long message."""
        return 1 / self.beta_ns_per_byte

    def endless_bus_gb_per_s(self, kind: str, ranks: int) -> float:
        """The same as bus bandwidth, to compare it with a measured one."""
        return self.endless_gb_per_s() * bus_factor(kind, ranks)

    def half_bytes(self) -> float:
        """The message size at which the line reaches half of that bandwidth: α/β."""
        return self.alpha_ns / self.beta_ns_per_byte


class MeasuredCollective(_FilePart):
    """One collective in one scope. reason: why points are missing. fit: None for too few message sizes."""

    collective: str
    scope: str  # intra | inter | world
    ranks: _Count
    points: list[MessagePoint] = []
    fit: Fit | None = None
    reason: str | None = None

    @property
    def line(self) -> Fit | None:
        """The fit, if it describes the times: nothing is concluded from another one."""
        return self.fit if self.fit and is_line(self.fit.beta_ns_per_byte, self.fit.r2_log) else None

    def alpha_text(self) -> str:
        """α; without a line why there is none, as NO_LINE explains it."""
        off = f"R² {self.fit.r2_log:.2f}" if self.fit else "–"
        return duration(self.line.alpha_ns) if self.line else off


class CollectiveResults(_FilePart):
    """collectives.json."""

    world_size: _Count | None = None
    backend: str | None = None
    device_name: str | None = None
    reason: str | None = None  # why nothing was measured
    results: list[MeasuredCollective]


class VerdictProblem(_FilePart):
    """One problem or remark of the verdict."""

    level: str
    message: str


class LinkVerdict(_FilePart):
    """verdict.json."""

    verdict: str
    findings: list[VerdictProblem]
    lines: list[str] = []  # of a test other than the collectives: its table


COLLECTIVES_FILE = typed(COLLECTIVES, CollectiveResults)
VERDICT_FILE = typed(VERDICT, LinkVerdict)


def read_results(run_dir: Path) -> CollectiveResults | None:
    """The measured collectives; None: the run left no such file. Raises WorkError: the file is damaged."""
    return _read(COLLECTIVES_FILE, run_dir)


def read_verdict(run_dir: Path) -> LinkVerdict | None:
    """The verdict over all nodes; None: the run left no such file. Raises WorkError: the file is damaged."""
    return _read(VERDICT_FILE, run_dir)


def _read(run_file: RunFile[Content], run_dir: Path) -> Content | None:
    path = run_file.path(run_dir)
    try:
        return run_file.read(path)
    except UnreadFileError as error:
        if error.is_missing:
            return None
        raise WorkError(f"{path} {'is damaged' if error.is_damaged else 'cannot be read'} ({error.reason})") from None

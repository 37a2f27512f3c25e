"""The results and the verdict in the comm/ folder of a run of exercise 0, checked while they are read. The only place
of the report that knows the shape of these files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.common.bounded_read import BoundedReadError, read_bounded, why_unread
from harness.common.bus_factor import bus_factor
from harness.common.errors import WorkError
from harness.run import Run

_Count = Annotated[int, Field(ge=0, lt=1 << 63)]


class _FilePart(BaseModel):
    """The fields that the report shows; the files have more."""

    model_config = ConfigDict(extra="ignore")


class Point(_FilePart):
    """One message size."""

    message_bytes: _Count
    time_ns: float
    busbw_gbytes_per_s: float
    correct: bool
    share_of_link: float | None = None


class Fit(_FilePart):
    """time_ns = alpha_ns + beta_ns_per_byte · bytes."""

    alpha_ns: float
    beta_ns_per_byte: float

    def endless_gb_per_s(self) -> float | None:
        """1/β, the algorithm bandwidth (bytes over time) of an infinitely long message; None if β is zero."""
        return 1 / self.beta_ns_per_byte if self.beta_ns_per_byte > 0 else None

    def endless_bus_gb_per_s(self, kind: str, ranks: int) -> float | None:
        """The same as bus bandwidth, to compare it with a measured one."""
        endless, factor = self.endless_gb_per_s(), bus_factor(kind, ranks)
        return None if endless is None or factor is None else endless * factor

    def half_bytes(self) -> float | None:
        """The message size at which the line reaches half of that bandwidth: α/β."""
        return self.alpha_ns / self.beta_ns_per_byte if self.beta_ns_per_byte > 0 else None


class Result(_FilePart):
    """One collective in one scope. `reason`: why there are fewer points than requested. Without `fit`, there were too
    few message sizes for a line."""

    collective: str
    scope: str  # intra | inter | world
    ranks: _Count
    points: list[Point] = []
    fit: Fit | None = None
    reason: str | None = None
    run: str = ""  # the job id of the run that measured it; not in the file


class CollectiveResults(_FilePart):
    """collectives.json."""

    world_size: _Count | None = None
    backend: str | None = None
    device_name: str | None = None
    reason: str | None = None  # why nothing was measured
    results: list[Result]


class Problem(_FilePart):
    """One problem or remark of the verdict."""

    level: str
    message: str


class LinkVerdict(_FilePart):
    """verdict.json."""

    verdict: str
    findings: list[Problem]
    lines: list[str] = []  # of a test other than the collectives: its table


_File = TypeVar("_File", CollectiveResults, LinkVerdict)


def read_results(run_dir: Path) -> CollectiveResults | None:
    """The measured collectives; None: the run left no such file.

    Raises:
        WorkError: the file is damaged.
    """
    return _read(Run(run_dir).collectives, CollectiveResults)


def read_verdict(run_dir: Path) -> LinkVerdict | None:
    """The verdict over all nodes; None: the run left no such file.

    Raises:
        WorkError: the file is damaged.
    """
    return _read(Run(run_dir).verdict, LinkVerdict)


def _read(path: Path, shape: type[_File]) -> _File | None:
    try:
        return shape.model_validate_json(read_bounded(path))
    except FileNotFoundError:
        return None
    except (OSError, BoundedReadError) as error:
        raise WorkError(f"{path} cannot be read ({why_unread(error)})") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise WorkError(f"{path} is damaged ({where}{': ' * bool(where)}{first['msg']})") from None

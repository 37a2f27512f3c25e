"""The list of the backends, by the name in a site's `scheduler` and in a run's record."""

from __future__ import annotations

from harness.common.errors import RequestError, WorkError
from harness.launch.backends import allocation, local, observed, slurm
from harness.launch.backends.protocol import Backend
from harness.run import Run
from harness.site.site import Site

BACKENDS: dict[str, Backend] = {"slurm": slurm, "local": local, allocation.NAME: allocation, observed.NAME: observed}


def of_sites() -> list[str]:
    """The names that a site may have as its scheduler: runs that were only observed were started by nobody here."""
    return [name for name in BACKENDS if name != observed.NAME]


def backend_of(site: Site) -> Backend:
    """The backend that runs the site's jobs. Raises RequestError: the site names an unknown backend."""
    if site.scheduler in of_sites():
        return BACKENDS[site.scheduler]
    raise RequestError(f"site {site.name}: scheduler is {site.scheduler!r}, and takes {' or '.join(of_sites())}")


def backend_of_run(run: Run) -> Backend:
    """The backend that started the run. Raises WorkError: this installation does not have it."""
    name = run.record.backend
    if name in BACKENDS:
        return BACKENDS[name]
    raise WorkError(f"{run.name}: backend {name!r}, which started it, is not here")

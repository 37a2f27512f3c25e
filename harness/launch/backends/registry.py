"""The list of the backends, by the name in a site's `scheduler` and in a run's record."""

from __future__ import annotations

from harness.common.errors import RequestError, WorkError
from harness.launch.backends import allocation, local, observed, slurm
from harness.launch.backends.protocol import Backend
from harness.run import Run
from harness.site.site import Site

OF_SITES: dict[str, Backend] = {"slurm": slurm, "local": local, allocation.NAME: allocation}
BACKENDS = {**OF_SITES, observed.NAME: observed}  # of runs


def backend_of(site: Site) -> Backend:
    """The backend that runs the site's jobs. Raises RequestError: the site names an unknown backend."""
    if site.scheduler in OF_SITES:
        return OF_SITES[site.scheduler]
    raise RequestError(f"site {site.name}: scheduler is {site.scheduler!r}, and takes {' or '.join(OF_SITES)}")


def backend_of_run(run: Run) -> Backend:
    """The backend that started the run. Raises WorkError: this installation does not have it."""
    name = run.record.backend
    if name in BACKENDS:
        return BACKENDS[name]
    raise WorkError(f"{run.name}: backend {name!r}, which started it, is not here")

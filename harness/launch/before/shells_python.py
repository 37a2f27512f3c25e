"""Which Python trains where the user's shell has an active environment and the site a container."""

from __future__ import annotations

from collections.abc import Mapping

from harness.common.system.training_python import active_python, ask_python
from harness.experiment.own import OwnTraining
from harness.site.site import Site


def python_or_container(experiment: OwnTraining, site: Site, environ: Mapping[str, str]) -> tuple[OwnTraining, str]:
    """The training with the Python of the user's active environment in place of the site's container, or without it
    where it has no PyTorch, as conda's base; and which of the two trains, as a sentence, empty where there is one."""
    python = experiment.python
    if site.container is None or python is None or python != active_python(environ):
        return experiment, ""
    found = ask_python(python)
    if not isinstance(found, str) and "torch" in found.modules:
        return (
            experiment,
            f"{python} of your shell trains, not the container of site {site.name}: deactivate it to use that",
        )
    container_trains = experiment.model_copy(update={"python": None})
    return container_trains, f"the container of site {site.name} trains: {python} of your shell has no PyTorch"

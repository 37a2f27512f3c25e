"""The faults of a module, all played at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.play import Case, Stage
from tests.faults.scene import Scene


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest) -> Iterator[dict[str, Scene]]:
    """The runs of this module's chosen cases after their faults: all are played at once."""
    chosen = [
        item.callspec.params["case"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.module is request.module and hasattr(item, "callspec")
    ]
    with Stage(lambda: request.getfixturevalue("slurm")) as stage:
        yield stage.play([case for case in chosen if isinstance(case, Case)])

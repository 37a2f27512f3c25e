"""The long faults run with `--all`; without it they are left out, and a line says so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.play import Case, Stage
from tests.faults.scene import Scene

_left_out = pytest.StashKey[int]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all"):
        return
    long = [item for item in items if item.get_closest_marker("long")]
    items[:] = [item for item in items if not item.get_closest_marker("long")]
    config.hook.pytest_deselected(items=long)
    config.stash[_left_out] = len(long)


def pytest_report_collectionfinish(config: pytest.Config) -> str:
    count = config.stash.get(_left_out, 0)
    return (
        f"{count} long faults are left out: bash scripts/test tests/faults --all runs them too"
        if count
        else ""
    )


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest) -> Iterator[dict[str, Scene]]:
    """The runs of this module's chosen cases after their faults: all are played at once."""
    chosen = [
        item.callspec.params["case"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.module is request.module and hasattr(item, "callspec")
    ]
    with Stage() as stage:
        yield stage.play([case for case in chosen if isinstance(case, Case)])

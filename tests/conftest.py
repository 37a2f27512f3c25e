"""What every folder's tests may ask for: the real nsys, which `scripts/test` fetches; and which tests are left out.

What is marked `long` runs with `--all`: what repeats, at length or in another variant, what a shorter test shows.
"""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

from tests import leftovers, real_nsys

pytest_plugins = ["tests.slurm.clusters"]  # of the session, whichever folder a test is in

settings.register_profile("unhurried", deadline=None)  # no property fails because the machine is busy
settings.load_profile("unhurried")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="also what is marked long")


_left_out = pytest.StashKey[int]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all"):
        return
    long = [item for item in items if item.get_closest_marker("long")]
    items[:] = [item for item in items if not item.get_closest_marker("long")]
    config.hook.pytest_deselected(items=long)
    config.stash[_left_out] = len(long)


def pytest_configure() -> None:
    """As in every command of the harness: to look for garbage often takes a tenth of the tests' time. A worker's output
    is no terminal, so it has no width."""
    gc.set_threshold(100_000, 50, 100)
    os.environ.pop("COLUMNS", None)
    # A shell ignores it for what it starts in the background; what tests start and interrupt would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    leftovers.begin()


def pytest_collection_finish() -> None:
    """Thousands of tests stay until the end: without this each full collection of garbage looks at all of them."""
    gc.freeze()


def pytest_report_collectionfinish(config: pytest.Config) -> str:
    count = config.stash.get(_left_out, 0)
    return f"{count} long tests are left out: bash scripts/test --all runs them too" if count else ""


@pytest.fixture(scope="session")
def nsys_folder(request: pytest.FixtureRequest) -> Path:
    """The folder of a real nsys, for a PATH: the one that a test names, else the usual one (tests/real_nsys.py)."""
    return real_nsys.folder(getattr(request, "param", None) or real_nsys.usual())

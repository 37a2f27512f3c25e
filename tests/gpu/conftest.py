"""What only a GPU can show. Without a GPU these tests skip; `--tiny` tries them with a small model on the CPU.

Each test's outcome and its numbers go into results.json of `--out` as soon as it ends: the whole may be ended at any
time, and goes on from the runs in `--work`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.machine import has_gpu
from tests.gpu.scrub import cleaned, secrets
from tests.gpu.work import Work


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gpu", "tests of a GPU")
    group.addoption("--out", type=Path, metavar="DIR", help="folder for the results")
    group.addoption("--work", type=Path, metavar="DIR", help="folder for runs and traces (default: a temporary one)")
    group.addoption("--tiny", action="store_true", help="without a GPU: try with a small model on the CPU")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not has_gpu() and not item.config.getoption("--tiny", False):
        pytest.skip("this machine shows no NVIDIA GPU; --tiny tries what a CPU can show")


@pytest.fixture(scope="session")
def gpu() -> None:
    """Skips what a CPU cannot show."""
    if not has_gpu():
        pytest.skip("only a GPU can show this")


@pytest.fixture(scope="session")
def work(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Work:
    """The folders of what stays on the machine, and of what is taken home."""
    folder: Path = pytestconfig.getoption("--work", None) or tmp_path_factory.mktemp("gpu")
    out: Path = pytestconfig.getoption("--out", None) or folder
    for each in (folder, out):
        each.mkdir(parents=True, exist_ok=True)
    return Work(folder.resolve(), out.resolve())


def pytest_configure(config: pytest.Config) -> None:
    out: Path | None = config.getoption("--out", None)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        config.pluginmanager.register(Results(out / "results.json"))


class Results:
    """Keeps results.json current: by test its outcome, seconds, numbers, and why it failed or what is missing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tests: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """After each part of a test."""
        if report.when != "call" and report.passed:
            return
        name = report.nodeid.removeprefix("tests/gpu/")
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext[-2000:]
        numbers = dict(report.user_properties)
        test = {"outcome": report.outcome, "seconds": round(report.duration, 3), "reason": reason, **numbers}
        self._tests[name] = cleaned(test, secrets())
        unfinished = self._path.with_suffix(".new")
        unfinished.write_text(json.dumps(self._tests, indent=1) + "\n", encoding="utf-8")
        unfinished.replace(self._path)

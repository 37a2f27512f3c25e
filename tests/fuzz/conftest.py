"""A sandbox of runs and files for the tests of this folder, inside of the fence."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz.box import Box
from tests.fuzz.fence import fenced
from tests.fuzz.sandbox import furnished


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    made = furnished(tmp_path_factory.mktemp("fuzz") / "box")
    with fenced(made):
        yield made

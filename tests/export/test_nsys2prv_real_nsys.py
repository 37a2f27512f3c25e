"""The error for a real nsys that nsys2prv cannot use."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from harness.common.errors import WorkError
from harness.export.nsys2prv import Tool, convert
from tests import real_nsys
from tests.real_traces import real_trace


@pytest.mark.parametrize("nsys_folder", [real_nsys.OLDER], indirect=True)
def test_an_nsys_too_old_for_nsys2prv_is_an_error_that_says_so(nsys_folder: Path, tmp_path: Path) -> None:
    report = tmp_path / "rank0.nsys-rep"
    shutil.copyfile(real_trace("nsys_a100_ddp_4gpu/rank0.nsys-rep"), report)
    tool = Tool(environ={**os.environ, "PATH": f"{nsys_folder}{os.pathsep}{os.environ['PATH']}"})
    with pytest.raises(WorkError, match=r"cannot use nsys 2022\.4: it needs 2023 or later; .*--engine own"):
        convert([report], tmp_path / "out", tool)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank0.nsys-rep"]

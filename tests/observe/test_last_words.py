"""What a rank tells of the error that ends it: its own, or that of a process that it has started."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import limit_s

ROOT = Path(__file__).resolve().parents[2]
TELLS = """
import json, sys
from pathlib import Path
from harness.observe import last_words

def tells():
    last_words.on_failure(lambda error: print("told", json.dumps(error), flush=True), Path("/dev/null"))
"""
WORKER = """
from told import tells
import torch
from torch.utils.data import DataLoader, Dataset

class Images(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return decode(index)

def decode(index):
    raise ValueError(f"image {index // 8} is damaged")

tells()
for batch in DataLoader(Images(), batch_size=2, num_workers=1):
    pass
"""
SPAWNED = """
from told import tells
import torch.multiprocessing as mp

def train(rank):
    tells()
    if rank == 1:
        load()

def load():
    raise KeyError("weights")

if __name__ == "__main__":
    mp.spawn(train, nprocs=2)
"""
POOL = """
from told import tells
from concurrent.futures import ProcessPoolExecutor

def parsed(text):
    return int(text)

if __name__ == "__main__":
    tells()
    with ProcessPoolExecutor(1) as pool:
        list(pool.map(parsed, ["1", "x"]))
"""
OUT_OF_MEMORY = """
from told import tells

tells()
held = " ".join(f"Process {pid} has 3.03 GiB memory in use." for pid in range(1039100, 1039112))
raise MemoryError(f"CUDA out of memory. Tried to allocate 136.00 MiB. {held} Of it 167.00 MiB is unallocated.")
"""
EXITS = """
from told import tells
import sys

tells()
try:
    open("/no/such/file")
except OSError as error:
    sys.exit(3)
"""


def told(folder: Path, script: str) -> list[dict[str, Any]]:
    """The errors that the processes of a script tell of."""
    (folder / "told.py").write_text(TELLS, encoding="utf-8")
    (folder / "script.py").write_text(script, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=folder,
        env={"PYTHONPATH": f"{ROOT}:{folder}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=limit_s(),
        check=False,
    )
    assert done.returncode != 0
    found = [json.loads(line.removeprefix("told ")) for line in done.stdout.splitlines() if line.startswith("told ")]
    return [error for error in found if (error["type"], error["message"]) != ("os._exit", "0")]  # of a pool's processes


@pytest.mark.parametrize(
    ("script", "told_as", "line", "function"),
    [
        (WORKER, ("ValueError", "image 0 is damaged (in DataLoader worker process 0)"), 14, "decode"),
        (SPAWNED, ("KeyError", "'weights'"), 11, "load"),
        (POOL, ("ValueError", "invalid literal for int() with base 10: 'x'"), 6, "parsed"),
        (EXITS, ("sys.exit", "3"), 9, "<module>"),
    ],
)
def test_an_error_has_the_line_of_the_process_that_raised_it(
    script: str, told_as: tuple[str, str], line: int, function: str, tmp_path: Path
) -> None:
    (first, *_) = told(tmp_path, script)
    assert (first["type"], first["message"]) == told_as
    assert [Path(first["place"][0]).name, *first["place"][1:]] == ["script.py", line, function]


def test_an_error_of_memory_is_told_with_all_its_numbers(tmp_path: Path) -> None:
    (only,) = told(tmp_path, OUT_OF_MEMORY)
    assert only["message"].endswith("Of it 167.00 MiB is unallocated.")

"""What docs/timelines.md says of nsys's own commands and options is what a real nsys does."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.launch.launch_shared import ROOT
from tests.real_nsys import NEWEST, OLDER
from tests.real_traces import real_trace
from tests.waiting import limit_s

PAGE = (ROOT / "docs" / "timelines.md").read_text(encoding="utf-8").partition("\n## Paraver")[0]
COMMANDS = re.findall(r"^nsys .*$", "\n".join(re.findall(r"^```bash\n(.*?)^```", PAGE, re.M | re.S)), re.M)
REPORT = "profile_node0.nsys-rep"
OPTION_ROW = re.compile(r"^\| (`--.*?) \|", re.M)
THE_NEWEST = pytest.mark.parametrize("nsys_folder", [NEWEST], indirect=True)
THE_OLDER = pytest.mark.parametrize("nsys_folder", [OLDER], indirect=True)


def typed(nsys_folder: Path, command: str, where: Path) -> tuple[int, str]:
    """The exit status and the output of a command of the page."""
    nsys, *words = shlex.split(command)
    argv = [str(nsys_folder / nsys), *words]
    done = subprocess.run(argv, cwd=where, capture_output=True, text=True, check=False, timeout=limit_s(120))
    return done.returncode, done.stdout + done.stderr


def expected(command: str) -> str:
    """What a command of the page prints, as a pattern."""
    for words, pattern in {
        "nvtx_pushpop_sum": r"NVTX Push/Pop Range Summary (.*\n)+ .*[0-9]  forward\b",
        "cuda_api_sum": r"\*\* CUDA API Summary",
        "cuda_gpu_kern_sum": r"\*\* CUDA GPU Kernel Summary",
        "analyze": r"\*\* .*:|There were no problems detected",
        "recipe": r"(\n  [a-z]\w+ -- .+){28}\n",
        "status": "CPU Profiling Environment Check",
        "export": r"100%\]",
        "sessions": "ID +TIME +STATE",
    }.items():
        if words in command:
            return pattern
    raise AssertionError(f"not known: {command}")


@THE_NEWEST
def test_the_commands_print_tables_and_the_page_s_kernels_of_a_real_a100(nsys_folder: Path, tmp_path: Path) -> None:
    found = real_trace("nsys_a100_ddp_4gpu/rank0.nsys-rep")
    report = Path(shutil.copy(found, tmp_path / REPORT))
    os.utime(report, (time.time() - 3600,) * 2)  # an export of the same second counts as older than its report
    said = {}
    for command in COMMANDS:
        code, said[command] = typed(nsys_folder, command, tmp_path)
        assert code == 0 and re.search(expected(command), said[command]), said[command]
    (kernels,) = (text for command, text in said.items() if "cuda_gpu_kern_sum:base" in command)
    table = [(*words[:4], words[-1]) for line in kernels.splitlines() if len(words := line.split()) == 9]
    shown = re.findall(r"^ +([\d.]+) +(\d+) +(\d+) +([\d.]+) +(\w+)$", PAGE, re.M)
    assert len(shown) == 4 and shown == [row for row in table if row[0].replace(".", "").isdigit()][:4]


@THE_OLDER
def test_the_old_names_are_those_of_the_older_one(nsys_folder: Path, tmp_path: Path) -> None:
    listed = typed(nsys_folder, "nsys stats --help-reports", tmp_path)[1]
    rules = typed(nsys_folder, "nsys analyze --help-rules", tmp_path)[1]
    for name in ("cudaapisum", "nvtxppsum", "gpukernsum"):
        assert f"`{name}`" in PAGE and re.search(rf"\b{name}\b", listed), listed
    for name in ("cuda-sync-api", "gpu-starv"):
        assert f"`{name}`" in PAGE and name in rules, rules
    code, said = typed(nsys_folder, "nsys recipe", tmp_path)
    assert code and "Unknown command: recipe" in said


def test_the_options_of_the_page_are_those_of_the_sets_and_the_course_s() -> None:
    sets = {name: json.loads((ROOT / "configs" / "nsys" / f"{name}.json").read_text()) for name in ("default", "full")}
    rows = [[word.split("=")[0][2:] for word in re.findall(r"`(--[^`]*)`", row)] for row in OPTION_ROW.findall(PAGE)]
    explained = {name for row in rows for name in row}
    assert explained >= set(sets["default"]) | set(sets["full"])
    assert explained - set(sets["default"]) - set(sets["full"]) == {"force-overwrite", "output", "stop-on-exit"}

"""What docs/timelines.md says of nsys's own commands and options is what a real nsys does."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import real_nsys
from tests.launch.launch_shared import ROOT
from tests.real_nsys import NEWEST, OLDER
from tests.real_traces import real_trace
from tests.waiting import limit_s

PAGE = (ROOT / "docs" / "timelines.md").read_text(encoding="utf-8").partition("\n## Paraver")[0]
COMMANDS = re.findall(r"^nsys .*$", "\n".join(re.findall(r"^```bash\n(.*?)^```", PAGE, re.M | re.S)), re.M)
REPORT = "profile_node0.nsys-rep"
PROGRAM = "import nvtx; nvtx.push_range('forward'); nvtx.pop_range()"
RECORDED = "--trace=nvtx,osrt --sample=none --cpuctxsw=none"
OPTION_ROW = re.compile(r"^\| (`--.*?) \|", re.M)
THE_NEWEST = pytest.mark.parametrize("nsys_folder", [NEWEST], indirect=True)
THE_OLDER = pytest.mark.parametrize("nsys_folder", [OLDER], indirect=True)


def typed(nsys_folder: Path, command: str, where: Path) -> tuple[int, str]:
    """The exit status and the output of a command of the page."""
    nsys, *words = shlex.split(command)
    argv = [str(nsys_folder / nsys), *words]
    done = subprocess.run(argv, cwd=where, capture_output=True, text=True, check=False, timeout=limit_s(120))
    return done.returncode, done.stdout + done.stderr


def expected(command: str, on_gpu: bool) -> str:
    """What a command of the page prints, as a pattern."""
    for words, pattern in {
        "nvtx_pushpop_sum": r"NVTX Push/Pop Range Summary (.*\n)+ .*[0-9]  forward\b",
        "cuda_api_sum": r"\*\* CUDA API Summary" if on_gpu else "SKIPPED: .* does not contain CUDA trace data",
        "cuda_gpu_kern_sum": r"\*\* CUDA GPU Kernel Summary" if on_gpu else "SKIPPED: .* not contain CUDA kernel data",
        "analyze": r"\*\* .*:|There were no problems detected" if on_gpu else "SKIPPED: .* does not contain",
        "recipe": r"(\n  [a-z]\w+ -- .+){28}\n",
        "status": "CPU Profiling Environment Check",
        "export": r"100%\]",
        "sessions": "ID +TIME +STATE",
    }.items():
        if words in command:
            return pattern
    raise AssertionError(f"not known: {command}")


def in_the_past(report: Path) -> Path:
    """An export of the same second counts as older than its report."""
    os.utime(report, (time.time() - 3600,) * 2)
    return report.parent


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a report of a CPU, in which one command after the other is typed, as on the page."""
    folder = tmp_path_factory.mktemp("report")
    nsys, report = real_nsys.folder(NEWEST), folder / REPORT
    argv = [str(nsys / "nsys"), "profile", *RECORDED.split(), f"--output={report}", sys.executable, "-c", PROGRAM]
    done = real_nsys.recorded(argv, report, lambda report: real_nsys.ranges(report, nsys))
    assert done.returncode == 0 and "Generated:" in done.stdout, done.stdout
    return in_the_past(report)


@THE_NEWEST
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_prints_what_it_says(nsys_folder: Path, where: Path, command: str) -> None:
    code, said = typed(nsys_folder, command, where)
    assert code == 0 and "ERROR" not in said, said
    assert re.search(expected(command, on_gpu=False), said), said


@THE_NEWEST
def test_the_commands_on_a_real_a100_print_tables_and_the_page_s_kernels(nsys_folder: Path, tmp_path: Path) -> None:
    found = real_trace("nsys_a100_ddp_4gpu/rank0.nsys-rep")
    where = in_the_past(Path(shutil.copy(found, tmp_path / REPORT)))
    said = {}
    for command in COMMANDS:
        code, said[command] = typed(nsys_folder, command, where)
        assert code == 0 and re.search(expected(command, on_gpu=True), said[command]), said[command]
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

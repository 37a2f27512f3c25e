"""The record of the job's time begins with the process, names part, package and line, and survives a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.waiting import limit_s, wait_until

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "harness/observe/site"


def start(tmp_path: Path, script: str, **environment: str) -> subprocess.Popen[str]:
    """A script of a job, with the observer beside it as a job loads it."""
    (tmp_path / "script.py").write_text(script, encoding="utf-8")
    settings = tmp_path / "observe.json"
    window = {"skip": 1, "wait": 0, "warmup": 1, "active": 1}
    settings.write_text(json.dumps({"profiler": "none", "window": window}), encoding="utf-8")
    kept = {name: text for name, text in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "PYTHONPATH")}
    places = {"HARNESS_OBSERVE": str(settings), "PYTHONPATH": f"{SITE}{os.pathsep}{tmp_path / 'site-packages'}"}
    return subprocess.Popen(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**kept, **places, **environment},
        stderr=subprocess.PIPE,
        text=True,
    )


def ends_well(process: subprocess.Popen[str]) -> None:
    """It ends, and has said nothing."""
    try:
        _, said = process.communicate(timeout=limit_s())
    finally:
        process.kill()
    assert (said, process.returncode) == ("", 0)


def lines_of(tmp_path: Path, rank: int = 0) -> list[dict[str, Any]]:
    path = tmp_path / "job-time" / f"rank{rank}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def places(lines: list[dict[str, Any]]) -> dict[int, tuple[str, int, str]]:
    """By id: the file's name, the line and the function."""
    found = (line for line in lines if line["event"] == "place")
    return {line["id"]: (Path(line["file"]).name, line["line"], line["function"]) for line in found}


def test_an_import_before_pytorch_has_its_packages_and_the_line_that_imports_it(tmp_path: Path) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "outer.py").write_text("import inner\n", encoding="utf-8")
    until_seen = (
        "import os, time\npath = 'job-time/rank0.jsonl'\n"
        "while not os.path.exists(path) or '\"inner\"' not in open(path).read():\n    time.sleep(0.05)\n"
    )
    (packages / "inner.py").write_text(until_seen, encoding="utf-8")
    process = start(tmp_path, "import os\nimport outer\n", RANK="0")
    ends_well(process)
    lines = lines_of(tmp_path)
    seen = next(line for line in lines if line.get("what") == ["outer", "inner"])
    assert seen["part"] == "imports"
    assert places(lines)[seen["id"]] == ("script.py", 2, "<module>")
    assert (lines[0]["event"], lines[0]["rank"], lines[0]["pid"]) == ("process", 0, process.pid)
    assert lines[-1]["event"] == "end"


def test_a_killed_process_leaves_what_it_had(tmp_path: Path) -> None:
    process = start(tmp_path, "import time\ndef load_data():\n    time.sleep(600)\nload_data()\n", RANK="3")
    try:
        wait_until(
            lambda: any(line.get("part") == "data" for line in lines_of(tmp_path, 3)),
            "the part", lambda: lines_of(tmp_path, 3),
        )  # fmt: skip
    finally:
        process.send_signal(signal.SIGKILL)
    process.wait(limit_s())
    lines = lines_of(tmp_path, 3)
    assert places(lines)[next(line["id"] for line in lines if line.get("part") == "data")] == (
        "script.py",
        3,
        "load_data",
    )
    assert all(line["event"] != "end" for line in lines)


def test_a_program_that_a_rank_starts_does_not_write_as_the_rank(tmp_path: Path) -> None:
    other = "import time; time.sleep(1.5)"
    script = f"import subprocess, sys, time\ntime.sleep(1)\nsubprocess.run([sys.executable, '-c', {other!r}])\n"
    process = start(tmp_path, script, RANK="0")
    ends_well(process)
    assert [line["pid"] for line in lines_of(tmp_path) if line["event"] == "process"] == [process.pid]


def test_a_process_that_is_no_rank_writes_nothing(tmp_path: Path) -> None:
    process = start(tmp_path, "import time, torch\ntime.sleep(1)\n")
    ends_well(process)
    assert not (tmp_path / "job-time").exists()

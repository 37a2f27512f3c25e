"""What a run owes its user after a fault: a true state, nothing lost, the sentence, and no process left behind."""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from harness.cli.main import main
from harness.run import Run
from tests.faults.scene import Scene

ALWAYS = ("run.json", "job.sbatch")


class Said(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    text: str
    out: str


def ask(environment: Mapping[str, str], *words: str) -> Said:
    """A command of the harness in this process, as `main` runs it: an exception would be a traceback."""
    out, err = io.StringIO(), io.StringIO()
    with mock.patch.dict(os.environ, environment, clear=True), redirect_stdout(out), redirect_stderr(err):
        code = main(list(words))
    return Said(code, out.getvalue() + err.getvalue(), out.getvalue())


def judge(scene: Scene) -> None:
    """Hold the run against its fault."""
    if scene.broken is not None:
        raise scene.broken
    if scene.fault.state == "refused":
        _refusal(scene)
        return
    assert scene.refused is None, f"it was refused: {scene.refused}"
    said = {
        word: ask(scene.environment, word, str(scene.path), *more)
        for word, *more in (["status"], ["logs"], ["report", "--no-html"])
    }
    listed = ask(scene.environment, "ls", "--json")
    for word, each in {**said, "ls": listed}.items():
        assert "Traceback (most recent call last)" not in _own(word, each.text), f"{word}: {each.text}"
        unknown = scene.fault.state == "unknown" and word in ("status", "logs")
        assert each.code == (1 if unknown else 0), f"{word} exited {each.code}: {each.text}"
    _true_state(scene, said["status"], listed)
    _nothing_lost(scene)
    launch = scene.said().stdout + scene.said().stderr if scene.launcher else ""
    _told(scene, {**{word: each.text for word, each in said.items()}, "launch": launch})
    assert scene.left == [], "processes of the run are left"


def _own(word: str, text: str) -> str:
    """Without what a training printed: its traceback is its own."""
    return "" if word == "logs" else text


def _refusal(scene: Scene) -> None:
    done = scene.refused
    assert done is not None, f"it was not refused: {scene.found()}"
    assert done.returncode in (1, 2), done
    assert "Traceback" not in done.stderr, done.stderr
    left = [path for path in scene.runs.rglob("*") if path.name != "full"]
    assert left == [], "something of the run is left"
    assert scene.left == [], "processes of the launch are left"
    _told(scene, {"launch": done.stdout + done.stderr})


def _true_state(scene: Scene, said: Said, listed: Said) -> None:
    fault = scene.fault
    answer = ask(scene.environment, "status", str(scene.path), "--json")
    if scene.slurm is not None:
        job = scene.job()
        assert job.get("JobState") == fault.slurms_word, (job, said.text)
    if fault.state == "unknown":
        assert (answer.code, answer.out) == (1, "")
        return
    assert (said.code, answer.code) == (0, 0), said
    found: dict[str, Any] = json.loads(answer.out)
    rows = json.loads(listed.out)
    assert found["state"] == fault.state, said.text
    assert [row["state"] for row in rows if row["path"] == str(scene.path)] == [fault.state], "ls differs"
    if fault.exit_code is not None:
        assert found["exit_code"] == fault.exit_code, said.text


def _nothing_lost(scene: Scene) -> None:
    fault = scene.fault
    wanted = [name for name in (*ALWAYS, *fault.keeps) if name not in fault.takes]
    for pattern in wanted:
        files = [path for path in scene.path.glob(pattern) if path.is_file()]
        assert files, f"{pattern} is lost"
        for path in files:
            assert path.stat().st_size > 0, f"{path} is empty"
            _readable(path)
    if "run.json" in wanted:
        assert Run(scene.path).record.job_id == scene.job_id
    if "logs" not in fault.takes:
        assert (scene.logs / "log.err").is_file(), "its log is lost"


def _readable(path: Path) -> None:
    if path.name.endswith(".json.gz"):
        assert json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] is not None
    elif path.suffix == ".json":
        json.loads(path.read_text(encoding="utf-8"))
    elif path.suffix == ".jsonl":
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        assert [json.loads(line)["event"] for line in lines][:1] == ["start"]


def _told(scene: Scene, said: Mapping[str, str]) -> None:
    text = said[scene.fault.told_by]
    assert scene.fault.is_told_in(text), f"{scene.fault.tells!r} is not in {scene.fault.told_by}: {text}"

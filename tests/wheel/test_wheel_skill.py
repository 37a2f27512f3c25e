"""docs/SKILL.md, which a program reads before it runs our commands: each command in it works as it says there."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from harness.cli.commands import COMMANDS
from tests.synthetic.job import write_traces
from tests.wheel.wheel_shared import ROOT, Installed

TEXT = (ROOT / "docs" / "SKILL.md").read_text(encoding="utf-8")
LINES = [line for block in re.findall(r"^```bash\n(.*?)^```", TEXT, re.M | re.S) for line in block.splitlines()]
FIELDS = re.findall(r"^\| `(\w+)` \| (`.*?`) \|", TEXT, re.M)
TRAIN = """
import torch
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), 0.001)
for _ in range(45):
    optimizer.zero_grad()
    model(torch.randn(64, 256)).sum().backward()
    optimizer.step()
"""


def words_of(line: str) -> list[str]:
    return shlex.split(line.partition("   # ")[0])[1:]


def exits(line: str) -> set[int]:
    """The exit codes that the line's comment names; 0 if it names none."""
    named = re.search(r"# exit ([\d, or]+)", line)
    return {int(code) for code in re.findall(r"\d+", named[1])} if named else {0}


def copied(run: Path, number: int) -> None:
    """Another run with the same numbers, as if it had been made."""
    record = json.loads((run / "run.json").read_text())
    copy = shutil.copytree(run, run.with_name(run.name.replace(record["job_id"], f"local-{number}")))
    (copy / "run.json").write_text(json.dumps(record | {"job_id": f"local-{number}"}))


def has(value: Any, path: str) -> bool:
    """Whether a document has the field; of a list, each of its items."""
    name, _, rest = path.partition(".")
    if isinstance(value, list):
        return all(has(each, path) for each in value)
    return isinstance(value, dict) and name in value and (not rest or has(value[name], rest))


@pytest.mark.long  # half a minute of trainings
@pytest.mark.train
def test_each_command_of_the_skill_ends_and_prints_as_it_says(trainer: Installed) -> None:
    write_traces(trainer.folder / "traces", ranks=2)
    (trainer.folder / "train.py").write_text(TRAIN)
    printed: dict[str, Any] = {}
    for line in LINES:
        words = words_of(line)
        runs = sorted(trainer.folder.glob("runs/own/profiler/*local-[12]-*"))
        if "local-3" in line and not list(trainer.folder.glob("runs/own/profiler/*local-3-*")):
            copied(runs[0], 3)
            copied(runs[1], 4)
        done = trainer(*words)
        assert done.returncode in exits(line), f"{line}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, line
        if 2 in exits(line):
            assert done.stdout == ""
            assert re.search(r"exit 2: (.*)\?", line)[1] in done.stderr, done.stderr
        elif "--json" in words:
            printed.setdefault(words[0], []).append(json.loads(done.stdout))
    assert len(FIELDS) >= 10
    for command, fields in FIELDS:
        for field in re.findall(r"`([^`]+)`", fields):
            assert any(has(document, field) for document in printed[command]), f"{command}: {field}"
    assert printed["report"][0]["findings"], "so the fields of a finding were really there"


def test_the_skill_has_at_most_100_lines_and_names_each_command_that_answers(trainer: Installed) -> None:
    assert len(TEXT.splitlines()) <= 100
    named = {words_of(line)[0] for line in LINES}
    assert named - {"-e", "help"} < COMMANDS.keys()
    assert {"report", "whatif", "run", "status", "logs", "compare", "check", "watch"} <= named
    assert trainer("help", "agents").stdout == TEXT

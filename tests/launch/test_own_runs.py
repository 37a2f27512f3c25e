"""Real runs of somebody's own programs on this machine: where they lie, what is recorded, how they ended."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.common.system.secrets import masked_words
from harness.run import Run
from tests.launch.own_shared import process
from tests.waiting import limit_s

SECRET = "hf_abcdefghijklmnop"
GIT = ["git", "-c", "user.email=a@b", "-c", "user.name=a"]
TRAINING = """
import os, sys, torch, torch.distributed as dist
import harness, exercises  # packages of the user's own
print("argv", sys.argv[1:], "at", os.getcwd(), harness.WHOSE, exercises.WHOSE, os.environ["LOCAL_RANK"])
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(int(sys.argv[1])):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def the_run(folder: Path) -> Run:
    (run,) = (folder / "runs/own/profiler").glob("[!.]*")
    return Run(run)


def record(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(the_run(folder).record_file.read_text(encoding="utf-8"))
    return found


def ended(folder: Path, *words: str) -> tuple[str, str]:
    """The state of the run that these words make, and what is said of its end."""
    done = process(folder, "run", *words)
    state = json.loads(process(folder, "status", "last", "--json").stdout)
    assert f"{state['state']}: {state['path']}" in done.stderr
    return state["state"], state["reason"]


def test_a_run_lies_where_it_was_typed_and_is_found_there(tmp_path: Path) -> None:
    """In a folder with a hostile name, in which packages have the names of ours."""
    folder = tmp_path / 'it\'s $(touch evil) "x"\nnew'
    for name in ("harness", "submitit", "pydantic"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("raise SystemExit('theirs')", encoding="utf-8")
    done = process(folder, "run", "--", "bash", "-c", 'printf "%s|" "$@" "$PWD" "$NODE_RANK"', "x", "--", "-e 1")
    assert (done.returncode, done.stdout) == (0, f"--|-e 1|{folder}|0|")
    assert not list(tmp_path.rglob("evil"))
    asked = record(folder)
    assert asked["experiment"]["command"][-2:] == ["--", "-e 1"]
    assert asked["program"]["arguments"][-1] == "-e 1"
    assert json.loads(process(folder, "ls", "--json").stdout)[-1]["name"] == the_run(folder).name
    assert process(folder, "logs", "last").stdout == done.stdout
    again = process(folder, "run", "last")
    assert (again.returncode, again.stdout) == (0, done.stdout)
    planned = process(folder, "run", "last", "--plan")
    assert planned.returncode == 0 and planned.stdout.startswith("Cost\n") and len([*folder.rglob("run.json")]) == 2


def test_the_record_has_the_scripts_repository_and_its_python(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)", encoding="utf-8")
    for words in (["init", "-q"], ["add", "train.py"], ["commit", "-qm", "first"]):
        subprocess.run([*GIT, *words], cwd=tmp_path, check=True, timeout=limit_s())
    script.write_text("print(2)", encoding="utf-8")
    process(tmp_path, "run", "--python", sys.executable, "--", "train.py", "--lr", "1")
    found = record(tmp_path)
    assert found["command"] == ["slurm.sh", "run", "--python", sys.executable, "--", "train.py", "--lr", "1"]
    program = found["program"]
    assert (program["script"], program["arguments"]) == (str(script), ["--lr", "1"])
    assert program["python"] == sys.executable
    git = program["git"]
    assert (git["repository"], git["dirty"], len(git["differences"])) == (str(tmp_path), True, 16)
    assert found["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["git"]["commit"] != git["commit"]
    seen = subprocess.run(
        [*GIT, "status", "--porcelain"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=limit_s()
    )
    assert seen.stdout.split() == ["M", "train.py"], "the runs are not shown to git"


def test_a_secret_is_kept_for_a_rerun_and_shown_to_nobody(tmp_path: Path) -> None:
    process(tmp_path, "run", "--", "true", "--hf-token", SECRET, "--api-key=mine")
    run = the_run(tmp_path)
    assert record(tmp_path)["experiment"]["command"][2] == SECRET
    held = [path for path in run.path.rglob("*") if path.is_file() and SECRET in path.read_text(errors="replace")]
    assert {path.name for path in held} == {"run.json", "job.sbatch"}
    assert {oct(path.stat().st_mode & 0o777) for path in held} == {"0o600"}
    shown = [process(tmp_path, *words) for words in (["report", "last"], ["ls"], ["run", "last", "--yes"])]
    assert not [done for done in shown if SECRET in done.stdout + done.stderr]


@pytest.mark.parametrize(
    ("words", "state", "said"),
    [
        (["bash", "-c", "kill -9 $$"], "failed", "exit 137: ended by the signal KILL"),
        (["true"], "completed", "no step was observed: it called no optimizer"),
        pytest.param(["printf", r"\377\000\033]0;t\a"], "completed", "no step was", marks=pytest.mark.long),
        pytest.param(["nohup", "no-such"], "failed", "exit 127: a program was not found", marks=pytest.mark.long),
    ],
)
def test_how_it_ended_is_said_truly(tmp_path: Path, words: list[str], state: str, said: str) -> None:
    found = ended(tmp_path, "--", *words)
    assert (found[0], found[1][: len(said)]) == (state, said)


@pytest.mark.train
def test_a_training_is_observed_and_sees_only_its_own_packages(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="it trains")
    (tmp_path / "train.py").write_text(TRAINING, encoding="utf-8")
    for name in ("harness", "exercises"):
        (tmp_path / f"{name}.py").write_text("WHOSE = 'mine'", encoding="utf-8")
    done = process(tmp_path, "run", "-g", "2", "--", "train.py", "20", "--", "-e")
    assert done.returncode == 0, done.stderr
    for rank in "01":
        assert f"argv ['20', '--', '-e'] at {tmp_path} mine mine {rank}\n" in done.stdout
    run = the_run(tmp_path)
    assert [path.name for path in run.traces()] == ["rank0.json.gz", "rank1.json.gz"]
    steps = [line for line in run.metrics()[1].read_text().splitlines() if '"event": "step"' in line]
    assert len(steps) == 20
    assert "  a step  " in process(tmp_path, "report", "last").stdout
    told = json.loads(process(tmp_path, "report", "last", "--json").stdout)["job_time"]
    assert sum(part["duration_ns"] for part in told["parts"]) == told["elapsed_ns"]
    assert any(each["package"] == "torch" and each["where"]["line"] in (2, 6) for each in told["imports"])
    assert "useful" in process(tmp_path, "ls").stdout.splitlines()[0]


@pytest.mark.parametrize(
    ("words", "masked"),
    [
        ("--hf-token x", "--hf-token ***"),
        ("--hf_token=x --lr=1", "--hf_token=*** --lr=1"),
        ("trainer.api_key=x", "trainer.api_key=***"),
        ("--password x y", "--password *** y"),
        ("sk-abcdefgh", "***"),
        ("a" * 40, "***"),
        ("https://me:pw@host/x", "https://***@host/x"),
        ("--pad-token <s> --max-tokens 5 --key-size 3 task-sk", "--pad-token <s> --max-tokens 5 --key-size 3 task-sk"),
        ("--tokenizer gpt2 --seed 40 abcdef0123", "--tokenizer gpt2 --seed 40 abcdef0123"),
        ("--token --verbose", "--token --verbose"),
    ],
)  # fmt: skip
def test_what_looks_like_a_secret_is_masked(words: str, masked: str) -> None:
    assert " ".join(masked_words(words.split())) == masked

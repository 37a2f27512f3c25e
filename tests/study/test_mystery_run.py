"""A real mystery: submitted as a user's, trained with the words of its own script, reported, answered, revealed."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("accelerate", reason="the training scripts need their libraries")

from harness.cli.main import main
from harness.common.faults.fault import parse_fault
from harness.common.faults.mystery import HIDDEN_FILE, hidden_folder
from harness.launch.argv import read_here
from harness.launch.backends import local
from harness.launch.job import resolve
from harness.launch.submit import this_machine
from harness.measure.request import load_summary
from harness.run import Run, find_run
from harness.run.record import Status
from tests.exercises.launching import free_port, launch_forked

pytestmark = pytest.mark.train

SHORT = ("--skip-steps", "1", "--wait-steps", "0", "--warmup-steps", "1", "--active-steps", "5")
SEED = "2"  # draws the fault below


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A mystery that has trained. Its ranks are forked; all else is as a user's command does it."""
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path))
    monkeypatch.setenv("HARNESS_SITE", "local")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(local, "start_controller", _train_here)
    assert main(["lesson", "mystery", "-e", "1", "-g", "2", "--seed", SEED, "--profiler", "torch", *SHORT]) == 0
    return find_run("last")


def _train_here(script: Path, *_: object, **__: object) -> None:
    """Run the command of the job's script, instead of the script."""
    run = Run(script.parent)
    job = resolve(run.record.experiment, run.record.site, this_machine())
    here = {"RUN_DIR": str(run.path), "SLURM_NODEID": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    words = [read_here(word, here).text for word in job.commands[0].argv]
    code, log = launch_forked("accelerate", words[words.index("launch") + 1 :], run.path)
    assert code == 0, log[-3000:]
    run.write_status(Status(state="completed"))


def contents(root: Path) -> Iterator[tuple[str, str]]:
    """Every file that is not hidden as text, unpacked, with what a page carries in packed form."""
    hidden = hidden_folder(Path()).name
    for path in sorted(root.rglob("*")):
        if not path.is_file() or hidden in path.parts:
            continue
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode(errors="replace")
        yield path.name, text
        for packed in re.findall(r"H4sI[A-Za-z0-9+/=]{40,}", text) if path.suffix == ".html" else []:
            yield f"in {path.name}", gzip.decompress(base64.b64decode(packed)).decode(errors="replace")


@pytest.mark.long  # a whole training; test_mysteries.py shows each step of it on stored runs
def test_nothing_tells_before_the_end_and_everything_after(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (text,) = run.record.experiment.mystery.faults  # type: ignore[union-attr]  # exercise 0 has none
    fault = parse_fault(text)
    assert fault.name == "host-stall", "another seed: this name stands in no file by chance"

    for words in (["ls"], ["status", "last"], ["report", "last", "--full"], ["report", "last", "--json"]):
        assert main(words) == 0
    copied = shutil.copytree(run.path, tmp_path / "copied" / run.name)
    assert main(["compare", str(run.path), str(copied)]) == 0
    said = capsys.readouterr()
    shown = [("the terminal", said.out + said.err), *contents(tmp_path)]
    assert {"rank0.json.gz", "report.html", "run.json", "summary.json", "in report.html"} <= {name for name, _ in shown}
    numbers = (f"ms={fault.values['ms']}", str(fault.ns()))
    telling = ("host-stall", "host_stall", "no-stall", *numbers)
    assert [(name, word) for name, content in shown for word in telling if word in content] == []
    assert "This run is a mystery" in said.out
    assert text in (run.path / HIDDEN_FILE).read_text(), "the training had it"
    hidden = load_summary(str(run.path))[1]
    assert hidden.replay is not None and (hidden.findings, hidden.replay.what_ifs) == ([], [])

    for part in (run.path / "torch", run.path / "torch" / "rank0.json.gz"):
        assert main(["report", str(part)]) == 0
        assert "This run is a mystery" in capsys.readouterr().out, "nor does a part of the run tell"

    assert main(["lesson", "mystery", "answer", "last", "--cause", "host-stall"]) == 0
    assert main(["lesson", "mystery", "reveal", "last"]) == 0
    told = capsys.readouterr().out
    assert "mystery local-1, level 1: right: host-stall on all ranks" in told
    assert f"it was  {text}: " in told
    assert "the same training without it: bash slurm.sh -e 1 -g 2 --site local" in told
    lines = [json.loads(line) for line in (run.path / "faults" / "rank1.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(7))
    assert all(line["ns"] >= fault.ns() for line in lines)
    assert "findings" not in [w.field for w in load_summary(str(run.path))[1].quality.withheld]

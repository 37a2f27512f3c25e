"""What pages say of the traces of real GPUs that lie in the repository."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.analysis.expression import evaluate
from harness.analysis.metrics import metrics_by_name
from harness.cli.main import main
from harness.measure.request import ReportRequest, measure_request
from harness.study.lessons import load_lesson
from harness.theory.devices import peak_flops_per_s

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "exercises/exercise_1_DDP/README.md").read_text(encoding="utf-8")
PRECISION = (ROOT / "exercises/exercise_1_DDP/episode_3_precision.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| 1\w \| `bash slurm\.sh (.*tests/data/h100.*?)` \| (.*) \|$", PAGE, re.MULTILINE))


@pytest.fixture(autouse=True)
def _typed_in_the_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path))


def test_each_command_runs_and_says_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(ROWS) == 3
    said = {}
    for command in ROWS:
        assert main(command.split()) == 0
        said[command.split()[-1]] = re.sub(r"\s+", " ", capsys.readouterr().out)
    (waits, faster, again), (slow, bf16, checkpointing) = ROWS.values(), said.values()
    share = re.search(r"Waiting for data costs \d+ of \d+ ms a step \(([\d.]+) %; ", slow)
    assert share and waits.startswith(f"{share[1]} % of the time")
    assert "from 371 to 132 ms" in faster and "median 371 ms 132 ms −64.4 % ± 4.1 % better" in bf16
    assert "bf16, share of GEMM time 0.0 % 100.0 %" in bf16
    assert "forward pass again" in again
    assert re.search(r"range backward 5\d\.\d ms \d{2,3}(\.\d)? ms \+", checkpointing), checkpointing[:3000]


def test_the_pageable_and_pinned_batches_of_1e_are_told_apart_on_a_real_gpu() -> None:
    """A tick of 1e is no accident: it counts bytes, and fails if the runs change places."""
    folder, relation = ROOT / "tests/data/h100", load_lesson("1e").relations[0]
    traces = [str(folder / f"{name}.json.gz") for name in ("slow-data", "bf16")]
    pageable, pinned = (metrics_by_name(measure_request(ReportRequest(tokens=[each])).summaries[0]) for each in traces)
    assert not relation.depends_on_load
    assert evaluate(relation.holds, {"a": pageable, "b": pinned})
    assert not evaluate(relation.holds, {"a": pinned, "b": pageable})


def test_1b_says_the_memory_that_was_measured() -> None:
    theory = (ROOT / "docs/theory.md").read_text(encoding="utf-8")
    measured = re.findall(r"^\| `--micro-batch-size 4(?: --mixed-precision)?` \| .*? \| ([\d.]+) GB \|", theory, re.M)
    assert f"[{' and '.join(measured)} GB]" in PRECISION


def test_the_section_on_mfu_says_what_was_measured_and_computed(capsys: pytest.CaptureFixture[str]) -> None:
    section = (ROOT / "docs/investigate.md").read_text(encoding="utf-8").partition("\n## i. ")[2].partition("\n## ")[0]
    (command,) = re.findall(r"^bash slurm\.sh (report tests/.*)$", section, re.M)
    assert main(command.split()) == 0
    said, gpu = capsys.readouterr().out, (ROOT / "docs/development/gpu.md").read_text(encoding="utf-8")
    computing, gemm = re.search(r": ([\d.]+ %) computing", said), re.search(r" ([\d.]+ %) gemm bf16", said)
    assert computing and gemm and f"computes {computing[1]} of the step" in section and f"only {gemm[1]}" in section
    eager, compiled = re.findall(r"\| (?:as exercise 1: .*?|torch\.compile) \| .*?\| \*{0,2}([\d.]+ %)", gpu)[:2]
    assert f"It had {eager} MFU, and {compiled} with torch.compile" in section
    peak, _ = peak_flops_per_s("NVIDIA H100 80GB HBM3", "bf16") or (0.0, "")
    assert f"{peak / 1e12:.0f} TFLOP/s and 3.35 TB/s, {peak / 3.35e12:.0f}" in section
    assert f"has {2 * 4096**3 / (3 * 4096**2 * 2):.0f}: it is compute-bound" in section
    assert f"are {0.1 * 64 * 24:.0f} GPU hours a day" in section

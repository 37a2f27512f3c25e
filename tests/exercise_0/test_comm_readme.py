"""What exercise 0's page says to readers without GPUs holds: its sample answers the questions, its sizes are true."""

from __future__ import annotations

import re

from commtests.benchmark import LARGEST_ON_CPU, LARGEST_ON_GPU, MIB
from commtests.parsers import parse_topo

from tests.exercise_0.conftest import EXERCISE

README = (EXERCISE / "README.md").read_text(encoding="utf-8")
A100_LINK = 25  # GB/s of one NVLink in one direction


def test_the_sample_matrix_answers_the_questions_as_the_answers_do() -> None:
    sample = parse_topo(README.split("```text\n")[1].split("```")[0])
    assert len(sample.gpus) == len(sample.nics) == 4
    assert all(sample.links[b][a] == link for a, row in sample.links.items() for b, link in row.items())
    answers = README.split("Hints and answers")[1]
    assert f"`{sample.links['GPU0']['GPU1']}` in the example" in answers
    count = int(sample.links["GPU0"]["GPU1"].removeprefix("NV"))
    assert f"{count} × {A100_LINK} = {count * A100_LINK} GB/s to each neighbour" in answers
    near = [nic for nic in sample.nics if sample.links["GPU2"][nic] in ("PIX", "PXB")]
    assert f"GPU2's row: `{near[0]}` in the example" in answers and len(near) == 1
    assert {sample.links["GPU2"][nic] for nic in ("NIC0", "NIC1")} == {"SYS"}
    assert sample.links["GPU2"]["NIC3"] == "NODE"


def test_the_shorter_benchmark_is_shorter_on_every_device() -> None:
    (size,) = re.findall(r"--max-bytes (\d+) +# shorter: messages of at most 4 MiB", README)
    assert int(size) == 4 * MIB < LARGEST_ON_CPU < LARGEST_ON_GPU
    assert f"{LARGEST_ON_GPU >> 30} GiB on GPUs and {LARGEST_ON_CPU >> 20} MiB on CPUs" in README

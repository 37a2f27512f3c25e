"""What exercise 0's page says to readers without GPUs holds: its sample is the slide's, and answers the questions."""

from __future__ import annotations

import re
from pathlib import Path

from commtests.benchmark import LARGEST_ON_CPU, LARGEST_ON_GPU, MIB
from commtests.parsers import parse_ibstat, parse_p2p, parse_topo

from harness.site.site import load_site
from tests.exercise_0.conftest import EXERCISE

README = (EXERCISE / "README.md").read_text(encoding="utf-8")
P2P, TOPOLOGY, IBSTAT = (block.split("```")[0] for block in README.split("```text\n")[1:4])
ANSWERS = README.split("Hints and answers")[1]
FIXTURES = Path(__file__).parent / "fixtures"
A100_LINK = 25  # GB/s of one NVLink in one direction


def slide(name: str) -> str:
    return (FIXTURES / f"leonardo_{name}.txt").read_text(encoding="utf-8")


def test_the_samples_are_what_the_slides_node_printed() -> None:
    assert parse_p2p(P2P) == parse_p2p(slide("p2p"))
    assert parse_topo(TOPOLOGY) == parse_topo(slide("topo"))
    assert parse_ibstat(IBSTAT) == parse_ibstat(slide("ibstat"))[:1]


def test_the_sample_matrix_answers_the_questions_as_the_answers_do() -> None:
    sample = parse_topo(TOPOLOGY)
    assert all(sample.links[b][a] == link for a, row in sample.links.items() for b, link in row.items())
    count = int(sample.links["GPU0"]["GPU1"].removeprefix("NV"))
    assert f"`NV{count}`: {count} × {A100_LINK} = {count * A100_LINK} GB/s to each neighbour" in ANSWERS
    near = [nic for nic in sample.nics if sample.links["GPU2"][nic] in ("PIX", "PXB")]
    assert f"in GPU2's row: `{near[0]}`" in ANSWERS and len(near) == 1
    assert {sample.links["GPU2"][nic] for nic in sample.nics if nic not in near} == {"NODE"}


def test_the_rates_of_the_answers_are_those_of_leonardos_site_file() -> None:
    network = load_site("leonardo").network
    ports = parse_ibstat(slide("ibstat"))
    assert {port.rate_gbps for port in ports} == {network.expected_gbps} and len(ports) == network.ports
    node = len(ports) * (network.expected_gbps or 0)
    share = f"{node / 8 / 4:g} GB/s"
    assert f"{len(ports)} × {network.expected_gbps:g} Gb/s = {node:g} Gb/s = {node / 8:g} GB/s, and {share}" in ANSWERS
    assert f"a GPU's share of the network is {share}" in ANSWERS and network.link_inter_gbps == node / 4
    assert f"{(network.link_intra_gbps or 0) / 8:g} GB/s to all three together" in ANSWERS


def test_the_shorter_benchmark_is_shorter_on_every_device() -> None:
    (size,) = re.findall(r"--max-bytes (\d+) +# shorter: messages of at most 4 MiB", README)
    assert int(size) == 4 * MIB < LARGEST_ON_CPU < LARGEST_ON_GPU
    assert f"{LARGEST_ON_GPU >> 30} GiB on GPUs and {LARGEST_ON_CPU >> 20} MiB on CPUs" in README

"""What exercise 0's pages show to readers without GPUs is what the slide's node printed."""

from __future__ import annotations

import re

from commtests.benchmark import LARGEST_ON_CPU, LARGEST_ON_GPU, MIB
from commtests.parsers import parse_ibstat, parse_p2p, parse_topo

from harness.site.site import load_site
from tests.exercise_0.conftest import EXERCISE
from tests.exercise_0.kit import printed

LINKS = (EXERCISE / "episode_1_links.md").read_text(encoding="utf-8")
COLLECTIVES = (EXERCISE / "episode_2_collectives.md").read_text(encoding="utf-8")
P2P, TOPOLOGY, IBSTAT = (block.split("```")[0] for block in LINKS.split("```text\n")[2:5])


def test_the_samples_are_what_the_slides_node_printed() -> None:
    ports = parse_ibstat(printed("leonardo_ibstat"))
    assert parse_p2p(P2P) == parse_p2p(printed("leonardo_p2p"))
    assert parse_topo(TOPOLOGY) == parse_topo(printed("leonardo_topo"))
    assert parse_ibstat(IBSTAT) == ports[:1]
    network = load_site("leonardo").network
    assert {port.rate_gbps for port in ports} == {network.expected_gbps} and len(ports) == network.ports


def test_the_shorter_benchmark_is_shorter_on_every_device() -> None:
    (size,) = re.findall(r"--max-bytes (\d+) +# shorter: messages of at most 4 MiB", COLLECTIVES)
    assert int(size) == 4 * MIB < LARGEST_ON_CPU < LARGEST_ON_GPU
    assert f"{LARGEST_ON_GPU >> 30} GiB on GPUs and {LARGEST_ON_CPU >> 20} MiB on CPUs" in COLLECTIVES

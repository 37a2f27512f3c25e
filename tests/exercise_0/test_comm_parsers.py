"""What nvidia-smi and ibstat print is read as it is meant, on whatever machine it was printed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from commtests.parsers import ParseError, parse_ibstat, parse_p2p, parse_topo

from tests.exercise_0.kit import printed


@pytest.mark.parametrize(("name", "gpus"), [("leonardo", 4), ("h100", 4), ("dgx_a100", 8), ("one_gpu", 1)])
def test_a_healthy_p2p_matrix_is_square_and_all_ok(name: str, gpus: int) -> None:
    matrix = parse_p2p(printed(f"{name}_p2p"))
    assert matrix.gpus == [f"GPU{i}" for i in range(gpus)]
    assert [row.index("X") for row in matrix.status] == list(range(gpus))
    assert sum(row.count("OK") for row in matrix.status) == gpus * (gpus - 1)
    assert matrix.not_ok() == []


def test_each_bad_pair_is_named_with_its_direction_and_code() -> None:
    bad = parse_p2p(printed("pcie_p2p_some_cns")).not_ok()
    assert len(bad) == 8
    assert ("GPU0", "GPU2", "CNS") in bad and ("GPU3", "GPU1", "CNS") in bad
    assert ("GPU0", "GPU1", "CNS") not in bad


# An underlined header, two sockets, blanks in place of tabs, one GPU: devices and some of their links.
TOPOLOGIES = {
    "leonardo": (4, [f"NIC{i}" for i in range(4)], {"GPU2 NIC2": "PXB", "GPU2 NIC0": "NODE", "NIC0 NIC0": "X"}),
    "h100": (4, [f"NIC{i}" for i in range(6)], {"GPU3 NIC4": "PIX", "GPU0 NIC4": "SYS"}),
    "dgx_a100": (8, [f"mlx5_{i}" for i in range(10)], {"GPU0 GPU7": "NV12"}),
    "one_gpu": (1, ["NIC0"], {"GPU0 NIC0": "SYS"}),
}


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_a_topology_has_every_device_and_the_link_of_every_pair(name: str) -> None:
    gpus, nics, links = TOPOLOGIES[name]
    topology = parse_topo(printed(f"{name}_topo"))
    assert topology.gpus == [f"GPU{i}" for i in range(gpus)] and topology.nics == nics
    assert len(topology.gpu_pairs()) == gpus * (gpus - 1) / 2
    assert {pair: topology.links[pair.split()[0]][pair.split()[1]] for pair in links} == links


def test_ports_of_several_adapters_and_of_one_stay_apart() -> None:
    ports = parse_ibstat(printed("h100_ibstat"))
    assert [(p.adapter, p.state, p.rate_gbps, p.link_layer) for p in ports[3:]] == [
        ("mlx5_5", "Active", 200, "InfiniBand"),
        ("mlx5_2", "Active", 25, "Ethernet"),
        ("mlx5_3", "Down", 40, "Ethernet"),
    ]
    assert ports[0].firmware == "28.39.1002" and ports[0].adapter_type == "MT4129"
    of_one = [(p.port, p.state, p.physical_state, p.rate_gbps) for p in parse_ibstat(printed("two_port_ibstat"))]
    assert of_one == [(1, "Down", "Disabled", 10), (2, "Active", "LinkUp", 56)]


DGX, LEONARDO = printed("dgx_a100_p2p").splitlines(), printed("leonardo_topo").splitlines()


@pytest.mark.parametrize(
    ("parse", "text", "why"),
    [
        *((parse, text, "") for parse in (parse_p2p, parse_topo, parse_ibstat) for text in ("", "\n\n", "NVIDIA-SMI")),
        (parse_p2p, "\n".join(DGX[:5]), "8 columns, 4 rows"),
        (parse_topo, "\n".join(LEONARDO[:3]), "row of GPU2"),
    ],
)
def test_an_answer_that_is_cut_off_or_no_answer_is_refused(parse: Callable[[str], object], text: str, why: str) -> None:
    with pytest.raises(ParseError, match=why):
        parse(text)

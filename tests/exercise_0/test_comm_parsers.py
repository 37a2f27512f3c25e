"""What nvidia-smi and ibstat print is read as it is meant, on whatever machine it was printed."""

from __future__ import annotations

from pathlib import Path

import pytest
from commtests.parsers import ParseError, parse_ibstat, parse_p2p, parse_topo

FIXTURES = Path(__file__).parent / "fixtures"


def text(name: str) -> str:
    return (FIXTURES / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "gpus"), [("leonardo", 4), ("h100", 4), ("dgx_a100", 8), ("one_gpu", 1)])
def test_a_healthy_p2p_matrix_is_square_and_all_ok(name: str, gpus: int) -> None:
    matrix = parse_p2p(text(f"{name}_p2p.txt"))
    assert matrix.gpus == [f"GPU{i}" for i in range(gpus)]
    assert [row.index("X") for row in matrix.status] == list(range(gpus))
    assert sum(row.count("OK") for row in matrix.status) == gpus * (gpus - 1)
    assert matrix.not_ok() == []


def test_each_bad_pair_is_named_with_its_direction_and_code() -> None:
    bad = parse_p2p(text("pcie_p2p_some_cns.txt")).not_ok()
    assert len(bad) == 8
    assert ("GPU0", "GPU2", "CNS") in bad and ("GPU3", "GPU1", "CNS") in bad
    assert ("GPU0", "GPU1", "CNS") not in bad


def test_topology_with_underlined_header_affinities_and_card_names() -> None:
    topology = parse_topo(text("leonardo_topo.txt"))
    assert topology.gpus == ["GPU0", "GPU1", "GPU2", "GPU3"]
    assert {link for _, _, link in topology.gpu_pairs()} == {"NV4"} and len(topology.gpu_pairs()) == 6
    assert topology.links["GPU2"]["NIC2"] == "PXB" and topology.links["GPU2"]["NIC0"] == "NODE"
    assert topology.links["NIC0"]["NIC0"] == "X"
    assert topology.cpu_affinity["GPU3"] == "0-15" and topology.numa_affinity["GPU3"] == "0"
    assert topology.nic_names == {f"NIC{i}": f"mlx5_{i}" for i in range(4)}


def test_topology_of_two_sockets_and_of_eight_gpus_with_blanks_for_tabs() -> None:
    h100 = parse_topo(text("h100_topo.txt"))
    assert h100.numa_affinity == {"GPU0": "0", "GPU1": "0", "GPU2": "1", "GPU3": "1"}
    assert h100.links["GPU3"]["NIC4"] == "PIX" and h100.links["GPU0"]["NIC4"] == "SYS"
    dgx = parse_topo(text("dgx_a100_topo.txt"))
    assert len(dgx.gpus) == 8 and dgx.nics == [f"mlx5_{i}" for i in range(10)]
    assert len(dgx.gpu_pairs()) == 28 and dgx.cpu_affinity["GPU7"] == "80-95,208-223"


def test_one_gpu_has_a_topology_without_pairs() -> None:
    topology = parse_topo(text("one_gpu_topo.txt"))
    assert topology.gpus == ["GPU0"] and topology.gpu_pairs() == [] and topology.links["GPU0"]["NIC0"] == "SYS"


def test_ports_of_several_adapters() -> None:
    ports = parse_ibstat(text("h100_ibstat.txt"))
    assert [(p.adapter, p.state, p.rate_gbps, p.link_layer) for p in ports[3:]] == [
        ("mlx5_5", "Active", 200, "InfiniBand"),
        ("mlx5_2", "Active", 25, "Ethernet"),
        ("mlx5_3", "Down", 40, "Ethernet"),
    ]
    assert ports[0].firmware == "28.39.1002" and ports[0].adapter_type == "MT4129"


def test_two_ports_of_one_adapter_stay_apart() -> None:
    first, second = parse_ibstat(text("two_port_ibstat.txt"))
    assert (first.port, first.state, first.physical_state, first.rate_gbps) == (1, "Down", "Disabled", 10)
    assert (second.port, second.state, second.physical_state, second.rate_gbps) == (2, "Active", "LinkUp", 56)


@pytest.mark.parametrize("parse", [parse_p2p, parse_topo, parse_ibstat])
@pytest.mark.parametrize("wrong", ["", "\n\n", "NVIDIA-SMI has failed because it couldn't communicate"])
def test_an_answer_without_a_matrix_is_no_empty_matrix(parse: object, wrong: str) -> None:
    with pytest.raises(ParseError):
        parse(wrong)  # type: ignore[operator]


def test_a_matrix_cut_off_in_the_middle_is_refused() -> None:
    whole = text("dgx_a100_p2p.txt")
    with pytest.raises(ParseError, match="8 columns, 4 rows"):
        parse_p2p("\n".join(whole.splitlines()[:5]))
    with pytest.raises(ParseError, match="row of GPU2"):
        parse_topo("\n".join(text("leonardo_topo.txt").splitlines()[:3]))

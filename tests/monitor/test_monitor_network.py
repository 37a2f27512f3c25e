"""The network's samples: which ports count, what their rates are, and what a report makes of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.analysis.network import node_network, placed
from harness.analysis.summary import NodeNetwork, Summary
from harness.measure.machine import traffic_of_monitor
from harness.measure.run_files import read_traffic
from harness.monitor.network import NETWORK_COLUMNS, NETWORK_FILE, NodePorts, read_network
from harness.monitor.record import SampleFile
from harness.monitor.source import MonitorError
from tests.monitor.conftest import START_UNIX_NS

DEV = "Inter-|   Receive  |  Transmit\n face |bytes packets errs |bytes packets errs\n"
IB = {"index": 0, "name": "mlx5_0:1", "kind": "infiniband", "gbps": 200.0}
ETH = {"index": 0, "name": "eth0", "kind": "ethernet", "gbps": None}


def machine(root: Path, interfaces: dict[str, tuple[int, int]], real: tuple[str, ...] = (), ib: str = "") -> Path:
    port, net = "sys/class/infiniband/mlx5_0/ports/1", "sys/class/net"
    lines = [f"{n}: {rx} 1 0 0 0 0 0 0 {tx} 1 0 0 0 0 0 0\n" for n, (rx, tx) in interfaces.items()]
    files = {
        "proc/net/dev": DEV + "".join(lines),
        **{f"{net}/{name}/type": "32\n" if name.startswith("ib") else "1\n" for name in interfaces},
        **{f"{net}/{name}/speed": "100000\n" if name in real else "-1\n" for name in interfaces},
        **{f"{net}/{name}/device/vendor": "0x15b3\n" for name in real},
    }
    if ib:
        files |= {f"{port}/state": ib, f"{port}/rate": "200 Gb/sec (4X HDR)\n"}
        files |= {f"{port}/counters/port_rcv_data": "25\n", f"{port}/counters/port_xmit_data": "50\n"}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("interfaces", "real", "names"),
    [
        (("lo", "eth0", "docker0", "veth1"), ("eth0",), ["eth0"]),
        (("lo", "eth0", "docker0", "veth1"), (), ["eth0"]),
        (("lo",), (), []),
        (("lo", "eno1", "eno2", "bond0"), ("eno1", "eno2"), ["eno1", "eno2"]),
    ],
)
def test_ports_with_a_device_count_and_the_loopback_does_not(
    tmp_path: Path, interfaces: tuple[str, ...], real: tuple[str, ...], names: list[str]
) -> None:
    network = NodePorts(machine(tmp_path, dict.fromkeys(interfaces, (7, 9)), real))
    assert [nic.name for nic in network.nics] == names
    assert network.sample() == [(7, 9)] * len(names)


def test_an_infiniband_port_counts_words_of_four_bytes_and_ip_over_it_not_twice(tmp_path: Path) -> None:
    """A port that is down is left out, and a machine without /proc has none."""
    found = {"lo": (1, 1), "eth0": (3, 4), "ib0": (5, 6)}
    network = NodePorts(machine(tmp_path / "ib", found, ("eth0", "ib0"), "4: ACTIVE\n"))
    assert [(nic.name, nic.gbps) for nic in network.nics] == [("mlx5_0:1", 200.0), ("eth0", 100.0)]
    assert network.sample() == [(100, 200), (3, 4)]
    down = NodePorts(machine(tmp_path / "a", {"eth0": (1, 2)}, ("eth0",), "1: DOWN\n"))
    assert [nic.name for nic in down.nics] == ["eth0"]
    assert NodePorts(tmp_path / "none").nics == []


def recorded(folder: Path, counters: list[tuple[int, int]], nic: dict[str, object] = IB, node: str = "node1") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = SampleFile(folder / NETWORK_FILE, NETWORK_COLUMNS)
    for second, row in enumerate(counters):
        file.append(START_UNIX_NS + second * 10**9, [0], [row])
    meta = {"schema": 1, "host": node, "period_ns": 10**9, "nics": [nic], "starts_unix_ns": [START_UNIX_NS]}
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder


def network_of(folder: Path, counters: list[tuple[int, int]], nic: dict[str, object] = IB) -> NodeNetwork:
    _, nics = read_network(recorded(folder, counters, nic))
    node = node_network("node0", "monitor", traffic_of_monitor(nics))
    assert node is not None
    return node


def test_rates_mean_peak_and_share_of_the_link(tmp_path: Path) -> None:
    gb = 10**9
    folder = recorded(tmp_path, [(0, 0), (5 * gb, 20 * gb), (10 * gb, 20 * gb)])
    (found,), findings = read_traffic([folder])
    assert findings == []
    assert (found.node, found.sampled_by, found.ports) == ("node1", "monitor", ["mlx5_0:1"])
    assert placed(found, "leaf1", None, None).switch == "leaf1"
    assert (found.sent_bytes, found.mean_sent_gb_per_s, found.mean_received_gb_per_s) == (20 * gb, 10.0, 5.0)
    assert (found.peak_gb_per_s, found.link_gb_per_s, found.peak_share) == (20.0, 25.0, 0.8)


def test_the_sites_speed_is_taken_where_the_kernel_knows_none(tmp_path: Path) -> None:
    node = network_of(tmp_path, [(0, 0), (10**9, 0)], ETH)
    for gbps, expected in ((400.0, (50.0, "site", 0.02)), (None, (None, None, None))):
        found = placed(node, None, None, gbps)
        assert (found.link_gb_per_s, found.link_from, found.peak_share) == expected


def test_a_counter_that_begins_anew_gives_no_rate_and_a_gap_none(tmp_path: Path) -> None:
    _, (nic,) = read_network(recorded(tmp_path / "a", [(0, 0), (0, 500), (0, 100), (0, 300)]))
    assert [rate for *_, rate in nic.rates("sent_bytes")] == [500.0, 200.0]
    folder = recorded(tmp_path / "b", [(0, 0), (0, 500)])
    later = START_UNIX_NS + 60 * 10**9
    with (folder / NETWORK_FILE).open("a") as file:
        file.write(f"{later},0,0,90000\n{later + 10**9},0,0,90100\n")
    _, (nic,) = read_network(folder)
    assert [rate for *_, rate in nic.rates("sent_bytes")] == [500.0, 100.0]


def test_a_damaged_description_is_a_finding_and_an_older_monitor_none(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "a", [(0, 0), (1, 1)])
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, "nics": [{"index": "x"}]}))
    with pytest.raises(MonitorError, match="does not describe its nics"):
        read_network(folder)
    nodes, findings = read_traffic([folder, tmp_path])
    assert nodes == []
    assert [finding.what for finding in findings] == ["the monitor's samples cannot be read"]


END = (1 << 63) - 1
LATER = START_UNIX_NS + 3 * 10**9


@pytest.mark.parametrize(
    "rows",
    [
        [(LATER, 1e307), (LATER + 10**9, 1e308)],
        [(LATER, 1e300), (LATER + 1, 1e308)],
        [(LATER, 0), (LATER + 1, 1e12)],
        [(END - 1, 100), (END, 200)],
        [(-END, 100), (-END + 1, 100)],
        [(0, 0), (END, 200)],
    ],
)
def test_counters_and_times_that_cannot_be_true_are_left_out(tmp_path: Path, rows: list[tuple[int, float]]) -> None:
    folder = recorded(tmp_path, [(0, 0), (500, 500)])
    with (folder / NETWORK_FILE).open("a") as file:
        file.writelines(f"{moment},0,{count},{count}\n" for moment, count in rows)
    (node,), findings = read_traffic([folder])
    assert findings == []
    assert node.peak_gb_per_s < 8e3
    summary = Summary(network=[node, node.model_copy(update={"node": "node2"})])
    assert Summary.model_validate_json(summary.model_dump_json()) == summary

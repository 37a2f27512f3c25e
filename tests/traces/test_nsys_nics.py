"""The samples of `nsys profile --nic-metrics`: ports and rates as nsys has them, and a node's network made of them.

The exports are made here after nsys' published schema: no recording of a real adapter was at hand.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from harness.measure.paths import measure_one
from harness.traces import open_trace
from tests.synthetic import nsys
from tests.synthetic.nsys import Nsys

MS = 10**6
SENT, RECEIVED, ETH_SENT, ETH_RECEIVED, WAITS = range(5)


def two_ports() -> Nsys:
    """Ten samples of a millisecond: adapter 0 sends 1 GB/s and receives 2, adapter 1 sends 3 GB/s for 5 ms only."""
    made = nsys.nsys_step()
    for number, name in enumerate(("mlx5_0", "mlx5_1")):
        made.adapter(number, name)
    for i in reversed(range(10)):
        made.traffic(0, SENT, i * MS, MS, value=1e6)
        made.traffic(0, RECEIVED, i * MS, MS, value=2e6)
        made.traffic(0, ETH_SENT, i * MS, MS, value=0.0)
        made.traffic(0, ETH_RECEIVED, i * MS, MS, value=0.0)
        made.traffic(0, WAITS, i * MS, MS, value=7e9)
        made.traffic(1, ETH_SENT, i * MS, MS, value=3e6 if i >= 5 else 0.0)
        made.traffic(1, ETH_RECEIVED, i * MS, MS, value=0.0)
    return made


def test_each_port_comes_with_the_family_that_carries_its_bytes_and_a_node_is_their_sum(tmp_path: Path) -> None:
    path = two_ports().saved(tmp_path / "t.sqlite")
    nics = open_trace(path).nics
    assert [(nic.port, nic.sent, set(nic.bytes_per_s.tolist())) for nic in nics] == [
        ("mlx5_0:1", True, {1e9}), ("mlx5_0:1", False, {2e9}), ("mlx5_1:1", True, {0.0, 3e9}),
        ("mlx5_1:1", False, {0.0}),
    ]  # fmt: skip
    assert nics[0].start_ns.tolist() == [i * MS for i in range(10)]
    (node,) = measure_one([path], "gpu").network
    assert (node.node, node.sampled_by, node.ports) == ("lrdn0042", "nsys", ["mlx5_0:1", "mlx5_1:1"])
    assert (node.duration_ns, node.sent_bytes, node.received_bytes) == (10 * MS, 25 * 10**6, 20 * 10**6)
    assert (node.mean_sent_gb_per_s, node.mean_received_gb_per_s) == (2.5, 2.0)
    assert (node.peak_gb_per_s, node.link_gb_per_s) == (4.0, None)


def test_ports_that_are_sampled_at_other_moments_add_up_where_both_have_a_sample(tmp_path: Path) -> None:
    made = nsys.nsys_step()
    for number in (0, 1):
        made.adapter(number, f"mlx5_{number}")
        made.traffic(number, SENT, number * MS // 2, MS, value=1e6)
        made.traffic(number, RECEIVED, number * MS // 2, MS, value=0.0)
    (node,) = measure_one([made.saved(tmp_path / "t.sqlite")], "gpu").network
    assert (node.duration_ns, node.sent_bytes, node.peak_gb_per_s) == (MS * 3 // 2, 2 * 10**6, 2.0)


NAMELESS = ["adapter 1000:1", "adapter 1001:1"]
NO_UNIT = "its samples of network ports are left out: none of their metrics is bytes per time"
CHANGES: dict[str, tuple[list[str], str]] = {
    "DROP TABLE NIC_ID_MAP": (NAMELESS, ""),
    "DROP TABLE TARGET_INFO_NIC_INFO": (NAMELESS, ""),
    "UPDATE NIC_ID_MAP SET globalId='x'": (NAMELESS, ""),
    "UPDATE NET_NIC_METRIC SET portId=0": (["mlx5_0", "mlx5_1"], ""),
    "DELETE FROM NET_NIC_METRIC": ([], ""),
    "DROP TABLE NET_NIC_METRIC": ([], ""),
    "UPDATE NET_NIC_METRIC SET value=-1": ([], "have a value that no counter reaches"),
    "UPDATE NET_NIC_METRIC SET value=9e18": ([], "have a value that no counter reaches"),
    "UPDATE NET_NIC_METRIC SET value=NULL": ([], "have a value that no counter reaches"),
    'UPDATE NET_NIC_METRIC SET "end"=start': ([], "samples of counters"),
    "UPDATE NET_NIC_METRIC SET start=4611686018427387904": ([], "samples of counters"),
    "DROP TABLE TARGET_INFO_NETWORK_METRICS": ([], NO_UNIT),
    "UPDATE TARGET_INFO_NETWORK_METRICS SET unit='furlongs'": ([], NO_UNIT),
    "UPDATE TARGET_INFO_NETWORK_METRICS SET metricsIdx=NULL": ([], NO_UNIT),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_missing_or_cannot_be_true_is_left_out_and_said(tmp_path: Path, change: str) -> None:
    path = two_ports().saved(tmp_path / "t.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute(change)
    trace, (ports, says) = open_trace(path), CHANGES[change]
    assert list(dict.fromkeys(nic.port for nic in trace.nics)) == ports
    assert says in "; ".join(trace.notes)

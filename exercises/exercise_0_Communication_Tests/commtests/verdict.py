"""What is wrong: with the links of one node, between nodes, in the benchmark, with a probe in its rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any, Literal

from .parsers import P2PMatrix, Port, Topology

P2P_TESTS = {"p2p_read": "P2P read", "p2p_write": "P2P write", "p2p_nvlink": "NVLink P2P"}

# Slower than the median of its peers by more: GPUs of one kind differ by a few per cent, processes that share a CPU
# by much more.
LIMIT = {"cuda": 0.15, "cpu": 0.30}
# Of what the nominal links allow; a ring of NCCL reaches three quarters and more with large messages.
LEAST_OF_NOMINAL = 0.5
CLEARLY = 1.5  # times the usual spread: at 1.0, noise alone accused one of 512 ranks in up to 13 checks of 100
SMALL_RING = 4  # up to so many pairs, a slow node is in half of them or more


@dataclass(frozen=True)
class LinkFinding:
    """One observation. `level`: "problem" if it costs bandwidth or breaks jobs, else "note"."""

    level: str
    test: str
    message: str

    def line(self) -> str:
        return f"{'PROBLEM' if self.level == 'problem' else 'note':>8}  {self.message}"


NodeRecord = Mapping[str, Any]
Measurements = Mapping[str, Any] | None  # collectives.json, where the benchmark left one


def judge_node(record: NodeRecord, expected_rate_gbps: float | None = None) -> list[LinkFinding]:
    """Everything that is wrong on one node; an empty list where all available tests are good."""
    tests = record["tests"]
    where = f"node {record['node']} ({record['host']})"
    findings: list[LinkFinding] = []
    for key, name in P2P_TESTS.items():
        if tests[key]["available"]:
            findings += _judge_p2p(where, key, name, P2PMatrix(**tests[key]["parsed"]))
    if tests["topology"]["available"]:
        findings += _judge_topology(where, Topology(**tests["topology"]["parsed"]))
    if tests["infiniband"]["available"]:
        ports = [Port(**port) for port in tests["infiniband"]["parsed"]]
        findings += [finding for port in ports for finding in _judge_port(where, port, expected_rate_gbps)]
    return findings


def judge_nodes(
    records: Sequence[NodeRecord],
    nodes: int | None = None,
    expected_rate_gbps: float | None = None,
    measured: Measurements = None,
) -> list[LinkFinding]:
    """Findings of each node, nodes without a result (of the expected number `nodes`), differences, wrong results."""
    findings = [finding for record in records for finding in judge_node(record, expected_rate_gbps)]
    missing = sorted(set(range(nodes or 0)) - {int(record["node"]) for record in records})
    findings += [LinkFinding("problem", "nodes", f"node {node} wrote no result") for node in missing]
    return findings + _differences(records) + _wrong_results(measured)


def verdict_line(findings: Sequence[LinkFinding], records: Sequence[NodeRecord], measured: Measurements = None) -> str:
    """The verdict over all nodes in a few sentences: what was found, what was measured, what could not be judged and
    why. It never says "fine" about what was not tested."""
    sentences = [_links(findings, records), _collectives(measured), _speed(measured), _untested(records)]
    return "VERDICT: " + " ".join(filter(None, sentences))


def _links(findings: Sequence[LinkFinding], records: Sequence[NodeRecord]) -> str:
    problems = sum(finding.level == "problem" for finding in findings)
    counts = Counter(key for record in records for key, test in record["tests"].items() if test["available"])
    on = f"{len(records)} node{'' if len(records) == 1 else 's'}"
    if problems:
        return f"{problems} problem{'' if problems == 1 else 's'} on {on}."
    if not counts:  # `_untested` gives the reasons
        return ""
    everywhere = len(records)
    tested = [key if n == everywhere else f"{key} (tested on {n})" for key, n in sorted(counts.items())]
    return f"No problem on {on}: {', '.join(tested)}."


def _collectives(measured: Measurements) -> str:
    if measured is None:
        return "No collective was measured: the benchmark wrote no result."
    results = [result for result in measured["results"] if result["points"]]
    if not results:
        return f"No collective was measured: {measured.get('reason') or 'the benchmark was stopped too early'}."
    kinds = len({result["collective"] for result in results})
    right = all(point["correct"] for result in results for point in result["points"])
    return (
        f"{kinds} collective{'s were' if kinds > 1 else ' was'} measured between {measured['world_size']} ranks "
        f"({measured['backend']}, {measured['device_name']}), {'all results right' if right else 'with wrong results'}."
    )


def _speed(measured: Measurements) -> str:
    """Why the speed of the collectives cannot be judged; empty if the rates of the links are known."""
    if measured is None or not any(result["points"] for result in measured["results"]):
        return ""
    if any(measured["link_gbps"].values()):
        return ""
    if measured["device"] == "cpu":
        return "The speed cannot be judged: between processes on CPUs there is no link with a known rate."
    return (
        "The speed cannot be judged: the rates of the links were not given "
        "(network.link_intra_gbps and link_inter_gbps of the site file)."
    )


def _untested(records: Sequence[NodeRecord]) -> str:
    """The tests that did not run on a node, by reason."""
    reasons: dict[str, dict[str, None]] = {}
    for record in records:
        for key, result in record["tests"].items():
            if not result["available"]:
                reasons.setdefault(result["reason"], {})[key] = None
    parts = [f"{', '.join(tests)} ({reason})" for reason, tests in reasons.items()]
    return f"Not tested: {'; '.join(parts)}." if parts else ""


def _wrong_results(measured: Measurements) -> list[LinkFinding]:
    return [
        LinkFinding("problem", "collectives", f"{result['collective']} ({result['scope']}) gave wrong numbers")
        for result in (measured or {"results": []})["results"]
        if not all(point["correct"] for point in result["points"])
    ]


def _judge_p2p(where: str, key: str, name: str, matrix: P2PMatrix) -> list[LinkFinding]:
    bad = matrix.not_ok()
    pairs = len(matrix.gpus) * (len(matrix.gpus) - 1)
    if not bad:
        return []
    shown = ", ".join(f"{a}→{b} {code}" for a, b, code in bad[:6]) + (" …" if len(bad) > 6 else "")
    return [LinkFinding("problem", key, f"{where}: {name}: {len(bad)} of {pairs} GPU pairs are not OK: {shown}")]


def _judge_topology(where: str, topology: Topology) -> list[LinkFinding]:
    findings = []
    pairs = topology.gpu_pairs()
    across = [f"{a}–{b}" for a, b, link in pairs if link == "SYS"]
    if across:
        shown = ", ".join(across[:6]) + (" …" if len(across) > 6 else "")
        message = f"{where}: {len(across)} of {len(pairs)} GPU pairs communicate over the socket link (SYS): {shown}"
        findings.append(LinkFinding("problem", "topology", message))
    for gpu in topology.gpus:
        to_nics = [topology.links[gpu].get(nic) for nic in topology.nics]
        if to_nics and all(link == "SYS" for link in to_nics):
            message = f"{where}: {gpu} reaches every network card over the socket link (SYS)"
            findings.append(LinkFinding("note", "topology", message))
    return findings


def _judge_port(where: str, port: Port, expected_rate_gbps: float | None) -> list[LinkFinding]:
    name = f"{where}: {port.adapter} port {port.port}"
    # A card's Ethernet port is often unused, or for the management network: no InfiniBand problem.
    level = "problem" if port.link_layer == "InfiniBand" else "note"
    if port.state != "Active":
        message = f"{name} ({port.link_layer}) is {port.state} (physical state {port.physical_state})"
        return [LinkFinding(level, "infiniband", message)]
    if port.link_layer != "InfiniBand" or expected_rate_gbps is None:
        return []
    if port.rate_gbps is None:
        return [LinkFinding("note", "infiniband", f"ibstat gives no rate for {name}")]
    if port.rate_gbps < expected_rate_gbps:
        message = f"{name} runs at {port.rate_gbps} Gb/s, {expected_rate_gbps:g} expected"
        return [LinkFinding("problem", "infiniband", message)]
    return []


def _differences(records: Sequence[NodeRecord]) -> list[LinkFinding]:
    """One finding per property in which the nodes differ: each value, and the nodes that have it."""
    findings = []
    by_node = {int(record["node"]): _properties(record) for record in records}
    for name in sorted(set().union(*by_node.values())):
        nodes_of: dict[str, list[int]] = {}
        for node, properties in by_node.items():
            nodes_of.setdefault(properties.get(name, "not available"), []).append(node)
        if len(nodes_of) > 1:
            ordered = sorted(nodes_of.items(), key=lambda item: -len(item[1]))
            values = "; ".join(f"{value} on {_nodes(nodes)}" for value, nodes in ordered)
            findings.append(LinkFinding("problem", "nodes", f"nodes differ in {name}: {values}"))
    return findings


def _nodes(nodes: Sequence[int]) -> str:
    if len(nodes) > 8:
        return f"{len(nodes)} nodes"
    return f"node{'' if len(nodes) == 1 else 's'} {', '.join(map(str, nodes))}"


def _properties(record: NodeRecord) -> dict[str, str]:
    """The properties that equal nodes share, as short text by name; no unique ids (GUID, LID)."""
    tests = record["tests"]
    found: dict[str, str] = {}
    if tests["topology"]["available"]:
        topology = Topology(**tests["topology"]["parsed"])
        found["number of GPUs"] = str(len(topology.gpus))
        found["number of network cards"] = str(len(topology.nics))
        links = Counter(link for _, _, link in topology.gpu_pairs())
        found["GPU links"] = _counted(links) or "none"
    for key, name in P2P_TESTS.items():
        if tests[key]["available"]:
            codes = Counter(code for _, _, code in P2PMatrix(**tests[key]["parsed"]).not_ok())
            found[name] = _counted(codes) or "all OK"
    if tests["infiniband"]["available"]:
        ports = [Port(**port) for port in tests["infiniband"]["parsed"]]
        found["ports"] = _counted(Counter(f"{p.link_layer} {p.state} {p.rate_gbps} Gb/s" for p in ports))
        found["adapter firmware"] = ", ".join(sorted({f"{p.adapter_type} {p.firmware}" for p in ports}))
    return found


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{number}× {what}" for what, number in sorted(counts.items()))


@dataclass(frozen=True)
class SlowPlaces:
    """A label of a probe that fails, and what it is compared with: `value` and `other` in the probe's unit."""

    probe: Mapping[str, Any]
    label: str
    value: float
    other: float
    against: Literal["others", "links"]

    @property
    def is_pair(self) -> bool:
        return bool(self.probe["by"].endswith("pair"))

    def text(self, whose: str = "") -> str:
        """As `GEMM 201 TFLOP/s (the others 262)`. whose: as ` of rank 5`, after the probe's name."""
        told = "the others" if self.against == "others" else "the site's links allow"
        return f"{self.probe['name']}{whose} {number(self.value)} {self.probe['unit']} ({told} {number(self.other)})"


def number(value: float) -> str:
    """Three digits that count, and no power of ten: 0.53, 26.1, 1520."""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def quartiles(values: Sequence[float]) -> list[float]:
    """The lower quartile, the median and the upper quartile of two values or more."""
    return quantiles(values, n=4, method="inclusive")


@dataclass(frozen=True)
class ProbeVerdict:
    """One probe: what is slow, and how much its repetitions spread where that is too much to see anything slow."""

    slow: list[SlowPlaces]
    unsteady: float | None = None


def judge_probe(probe: Mapping[str, Any], limit: float) -> ProbeVerdict:
    """A label is slow when, against its peers in the same round, its median is below by more than `limit` and by more
    than the repetitions usually spread, and three quarters of the rounds agree."""
    values: Mapping[str, Sequence[float]] = probe["values"]
    nominal = list(_below_nominal(probe))
    if len(values) < 2 or (probe["bound"] is None and probe["by"] == "job"):
        return ProbeVerdict(nominal)
    usual = max if probe["by"].endswith("pair") and len(values) <= SMALL_RING else median
    ratios, spreads = {}, {}
    for label, rates in values.items():
        peers = [row for name, row in values.items() if name != label]
        ratios[label] = [mine / usual(row) for mine, *row in zip(rates, *peers, strict=True)]  # of each round
        spreads[label] = quartiles(ratios[label])
    noise = median(high - low for low, _, high in spreads.values())
    medians = {label: median(rates) for label, rates in values.items()}
    slow = [
        SlowPlaces(probe, label, medians[label], median(medians[other] for other in values if other != label), "others")
        for label, each in ratios.items()
        if 1 - median(each) > max(limit, CLEARLY * noise) and spreads[label][2] < 1 - limit / 2
    ]
    named = {each.label for each in slow}
    found = [*slow, *(each for each in nominal if each.label not in named)]
    return ProbeVerdict(found, noise if noise > limit and not found else None)


def _below_nominal(probe: Mapping[str, Any]) -> Iterator[SlowPlaces]:
    bound = probe["bound"]
    for label, row in probe["values"].items():
        if bound is not None and median(row) < LEAST_OF_NOMINAL * bound:
            yield SlowPlaces(probe, label, median(row), bound, "links")

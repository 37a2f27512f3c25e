"""What is wrong with the links, in sentences: of one node, of nodes that should be alike, and of what was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .parsers import P2PMatrix, Port, Topology

P2P_TESTS = {"p2p_read": "P2P read", "p2p_write": "P2P write", "p2p_nvlink": "NVLink P2P"}
STATUS = {
    "CNS": "chipset not supported",
    "GNS": "GPU not supported",
    "TNS": "topology not supported",
    "NS": "not supported",
    "DR": "disabled by registry",
    "U": "unknown",
}


@dataclass(frozen=True)
class Finding:
    """One thing to know. `problem`: it costs bandwidth or breaks jobs; `note`: worth a look."""

    level: str
    test: str
    message: str

    def line(self) -> str:
        """As printed."""
        return f"{'PROBLEM' if self.level == 'problem' else 'note':>8}  {self.message}"


Record = Mapping[str, Any]
Measured = Mapping[str, Any] | None  # collectives.json, where the benchmark left one


def judge_node(record: Record, expected_rate_gbps: float | None = None) -> list[Finding]:
    """All that is not as it should be on one node; an empty list: what could be tested is fine."""
    tests = record["tests"]
    where = f"node {record['node']} ({record['host']})"
    findings: list[Finding] = []
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
    records: Sequence[Record],
    nodes: int | None = None,
    expected_rate_gbps: float | None = None,
    measured: Measured = None,
) -> list[Finding]:
    """Findings of each node, nodes without a result (`nodes`: how many there must be), differences, wrong results."""
    findings = [finding for record in records for finding in judge_node(record, expected_rate_gbps)]
    missing = sorted(set(range(nodes or 0)) - {int(record["node"]) for record in records})
    findings += [Finding("problem", "nodes", f"node {node} left no result") for node in missing]
    return findings + _differences(records) + _wrong_results(measured)


def verdict_line(findings: Sequence[Finding], records: Sequence[Record], measured: Measured = None) -> str:
    """The verdict over all nodes in a few sentences: what was found, what was measured, what nobody could judge and
    why. It never says "fine" about what was not tested."""
    said = [_links(findings, records), _collectives(measured), _speed(measured), _untested(records)]
    return "VERDICT: " + " ".join(filter(None, said))


def _links(findings: Sequence[Finding], records: Sequence[Record]) -> str:
    problems = sum(finding.level == "problem" for finding in findings)
    counts = Counter(key for record in records for key, test in record["tests"].items() if test["available"])
    tested = [
        key if count == len(records) else f"{key} (tested on {count})"
        for key, count in sorted(counts.items())
    ]
    on = f"{len(records)} node{'' if len(records) == 1 else 's'}"
    if problems:
        return f"{problems} problem{'' if problems == 1 else 's'} on {on}."
    if not tested:  # said with the reasons, at the end
        return ""
    return f"As it should be on {on}: {', '.join(tested)}."


def _collectives(measured: Measured) -> str:
    """What the benchmark did."""
    if measured is None:
        return "No collective was measured: the benchmark left no result."
    results = [result for result in measured["results"] if result["points"]]
    if not results:
        return f"No collective was measured: {measured.get('reason') or 'the benchmark was stopped before'}."
    kinds = len({result["collective"] for result in results})
    right = all(point["correct"] for result in results for point in result["points"])
    return (
        f"{kinds} collective{'s were' if kinds > 1 else ' was'} measured between {measured['world_size']} ranks "
        f"({measured['backend']}, {measured['device_name']}), {'all results right' if right else 'with wrong results'}."
    )


def _speed(measured: Measured) -> str:
    """Why nobody can say whether the collectives are fast enough; empty where the links' rates are known."""
    if measured is None or not any(result["points"] for result in measured["results"]):
        return ""
    if any(rate for rate in measured["link_gbps"].values()):
        return ""
    if measured["device"] == "cpu":
        return "Whether that is fast cannot be judged: between processes on CPUs there is no link with a known rate."
    return (
        "Whether that is fast cannot be judged: the rates of the links were not given "
        "(network.link_intra_gbps and link_inter_gbps of the site file)."
    )


def _untested(records: Sequence[Record]) -> str:
    """The tests that did not run on some node, by reason."""
    reasons: dict[str, dict[str, set[int]]] = {}
    for record in records:
        for key, result in record["tests"].items():
            if not result["available"]:
                reasons.setdefault(result["reason"], {}).setdefault(key, set()).add(int(record["node"]))
    parts = []
    for reason, tests in reasons.items():
        where = sorted(set.union(*tests.values()))
        of = f" on {_nodes(where)}" if len(where) < len(records) else ""
        parts.append(f"{', '.join(tests)}{of} ({reason})")
    return f"Not tested: {'; '.join(parts)}." if parts else ""


def _wrong_results(measured: Measured) -> list[Finding]:
    return [
        Finding("problem", "collectives", f"{result['collective']} ({result['scope']}) gave wrong numbers")
        for result in (measured or {"results": []})["results"]
        if not all(point["correct"] for point in result["points"])
    ]


def _judge_p2p(where: str, key: str, name: str, matrix: P2PMatrix) -> list[Finding]:
    bad = matrix.not_ok()
    pairs = len(matrix.gpus) * (len(matrix.gpus) - 1)
    if not bad:
        return []
    if len(bad) == pairs:
        codes = ", ".join(
            f"{code} ({STATUS.get(code, 'not in the legend')})" for code in sorted({b[2] for b in bad})
        )
        return [Finding("problem", key, f"{where}: {name}: no GPU pair is OK, all are {codes}")]
    shown = ", ".join(f"{a}→{b} {code}" for a, b, code in bad[:6])
    more = f" and {len(bad) - 6} more" if len(bad) > 6 else ""
    return [Finding("problem", key, f"{where}: {name}: {len(bad)} of {pairs} are not OK: {shown}{more}")]


def _judge_topology(where: str, topology: Topology) -> list[Finding]:
    findings = []
    pairs = topology.gpu_pairs()
    across = [f"{a}–{b}" for a, b, link in pairs if link == "SYS"]
    if across:
        findings.append(
            Finding(
                "problem",
                "topology",
                f"{where}: {len(across)} of {len(pairs)} GPU pairs talk over the socket link (SYS): "
                + ", ".join(across[:6]) + (" …" if len(across) > 6 else ""),
            )
        )  # fmt: skip
    for gpu in topology.gpus:
        to_nics = [topology.links[gpu].get(nic) for nic in topology.nics]
        if to_nics and all(link == "SYS" for link in to_nics):
            message = f"{where}: {gpu} reaches every network card over the socket link (SYS)"
            findings.append(Finding("note", "topology", message))
    return findings


def _judge_port(where: str, port: Port, expected_rate_gbps: float | None) -> list[Finding]:
    name = f"{where}: {port.adapter} port {port.port}"
    # A card's Ethernet port is often the management network, or unused: no InfiniBand problem.
    level = "problem" if port.link_layer == "InfiniBand" else "note"
    if port.state != "Active":
        said = f"{name} ({port.link_layer}) is {port.state} (physical state {port.physical_state})"
        return [Finding(level, "infiniband", said)]
    if port.link_layer != "InfiniBand" or expected_rate_gbps is None:
        return []
    if port.rate_gbps is None:
        return [Finding("note", "infiniband", f"{name} does not tell its rate")]
    if port.rate_gbps < expected_rate_gbps:
        said = f"{name} runs at {port.rate_gbps} Gb/s, {expected_rate_gbps:g} expected"
        return [Finding("problem", "infiniband", said)]
    return []


def _differences(records: Sequence[Record]) -> list[Finding]:
    """One finding per fact in which the nodes are not all alike: each value and where it was seen."""
    findings = []
    facts = {int(record["node"]): _facts(record) for record in records}
    for name in sorted({name for known in facts.values() for name in known}):
        seen: dict[str, list[int]] = {}
        for node, known in facts.items():
            seen.setdefault(known.get(name, "not available"), []).append(node)
        if len(seen) > 1:
            ordered = sorted(seen.items(), key=lambda item: -len(item[1]))
            said = "; ".join(f"{value} on {_nodes(nodes)}" for value, nodes in ordered)
            findings.append(Finding("problem", "nodes", f"nodes differ in {name}: {said}"))
    return findings


def _nodes(nodes: Sequence[int]) -> str:
    if len(nodes) > 8:
        return f"{len(nodes)} nodes"
    return f"node{'' if len(nodes) == 1 else 's'} {', '.join(map(str, nodes))}"


def _facts(record: Record) -> dict[str, str]:
    """What must be equal on equal nodes, as short text by name. Unique ids (GUID, LID) are not among them."""
    tests = record["tests"]
    facts: dict[str, str] = {}
    if tests["topology"]["available"]:
        topology = Topology(**tests["topology"]["parsed"])
        facts["number of GPUs"] = str(len(topology.gpus))
        facts["number of network cards"] = str(len(topology.nics))
        links = Counter(link for _, _, link in topology.gpu_pairs())
        facts["GPU links"] = _counted(links) or "none"
    for key, name in P2P_TESTS.items():
        if tests[key]["available"]:
            facts[name] = (
                _counted(Counter(code for _, _, code in P2PMatrix(**tests[key]["parsed"]).not_ok()))
                or "all OK"
            )
    if tests["infiniband"]["available"]:
        ports = [Port(**port) for port in tests["infiniband"]["parsed"]]
        facts["ports"] = _counted(Counter(f"{p.link_layer} {p.state} {p.rate_gbps} Gb/s" for p in ports))
        facts["adapter firmware"] = ", ".join(sorted({f"{p.adapter_type} {p.firmware}" for p in ports}))
    return facts


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{number}× {what}" for what, number in sorted(counts.items()))

"""What is wrong with the links, in sentences: of one node, and of nodes that should be alike."""

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
    return findings + _untested(where, tests)


def judge_nodes(
    records: Sequence[Record], nodes: int | None = None, expected_rate_gbps: float | None = None
) -> list[Finding]:
    """Findings of each node, nodes without a result (`nodes`: how many there must be), and differences."""
    findings = [finding for record in records for finding in judge_node(record, expected_rate_gbps)]
    missing = sorted(set(range(nodes or 0)) - {int(record["node"]) for record in records})
    findings += [Finding("problem", "nodes", f"node {node} left no result") for node in missing]
    return findings + _differences(records)


def verdict_line(findings: Sequence[Finding], records: Sequence[Record]) -> str:
    """One sentence over all nodes. It never says "fine" about a test that could not be run."""
    problems = sum(finding.level == "problem" for finding in findings)
    tested = sorted({key for record in records for key, test in record["tests"].items() if test["available"]})
    untested = sorted({key for record in records for key in record["tests"]} - set(tested))
    on = f"{len(records)} node{'' if len(records) == 1 else 's'}"
    if problems:
        return f"VERDICT: {problems} problem{'' if problems == 1 else 's'} on {on}, listed above."
    if not tested:
        return f"VERDICT: nothing could be tested on {on}: no nvidia-smi and no ibstat answered."
    rest = f" Not tested: {', '.join(untested)}." if untested else ""
    return f"VERDICT: {', '.join(tested)} are as they should be on {on}.{rest}"


def _untested(where: str, tests: Mapping[str, Any]) -> list[Finding]:
    reasons: dict[str, list[str]] = {}
    for key, result in tests.items():
        if not result["available"]:
            reasons.setdefault(result["reason"], []).append(key)
    return [
        Finding("note", keys[0], f"{where}: not available here: {', '.join(keys)}: {reason}")
        for reason, keys in reasons.items()
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

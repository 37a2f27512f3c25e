"""The five tests of the links of one node: their commands, their meaning, their results. Judges nothing."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.common.system.programs import NOT_THERE, TOO_LATE, ask

from .parsers import P2PMatrix, ParseError, parse_ibstat, parse_p2p, parse_topo

TIMEOUT_S = 60
WIDTH = 78

LEGEND = """\
How to read them
  P2P matrices     OK   this GPU reaches that one's memory directly
                   CNS  chipset not supported     GNS  GPU not supported     TNS  topology not supported
                   NS   not supported             DR   disabled by registry  U    unknown
  topology         NV#  # NVLinks bonded (best)   PIX  one PCIe bridge       PXB  several PCIe bridges
                   PHB  through the CPU's PCIe host bridge
                   NODE between host bridges of one NUMA node
                   SYS  between NUMA nodes, over the socket link (slowest)
  InfiniBand       State Active and Physical state LinkUp: usable; Rate: Gb/s of the port, one direction"""


@dataclass(frozen=True)
class LinkTest:
    """One of the five tests: key in the JSON, header on the screen, argv, and the parser of its output."""

    key: str
    title: str
    argv: tuple[str, ...]
    parse: Callable[[str], Any]


TESTS = (
    LinkTest("p2p_read", "P2P read: which GPU may read which GPU's memory",
             ("nvidia-smi", "topo", "-p2p", "r"), parse_p2p),
    LinkTest("p2p_write", "P2P write: which GPU may write which GPU's memory",
             ("nvidia-smi", "topo", "-p2p", "w"), parse_p2p),
    LinkTest("p2p_nvlink", "NVLink P2P: which GPU pairs have NVLink between them",
             ("nvidia-smi", "topo", "-p2p", "n"), parse_p2p),
    LinkTest("topology", "Topology: GPUs, network cards, CPUs and what lies between them",
             ("nvidia-smi", "topo", "-m"), parse_topo),
    LinkTest("infiniband", "InfiniBand: state and rate of each port", ("ibstat",), parse_ibstat),
)  # fmt: skip


def run_tests(node: int, which: Callable[[str], str | None] = shutil.which) -> dict[str, Any]:
    """The results of all five tests on this node, for JSON. A test without its tool has the reason instead."""
    return {"node": node, "host": socket.gethostname(), "tests": {test.key: run_test(test, which) for test in TESTS}}


def run_test(test: LinkTest, which: Callable[[str], str | None] = shutil.which) -> dict[str, Any]:
    """{"command", "available", "reason", "text", "parsed"}; `reason` is None exactly where `parsed` is there."""
    result = {"command": list(test.argv), "available": False, "reason": None, "text": "", "parsed": None}
    program = which(test.argv[0])
    if program is None:
        return {**result, "reason": f"{test.argv[0]} is not installed on this node"}
    text, reason = _capture([program, *test.argv[1:]])
    result |= {"text": text, "reason": reason}
    if reason is not None:
        return result
    try:
        parsed = test.parse(text)
    except ParseError as error:
        return {**result, "reason": str(error)}
    data = [asdict(item) for item in parsed] if isinstance(parsed, list) else asdict(parsed)
    return {**result, "available": True, "parsed": data}


def node_text(record: Mapping[str, Any], legend: bool = True) -> str:
    """The node's record as text for students: a heading, the command and its output for each test."""
    parts = [_rule(f"node {record['node']} ({record['host']})", "#")]
    for number, test in enumerate(TESTS, start=1):
        body = _body(record["tests"][test.key], is_matrix=test.parse is parse_p2p)
        parts += [_rule(f"{number}. {test.title}", "="), "$ " + " ".join(test.argv), body]
    if legend:
        parts.append("\n" + LEGEND)
    return "\n".join(parts) + "\n"


def _body(result: Mapping[str, Any], is_matrix: bool) -> str:
    if not result["available"]:
        return f"not available here: {result['reason']}"
    if is_matrix:
        return _matrix_text(P2PMatrix(**result["parsed"]))
    return str(result["text"]).rstrip()


def _matrix_text(matrix: P2PMatrix) -> str:
    width = max(len(name) for name in matrix.gpus) + 2
    rows = [["", *matrix.gpus], *([name, *row] for name, row in zip(matrix.gpus, matrix.status, strict=True))]
    return "\n".join("".join(cell.rjust(width) for cell in row) for row in rows)


def _capture(argv: Sequence[str]) -> tuple[str, str | None]:
    """(stdout, None), or (stdout so far, the reason why it cannot be used)."""
    answer = ask(argv, TIMEOUT_S, os.environ)
    if answer.code in (NOT_THERE, TOO_LATE):
        return answer.out, answer.reason
    if answer.code != 0:
        message = (answer.err.strip() or answer.out.strip() or "nothing").splitlines()[0]
        return answer.out, f"{argv[0]} ended with {answer.code}: {message}"
    return answer.out, None


def _rule(title: str, sign: str) -> str:
    return f"\n{sign * 3} {title} ".ljust(WIDTH, sign)

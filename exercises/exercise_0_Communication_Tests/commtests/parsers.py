"""Text of `nvidia-smi topo` and `ibstat` into data. Pure functions: they start nothing and judge nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import combinations

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_GPU = re.compile(r"GPU\d+$")
_DEVICE = re.compile(r"(GPU\d+|NIC\d+|mlx\w+|hfi\w+|bnxt\w+|hsi\w+|cxi\w+|efa\w*|rdmap\w+)$")
_CA = re.compile(r"CA '([^']+)'")
_PORT = re.compile(r"\s*Port (\d+):\s*$")
_FIELD = re.compile(r"\s*([A-Za-z ]+):\s*(.*?)\s*$")


class ParseError(ValueError):
    """The tool's output does not have the expected form."""


@dataclass(frozen=True)
class P2PMatrix:
    """`status[i][j]`: whether GPU i reaches GPU j: X (itself), OK, or the reason (CNS, GNS, TNS, NS, DR, U)."""

    gpus: list[str]
    status: list[list[str]]

    def not_ok(self) -> list[tuple[str, str, str]]:
        """(from, to, status) of each ordered pair of different GPUs that is not OK."""
        return [
            (one, other, value)
            for one, row in zip(self.gpus, self.status, strict=True)
            for other, value in zip(self.gpus, row, strict=True)
            if one != other and value != "OK"
        ]


@dataclass(frozen=True)
class Topology:
    """`links[a][b]`: NV<n>, PIX, PXB, PHB, NODE or SYS between devices a and b; X for itself."""

    gpus: list[str]
    nics: list[str]
    links: dict[str, dict[str, str]]

    def gpu_pairs(self) -> list[tuple[str, str, str]]:
        """(a, b, link) of each unordered pair of GPUs."""
        return [(a, b, self.links[a][b]) for a, b in combinations(self.gpus, 2) if b in self.links[a]]


@dataclass(frozen=True)
class Port:
    """One port of a host channel adapter. `rate_gbps`: None where ibstat printed no number."""

    adapter: str
    port: int
    state: str
    physical_state: str
    rate_gbps: int | None
    link_layer: str
    adapter_type: str = ""
    firmware: str = ""


def parse_p2p(text: str) -> P2PMatrix:
    """The matrix of `nvidia-smi topo -p2p r|w|n`. Raises ParseError: the matrix is missing or cut off."""
    lines = _lines(text)
    gpus = [word for word in _header_line(lines).split() if _GPU.match(word)]
    rows: dict[str, list[str]] = {}
    for line in lines:
        words = line.split()
        if words and words[0] in gpus and len(words) > 1 and not _GPU.match(words[1]):
            rows[words[0]] = words[1:]
    if list(rows) != gpus or any(len(row) != len(gpus) for row in rows.values()):
        raise ParseError(f"the P2P matrix is incomplete: {len(gpus)} columns, {len(rows)} rows")
    return P2PMatrix(gpus, [rows[gpu] for gpu in gpus])


def parse_topo(text: str) -> Topology:
    """The matrix of `nvidia-smi topo -m`. Raises ParseError: the matrix is missing or cut off."""
    lines = _lines(text)
    header = _header_line(lines)
    devices = [word for word in header.split() if _DEVICE.match(word)]
    links: dict[str, dict[str, str]] = {}
    for line in lines[lines.index(header) + 1 :]:
        words = line.split()
        if words and words[0] in devices:
            links[words[0]] = dict(zip(devices, words[1:], strict=False))
    gpus = [device for device in devices if _GPU.match(device)]
    short = [gpu for gpu in gpus if len(links.get(gpu, {})) < len(gpus)]
    if short:
        raise ParseError(f"the topology matrix is incomplete: the row of {short[0]} is missing or short")
    return Topology(gpus, [device for device in devices if not _GPU.match(device)], links)


def parse_ibstat(text: str) -> list[Port]:
    """Each port that `ibstat` lists. Raises ParseError: ibstat lists no port."""
    ports: list[tuple[str, int, dict[str, str]]] = []
    adapter = ""
    of_adapter: dict[str, str] = {}
    fields = of_adapter
    for line in _lines(text):
        if match := _CA.match(line.strip()):
            adapter = match.group(1)
            fields = of_adapter = {}
        elif match := _PORT.match(line):
            fields = dict(of_adapter)  # an adapter's own fields come before its ports
            ports.append((adapter, int(match.group(1)), fields))
        elif match := _FIELD.match(line):
            fields[match.group(1).strip()] = match.group(2)
    if not ports:
        raise ParseError("ibstat lists no adapter port")
    return [_port(*port) for port in ports]


def _port(adapter: str, number: int, fields: dict[str, str]) -> Port:
    rate = re.match(r"\d+", fields.get("Rate", ""))
    return Port(
        adapter=adapter,
        port=number,
        state=fields.get("State", "unknown"),
        physical_state=fields.get("Physical state", "unknown"),
        rate_gbps=int(rate.group()) if rate else None,
        link_layer=fields.get("Link layer", "unknown"),
        adapter_type=fields.get("CA type", ""),
        firmware=fields.get("Firmware version", ""),
    )


def _lines(text: str) -> list[str]:
    return _ANSI.sub("", text).splitlines()


def _header_line(lines: list[str]) -> str:
    for line in lines:
        words = line.split()
        # The second word of a row is a link; that of the header is a device or an affinity, or is missing.
        if not words or not _GPU.match(words[0]):
            continue
        if len(words) == 1 or _DEVICE.match(words[1]) or words[1] == "CPU":
            return line
    first = next((line.strip() for line in lines if line.strip()), "(nothing)")
    raise ParseError(f"no matrix of GPUs in its answer, which begins: {first[:120]}")

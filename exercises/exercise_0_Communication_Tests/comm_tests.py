"""Exercise 0: test the links of every node, measure collectives over them, and say what is wrong.

comm_tests.py topology    --run-dir DIR --node K      on each node, through srun
comm_tests.py collectives --run-dir DIR               one process per GPU, through torchrun
comm_tests.py verdict     --run-dir DIR               once, afterwards: over all nodes

comm_tests.py health      --run-dir DIR               a check instead of the collectives, through torchrun
comm_tests.py answer      --run-dir DIR               once, afterwards: its answer
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from textwrap import fill
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # `harness` is found from anywhere

from commtests import EarlierVersionError, read_json, write_json
from commtests.answer import health_answer
from commtests.tools import node_text, run_tests
from commtests.verdict import judge_node, judge_nodes, verdict_line

TORCHRUN_SETS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
WRONG_REQUEST = 2
MEASUREMENTS = {"collectives": "benchmark", "health": "rounds"}


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 1 the work failed, 2 the request was wrong."""
    options = _parser().parse_args(argv)
    if options.command in AFTERWARDS:
        try:
            return AFTERWARDS[options.command](options)
        except EarlierVersionError as error:
            return _refuse(f"--run-dir: {error}")
    if options.command in MEASUREMENTS and (missing := [n for n in TORCHRUN_SETS if n not in os.environ]):
        return _refuse(f"{options.command} must be started by torchrun, one process per GPU ({missing[0]} is not set)")
    results = options.run_dir / "comm"
    try:
        results.mkdir(parents=True, exist_ok=True)  # now: the tests take minutes
    except OSError as error:
        return _refuse(f"--run-dir: {results} cannot be made ({error.strerror})")
    return _topology(options) if options.command == "topology" else _measurement(options)


def _topology(options: argparse.Namespace) -> int:
    record = run_tests(options.node)
    findings = judge_node(record, options.expected_rate_gbps)
    record["findings"] = [vars(finding) for finding in findings]
    write_json(options.run_dir / "comm" / f"node{options.node}.json", record)
    text = "" if options.quiet else node_text(record, legend=options.node == 0)
    text += "".join(finding.line() + "\n" for finding in findings)
    # One write: the nodes share one terminal, and their lines must not mix.
    sys.stdout.write(text)
    sys.stdout.flush()
    return 0


def _verdict(options: argparse.Namespace) -> int:
    results, records = options.run_dir / "comm", _node_records(options)
    if not records:
        return _refuse(f"--run-dir: {results} holds no node*.json; run `topology` first")
    collectives = results / "collectives.json"
    measured = read_json(collectives) if collectives.is_file() else None
    findings = judge_nodes(records, options.nodes, options.expected_rate_gbps, measured)
    line = verdict_line(findings, records, measured)
    print("\n### Verdict over all nodes", *(finding.line() for finding in findings), fill(line, 78), sep="\n")
    write_json(results / "verdict.json", {"verdict": line, "findings": [vars(finding) for finding in findings]})
    return 0


def _answer(options: argparse.Namespace) -> int:
    """Print the answer of the health check, and keep it as the verdict; 1 if it failed."""
    file = options.run_dir / "comm" / "health.json"
    if not file.is_file():
        return _refuse(f"--run-dir: {file} is missing; run `health` first")
    data = read_json(file)
    records = _node_records(options)
    links = judge_nodes(records, options.nodes if records else None, options.expected_rate_gbps)
    answer = health_answer(data, [finding for finding in links if finding.level == "problem"])
    print("", *answer.lines, "", fill(answer.verdict, 78), sep="\n")
    write_json(options.run_dir / "comm" / "verdict.json", {**vars(answer), "findings": []})
    return 1 if answer.status == "fail" else 0


def _node_records(options: argparse.Namespace) -> list[dict[str, Any]]:
    files = (options.run_dir / "comm").glob("node*.json")
    in_order = sorted(files, key=lambda file: int(file.stem.removeprefix("node")))
    return [read_json(file) for file in in_order]


def _measurement(options: argparse.Namespace) -> int:
    module = import_module(f"commtests.{MEASUREMENTS[options.command]}")
    try:
        return int(module.run(options))
    except RuntimeError as error:
        sys.stderr.write(f"{options.command} failed on rank {os.environ['RANK']}: {error}\n")
        return 1


AFTERWARDS = {"verdict": _verdict, "answer": _answer}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="comm_tests.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    topology = commands.add_parser("topology", help="P2P, NVLink, topology and InfiniBand of this node")
    topology.add_argument("--node", type=int, required=True, help="number of this node, from 0")
    topology.add_argument("--quiet", action="store_true", help="print only problems")
    verdict = commands.add_parser("verdict", help="judge all nodes' results together")
    afterwards = commands.add_parser("answer", help="the answer of the health check")
    for each in (verdict, afterwards):
        each.add_argument("--nodes", type=int, help="the number of nodes that must have left a result")
    for each in (topology, verdict, afterwards):
        rate_help = "an InfiniBand port slower than this is a problem (Gb/s)"
        each.add_argument("--expected-rate-gbps", type=float, help=rate_help)
    collectives = commands.add_parser("collectives", help="measure collectives; start it with torchrun")
    health = commands.add_parser("health", help="find the slow rank, node or link; start it with torchrun")
    health.add_argument("--slow-rank", type=int, help="this rank does everything at a quarter of its speed")
    link_help = "nominal rate of one GPU's link, one direction, in Gb/s"
    for each in (collectives, health):
        each.add_argument("--device", choices=("auto", "cpu"), default="auto")
        each.add_argument("--link-gbps-intra", type=float, help=link_help)
        each.add_argument("--link-gbps-inter", type=float, help=link_help)
    largest_help = "bytes; default: 1 GiB on GPUs, 16 MiB on CPUs, less if memory is short"
    collectives.add_argument("--max-bytes", type=int, help=largest_help)
    for each in (topology, verdict, afterwards, collectives, health):
        each.add_argument("--run-dir", type=Path, required=True, help="the run's folder; results go to comm/ in it")
    return parser


def _refuse(sentence: str) -> int:
    sys.stderr.write(sentence + "\n")
    return WRONG_REQUEST


if __name__ == "__main__":
    gc.disable()  # looking for garbage takes time in what is measured, and a third of the start
    code = main()
    gc.freeze()  # Python looks once more when it ends
    sys.exit(code)

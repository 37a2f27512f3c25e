"""Exercise 0's answer for a terminal: the verdict over all nodes, and what each collective's link gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.report.numbers import percent


def is_comm_run(path: Path) -> bool:
    """True for the directory of a run of exercise 0, which has measurements and no traces."""
    return (path / "comm").is_dir() and (path / "run.json").is_file()


def render_comm(run_dir: Path) -> str:
    """The essence of a run of exercise 0; what is missing is said."""
    return "\n".join([*_verdict(_read(run_dir / "comm" / "verdict.json")), "", *_collectives(run_dir)]) + "\n"


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _verdict(said: Any) -> list[str]:
    if said is None:
        return ["No verdict: the run ended before all nodes were heard (slurm.sh logs RUN)"]
    return [said["verdict"], *(f"  {f['level']}: {f['message']}" for f in said["findings"])]


def _collectives(run_dir: Path) -> list[str]:
    measured = _read(run_dir / "comm" / "collectives.json")
    if not measured or not measured.get("results"):
        return ["No collective was measured"]
    columns = (
        f"{'collective':<16}{'scope':<8}{'ranks':>5}",
        f"{'largest':>10}",
        f"{'bus GB/s':>9}",
        f"{'of link':>8}",
    )
    head = "  ".join([*columns, f"{'α':>10}", f"{'1/β GB/s':>9}"])
    rows = [_row(result) for result in measured["results"]]
    where = f"{measured['world_size']} ranks, {measured['backend']}, {measured['device_name']}"
    plot = f"plot: {run_dir / 'comm' / 'collectives.png'}"
    return [f"Collectives: {where}", *(f"  {line}" for line in (head, *rows, plot))]


def _row(result: dict[str, Any]) -> str:
    name = f"{result['collective']:<16}{result['scope']:<8}{result['ranks']:>5}  "
    if not result.get("points"):
        return name + (result.get("reason") or "not measured")
    last, fit = result["points"][-1], result.get("fit")
    share = percent(last["share_of_link"])
    wrong = "" if all(p["correct"] for p in result["points"]) else "  WRONG RESULTS"
    alpha = f"{fit['alpha_ns'] / 1000:.1f} µs" if fit else "–"
    beta = f"{1 / fit['beta_ns_per_byte']:.3g}" if fit and fit["beta_ns_per_byte"] else "–"
    size = f"{last['message_bytes'] / 2**20:.4g} MiB"
    return f"{name}{size:>10}  {last['busbw_gbytes_per_s']:>9.3g}  {share:>8}  {alpha:>10}  {beta:>9}{wrong}"

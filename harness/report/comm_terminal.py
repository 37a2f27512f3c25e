"""Exercise 0's answer for a terminal: the verdict over all nodes, and what each collective's link gives."""

from __future__ import annotations

from pathlib import Path

from harness.errors import WorkError
from harness.report.comm_results import Measured, Result, read_measured, read_verdict
from harness.report.numbers import percent
from harness.traces.words import printable


def is_comm_run(path: Path) -> bool:
    """True for the directory of a run of exercise 0, which has measurements and no traces."""
    return (path / "comm").is_dir() and (path / "run.json").is_file()


def render_comm(run_dir: Path) -> str:
    """The essence of a run of exercise 0; what is missing or damaged is said."""
    return "\n".join(map(printable, [*_verdict(run_dir), "", *_collectives(run_dir)])) + "\n"


def _verdict(run_dir: Path) -> list[str]:
    try:
        said = read_verdict(run_dir)
    except WorkError as error:
        return [f"No verdict: {error}"]
    if said is None:
        return ["No verdict: the run ended before all nodes were heard (slurm.sh logs RUN)"]
    return [said.verdict, *(f"  {f.level}: {f.message}" for f in said.findings)]


def _collectives(run_dir: Path) -> list[str]:
    try:
        measured = read_measured(run_dir)
    except WorkError as error:
        return [f"No collective can be shown: {error}"]
    if measured is None or not measured.results:
        why = f": {measured.reason}" if measured is not None and measured.reason else ""
        return [f"No collective was measured{why}"]
    columns = (
        f"{'collective':<16}{'scope':<8}{'ranks':>5}",
        f"{'largest':>10}",
        f"{'bus GB/s':>9}",
        f"{'of link':>8}",
    )
    head = "  ".join([*columns, f"{'α':>10}", f"{'1/β GB/s':>9}"])
    rows = map(_row, measured.results)
    plot = f"plot: {run_dir / 'comm' / 'collectives.png'}"
    return [f"Collectives: {_where(measured)}", *(f"  {line}" for line in (head, *rows, plot))]


def _where(measured: Measured) -> str:
    ranks = f"{measured.world_size} ranks" if measured.world_size else None
    return ", ".join(filter(None, (ranks, measured.backend, measured.device_name)))


def _row(result: Result) -> str:
    name = f"{result.collective:<16}{result.scope:<8}{result.ranks:>5}  "
    if not result.points:
        return name + (result.reason or "not measured")
    last, fit = result.points[-1], result.fit
    share = percent(last.share_of_link)
    wrong = "" if all(p.correct for p in result.points) else "  WRONG RESULTS"
    alpha = f"{fit.alpha_ns / 1000:.1f} µs" if fit else "–"
    beta = f"{1 / fit.beta_ns_per_byte:.3g}" if fit and fit.beta_ns_per_byte > 0 else "–"
    size = f"{last.message_bytes / 2**20:.4g} MiB"
    return f"{name}{size:>10}  {last.busbw_gbytes_per_s:>9.3g}  {share:>8}  {alpha:>10}  {beta:>9}{wrong}"

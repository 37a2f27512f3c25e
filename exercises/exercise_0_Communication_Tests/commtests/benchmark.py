"""The benchmark of collectives: measured, and shown as a table, as JSON and as a log-log picture."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from harness.common.model.alpha_beta import MIN_SIZES, AlphaBeta, bus_factor

from . import COLLECTIVES, write_json
from .measure import CollectiveResult, LinkRates, Settings, bus_bound, make_scopes, measure
from .probes import about, processes

BITS_PER_BYTE = 8
FACTOR = 4  # from each size to the next
# Marker and colour of each collective. People with any colour vision can distinguish Okabe and Ito's colours.
STYLES = {
    "all_reduce": ("o", "#0072B2"),
    "all_gather": ("s", "#E69F00"),
    "reduce_scatter": ("^", "#009E73"),
    "broadcast": ("D", "#CC79A7"),
    "all_to_all": ("v", "#D55E00"),
    "send_recv": ("P", "#56B4E9"),
}
BUDGET_S = {"cpu": 120.0, "cuda": 300.0}
# The message, its output, its source, the expected output, and the memory of the comparison.
COPIES_IN_MEMORY = 6
GLOO_NOTE = (
    "gloo has no reduce-scatter of its own: torch runs it as an all-reduce and keeps one part, "
    "so its bus bandwidth here is about half of the all-reduce's."
)


def bytes_text(count: float) -> str:
    """1024 → "1 KiB"."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"


def table(result: CollectiveResult, links: LinkRates) -> str:
    """One collective in one scope, in nccl-tests' columns plus the share of what the nominal links allow."""
    bound = bus_bound(result.collective, result.scope, result.ranks, links)
    groups = "" if result.groups == 1 else f", {result.groups} groups at once, the slowest is shown"
    lines = [f"\n{result.collective} · {result.scope} · {result.ranks} ranks per group{groups}"]
    if result.points:
        lines.append(
            f"{'size':>10} {'time µs':>12} {'best µs':>12} {'algbw GB/s':>11} {'busbw GB/s':>11} "
            f"{'of link':>8} {'times':>6}  check"
        )
    for point in result.points:
        share = _share(point.busbw_gbytes_per_s, bound)
        lines.append(
            f"{bytes_text(point.message_bytes):>10} {point.time_ns / 1e3:12.1f} {point.min_ns / 1e3:12.1f} "
            f"{point.algbw_gbytes_per_s:11.3f} {point.busbw_gbytes_per_s:11.3f} "
            f"{'–' if share is None else f'{share:.0%}':>8} {point.iterations:6d}  "
            f"{'ok' if point.correct else 'WRONG'}"
        )
    if result.points:
        lines.append("  " + fit_text(result))
    if result.reason is not None:
        lines.append("  " + result.reason)
    return "\n".join(lines)


def fit_text(result: CollectiveResult) -> str:
    """α, β and the errors of the fit; or why they are missing."""
    fit = result.fit
    if fit is None:
        sizes = len({point.message_bytes for point in result.points})
        were = "was" if sizes == 1 else "were"
        return f"no α and β: they need {MIN_SIZES} message sizes, and here {sizes} {were} measured"
    if why := fit.objection():
        return f"no α and β: {why}"
    algbw = 1 / fit.beta_ns_per_byte
    busbw = algbw * bus_factor(result.collective, result.ranks)
    return (
        f"α = {fit.alpha_ns / 1e3:.3g} µs, 1/β = {algbw:.3g} GB/s algbw = {busbw:.3g} GB/s busbw; "
        f"R² (log) {fit.r2_log:.3f}, "
        f"error: median {fit.median_relative_error:.0%}, largest {fit.max_relative_error:.0%}"
    )


def document(about: Mapping[str, Any], results: Sequence[CollectiveResult], links: LinkRates) -> dict[str, Any]:
    """The content of collectives.json: `about`, then the results. The name of each number has its unit."""
    return {
        **about,
        "link_gbps": {"intra": links.intra_gbps, "inter": links.inter_gbps},
        "results": [_result(result, links) for result in results],
    }


def _result(result: CollectiveResult, links: LinkRates) -> dict[str, Any]:
    bound = bus_bound(result.collective, result.scope, result.ranks, links)
    points = [{**vars(point), "share_of_link": _share(point.busbw_gbytes_per_s, bound)} for point in result.points]
    fit = None if result.fit is None else vars(result.fit)
    return {**vars(result), "bound_gbps": bound, "points": points, "fit": fit}


def _share(busbw_gbytes_per_s: float, bound_gbps: float | None) -> float | None:
    return None if not bound_gbps else busbw_gbytes_per_s * BITS_PER_BYTE / bound_gbps


def plot(data: Mapping[str, Any], path: Path) -> str | None:
    """Time and bus bandwidth against size, one column per scope. Returns why there is no picture, else None."""
    try:
        import matplotlib
    except ImportError:
        return "no picture: matplotlib is not installed"
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    scopes = list(dict.fromkeys(result["scope"] for result in data["results"] if result["points"]))
    if not scopes:
        return "no picture: nothing was measured"
    figsize = (6.2 * len(scopes) + 1, 8.5)
    figure, axes = plt.subplots(2, len(scopes), figsize=figsize, squeeze=False, sharex="col", layout="constrained")
    for axis in axes.flat:
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.grid(True, which="major", alpha=0.3)
    for column, scope in enumerate(scopes):
        results = [result for result in data["results"] if result["scope"] == scope and result["points"]]
        _draw_times(axes[0][column], scope, results)
        _draw_bandwidths(axes[1][column], results)
    axes[0][0].set_ylabel("time (µs)")
    axes[1][0].set_ylabel("bus bandwidth (GB/s)")
    figure.suptitle(f"Collectives on {data['backend']}, {data['device_name']}: measured (marks), α + β·bytes (lines)")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return None


def _draw_times(axis: Any, scope: str, results: Sequence[Mapping[str, Any]]) -> None:
    for result in results:
        sizes = [point["message_bytes"] for point in result["points"]]
        times_us = [point["time_ns"] / 1e3 for point in result["points"]]
        marker, colour = STYLES[result["collective"]]
        axis.plot(sizes, times_us, marker, color=colour, label=result["collective"].replace("_", "-"))
        fit = AlphaBeta(**result["fit"]) if result["fit"] else None
        if fit and not fit.objection():
            line = np.geomspace(sizes[0], sizes[-1], 100)
            axis.plot(line, [fit.time_ns(size) / 1e3 for size in line], "-", color=colour, lw=1.2)
    axis.set_title(f"{scope}: {results[0]['ranks']} ranks per group")
    axis.legend(fontsize="small")


def _draw_bandwidths(axis: Any, results: Sequence[Mapping[str, Any]]) -> None:
    for result in results:
        sizes = [point["message_bytes"] for point in result["points"]]
        bandwidths = [point["busbw_gbytes_per_s"] for point in result["points"]]
        marker, colour = STYLES[result["collective"]]
        axis.plot(sizes, bandwidths, marker + "-", color=colour, lw=1.2, ms=5)
    for gbps in sorted({result["bound_gbps"] for result in results if result["bound_gbps"]}):
        rate = gbps / BITS_PER_BYTE
        axis.axhline(rate, color="black", ls="--", lw=1)
        axis.text(0.02, rate, f"links allow {rate:.4g} GB/s", transform=axis.get_yaxis_transform(), va="bottom")
    axis.set_xlabel("message size")
    axis.xaxis.set_major_formatter(lambda value, _position: bytes_text(value))
    axis.tick_params(axis="x", rotation=30)


KIB, MIB, GIB = 1024, 1024**2, 1024**3
LARGEST_ON_CPU = 16 * MIB
LARGEST_ON_GPU = GIB


def run(options: Namespace) -> int:
    """Returns 0 when every result is right, or with a single process; 1 when a collective gave wrong numbers."""
    world_size = int(os.environ["WORLD_SIZE"])
    if world_size == 1:
        reason = "a collective needs two processes or more, and this run has one (-g 2 starts two)"
        print(f"\ncollectives: not available here: {reason}", flush=True)
        write_json(_json_file(options.run_dir), {"reason": reason, "results": []})
        return 0
    with processes(options) as device:
        return _benchmark(options, device)


def _benchmark(options: Namespace, device: torch.device) -> int:
    scopes = make_scopes(int(os.environ.get("GROUP_RANK", "0")), int(os.environ["LOCAL_RANK"]))
    settings = Settings(
        sizes=sizes(_largest(options.max_bytes, device)), device=device, budget_ns=int(BUDGET_S[device.type] * 1e9)
    )
    links = LinkRates(options.link_gbps_intra, options.link_gbps_inter, int(os.environ["LOCAL_WORLD_SIZE"]))
    notes = [GLOO_NOTE] if dist.get_backend() == "gloo" else []
    facts = {**about(device), "dtype": "float32", "largest_bytes": settings.sizes[-1], "notes": notes}
    first = dist.get_rank() == 0
    if first:
        _say_heading(facts)
    results: list[CollectiveResult] = []
    for result in measure(COLLECTIVES, scopes, settings):
        results.append(result)
        if first:
            print(table(result, links), flush=True)
            write_json(_json_file(options.run_dir), document(facts, results, links))
    if first:
        picture = _json_file(options.run_dir).with_suffix(".png")
        reason = plot(document(facts, results, links), picture)
        print(f"\nwritten: {_json_file(options.run_dir)}")
        print(reason or f"written: {picture}", flush=True)
    return 0 if all(point.correct for result in results for point in result.points) else 1


def sizes(largest: int) -> tuple[int, ...]:
    """1 KiB, 4 KiB, 16 KiB … up to `largest`."""
    found = [KIB]
    while found[-1] * FACTOR <= largest:
        found.append(found[-1] * FACTOR)
    return tuple(found)


def _largest(requested: int | None, device: torch.device) -> int:
    """The largest message: the requested size or the default, or less if a process has less memory."""
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    else:
        free = _available_memory() // int(os.environ["LOCAL_WORLD_SIZE"])
    wanted = requested or (LARGEST_ON_GPU if device.type == "cuda" else LARGEST_ON_CPU)
    fits: list[int] = [0] * dist.get_world_size()
    dist.all_gather_object(fits, min(wanted, free // COPIES_IN_MEMORY))
    return min(fits)


def _available_memory() -> int:
    """Bytes of memory that this machine has free, or 1 GiB where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return GIB
    return next((int(line.split()[1]) * KIB for line in lines if line.startswith("MemAvailable:")), GIB)


def _say_heading(facts: dict[str, Any]) -> None:
    print(
        f"\n### Collectives: {facts['world_size']} ranks on {len(facts['hosts'])} host(s), "
        f"{facts['backend']}, {facts['device_name']}, float32, up to {bytes_text(facts['largest_bytes'])}\n"
        "    time: the slowest rank's, median over the repetitions; algbw = size / time; busbw: what each\n"
        "    rank's link must carry for it (nccl-tests' definition), to be compared with the link's speed",
        *(f"    note: {note}" for note in facts["notes"]),
        sep="\n",
        flush=True,
    )


def _json_file(run_dir: Path) -> Path:
    return run_dir / "comm" / "collectives.json"

"""The collective benchmark of one job: set up the processes, measure, and print and write each result."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from . import write_json
from .measure import CollectiveResult, Settings, make_scopes, measure
from .processes import about, processes
from .show import bytes_text, document, plot, table
from .theory import LinkRates

KIB, MIB, GIB = 1024, 1024**2, 1024**3
LARGEST_ON_CPU = 16 * MIB
LARGEST_ON_GPU = GIB
BUDGET_S = {"cpu": 120.0, "cuda": 300.0}
# The message, its output, its source, the expected output, and the memory of the comparison.
COPIES_IN_MEMORY = 6
GLOO_NOTE = (
    "gloo has no reduce-scatter of its own: torch runs it as an all-reduce and keeps one part, "
    "so its bus bandwidth here is about half of the all-reduce's."
)


def run(options: Namespace) -> int:
    """Returns 0 when every result is right, or with a single process; 1 when a collective gave wrong numbers."""
    world_size = int(os.environ["WORLD_SIZE"])
    if world_size == 1:
        reason = "a collective needs two processes or more, and this run has one (-g 2 starts two)"
        print(f"\ncollectives: not available here: {reason}", flush=True)
        write_json(_json_file(options.run_dir), {"schema": 1, "reason": reason, "results": []})
        return 0
    with processes(options) as device:
        return _benchmark(options, device)


def _benchmark(options: Namespace, device: torch.device) -> int:
    scopes = make_scopes(int(os.environ.get("GROUP_RANK", "0")), int(os.environ["LOCAL_RANK"]))
    scopes = [scope for scope in scopes if scope.name in options.scopes]
    settings = Settings(
        sizes=sizes(options.min_bytes, _largest(options.max_bytes, device), options.factor),
        device=device,
        iterations=options.iterations,
        warmup=options.warmup,
        budget_ns=int((options.time_budget_s or BUDGET_S[device.type]) * 1e9),
    )
    links = LinkRates(options.link_gbps_intra, options.link_gbps_inter, int(os.environ["LOCAL_WORLD_SIZE"]))
    facts = _about(device, settings)
    first = dist.get_rank() == 0
    if first:
        _say_heading(facts)
    results: list[CollectiveResult] = []
    for result in measure(options.collectives, scopes, settings):
        results.append(result)
        if first:
            print(table(result, links), flush=True)
            write_json(_json_file(options.run_dir), document(facts, results, links))
    if first:
        _finish(options.run_dir, document(facts, results, links))
    return 0 if all(point.correct for result in results for point in result.points) else 1


def sizes(smallest: int, largest: int, factor: int) -> tuple[int, ...]:
    """smallest, smallest·factor, … up to `largest`."""
    found = [smallest]
    while found[-1] * factor <= largest:
        found.append(found[-1] * factor)
    return tuple(found)


def _largest(asked: int | None, device: torch.device) -> int:
    """The largest message: the requested size or the default, or less if a process has less memory."""
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    else:
        free = _available_memory() // int(os.environ["LOCAL_WORLD_SIZE"])
    wanted = asked or (LARGEST_ON_GPU if device.type == "cuda" else LARGEST_ON_CPU)
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


def _about(device: torch.device, settings: Settings) -> dict[str, Any]:
    return {
        **about(device),
        "dtype": "float32",
        "largest_bytes": settings.sizes[-1],
        "notes": [GLOO_NOTE] if dist.get_backend() == "gloo" else [],
    }


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


def _finish(run_dir: Path, data: dict[str, Any]) -> None:
    picture = _json_file(run_dir).with_suffix(".png")
    reason = plot(data, picture)
    print(f"\nwritten: {_json_file(run_dir)}")
    print(reason or f"written: {picture}", flush=True)


def _json_file(run_dir: Path) -> Path:
    return run_dir / "comm" / "collectives.json"

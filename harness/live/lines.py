"""A watched run without a screen: as one line of text, and as JSON with everything in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from harness.common.printable import printable
from harness.format.format import amount, duration
from harness.live.model import Rank
from harness.live.text import clock, span
from harness.live.view import View


def as_line(view: View) -> str:
    """One line: when, which run, its state, its place in the queue, how far, how fast, and the most urgent finding."""
    progress, last = view.progress, view.last
    parts = [clock(view.now_ns, view.now_ns), view.job_id, view.told.state]
    if view.told.place:
        parts.append(view.told.place)
    if progress.step is not None:
        parts.append(f"step {progress.step:,}" + (f" of {progress.steps:,}" if progress.steps else ""))
    elif last is not None:
        parts.append(f"step {last.step:,}")
    if progress.step_ns is not None:
        parts.append(f"{duration(progress.step_ns)} a step")
    if progress.samples_per_s:
        parts.append(amount(progress.samples_per_s, "samples/s"))
    if progress.remaining_s is not None and not view.told.final:
        parts.append(f"{span(progress.remaining_s)} remain")
    said = [view.first_sentence] if view.first_sentence else []
    return printable("  ".join([*parts, *said]))


def as_json(views: Sequence[View]) -> str:
    """One JSON object on one line: all runs, their ranks, nodes and findings."""
    now_ns = max((view.now_ns for view in views), default=0)
    return json.dumps({"unix_ns": now_ns, "runs": [_run(view) for view in views]}, separators=(",", ":"))


def _run(view: View) -> dict[str, Any]:
    told, live = view.told, view.live
    return {
        "job_id": view.job_id,
        "name": view.run.name,
        "path": str(view.run.path),
        "user": view.user,
        "state": told.state,
        "reason": told.why,
        "partition": told.partition,
        "queue_place": told.queue_place,
        "queue_length": told.queue_length,
        "expected_start_unix_ns": told.starts_ns,
        "started_unix_ns": told.began_ns,
        "deadline_unix_ns": told.deadline_ns,
        "heartbeats": live.there,
        "missing": view.missing,
        "last_step": view.last._asdict() if view.last else None,
        "progress": view.progress._asdict(),
        "findings": [note._asdict() for note in view.notes],
        "nodes": [
            {
                "node": node.name,
                "host": node.host,
                "age_s": round(node.age_s(live.now_ns), 3),
                "ended": node.ended,
            }
            for node in live.nodes.values()
        ],
        "ranks": [_rank(rank) for rank in live.slowest_first()],
    }


def _rank(rank: Rank) -> dict[str, Any]:
    beat = rank.beat
    return {
        "rank": rank.rank,
        "node": rank.node,
        "host": rank.host,
        "pid": rank.pid,
        "step": rank.step,
        "steps": rank.steps,
        "phase": rank.phase,
        "idle_s": rank.idle_s(),
        "quiet_s": rank.quiet_s(),
        "place": rank.place._asdict() if rank.place else None,
        "memory_mib": beat.memory_mib if beat else None,
        "use_percent": beat.use_percent if beat else None,
        "loss": beat.loss if beat else None,
        "own_ns": _ns(rank.recent_own_us),
        "step_ns": _ns(rank.recent_us),
        "data_ns": _ns(rank.recent_data_us),
        "gone": rank.gone._asdict() if rank.gone else None,
    }


def _ns(us: float | None) -> int | None:
    return None if us is None else round(us * 1e3)

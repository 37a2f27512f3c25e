"""A run's own files, changed by slips and attacks: its record, its states, what its ranks and its monitor wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from tests.fuzz.box import Box
from tests.fuzz.fence import Case
from tests.fuzz.mutate import as_json, bytes_changed, changed, cut
from tests.fuzz.sandbox import RECORDED

_FILES = (
    "run.json", "run.json", "run.json", "status.json", "node-status/0.json", "metrics/rank0.jsonl",
    "metrics/rank1.jsonl", "gpus-monitor/n0/meta.json", "gpus-monitor/n0/samples.csv", "summary.json", "plan.json",
)  # fmt: skip
_MEASURED = frozenset({"metrics/rank0.jsonl", "metrics/rank1.jsonl"})


def contents(box: Box) -> dict[str, bytes]:
    """The files of the sandbox's run that are changed, by their names in it."""
    found = {name: box.work / RECORDED / name for name in dict.fromkeys(_FILES)}
    return {name: path.read_bytes() for name, path in found.items() if path.is_file()}


def recorded_run(box_files: Mapping[str, bytes], head: int, parts: Sequence[int]) -> Case:
    """A run of these numbers, and the commands that look at it. box_files: as `contents` gives them."""
    chance = Random(head)
    name = chance.choice([each for each in _FILES if each in box_files])
    content = box_files[name]
    how, lacks = chance.random(), chance.random() < 0.15
    if how < 0.65 and name.endswith(".json"):
        content = as_json(changed(json.loads(content), parts)).encode()
    elif how < 0.65 and name.endswith(".jsonl"):
        lines = changed([json.loads(line) for line in content.splitlines()], parts)
        content = "".join(as_json(line) + "\n" for line in (lines if isinstance(lines, list) else [lines])).encode()
    elif not lacks:
        content = bytes_changed(content, parts)
    if lacks:
        content = cut(content, chance)
    run = str(RECORDED)
    looks = (
        ["status", run],
        ["status", run, "--json"],
        ["ls"],
        ["ls", "--json"],
        ["run", run, "--dry-run"],
        ["cancel", run],
        ["logs", run],
        ["status", "local-1"],
        ["run", f"{run}/run.json", "--dry-run"],
    )
    lines = [*chance.sample(looks, 2)]
    heavy = chance.random()
    if heavy < 0.5 or name not in ("run.json", "status.json", "node-status/0.json"):
        more = (["report", run, "--no-html", "--json"], ["report", run, "--no-html"], ["compare", run, "local-2"])
        lines.append(list(chance.choice(more)))
    return Case(lines, {str(Path(RECORDED) / name): content}, cut=lacks and name in _MEASURED)

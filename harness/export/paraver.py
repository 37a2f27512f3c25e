"""Traces to a Paraver trace: .prv (records), .pcf (meaning of the numbers), .row (names of the rows).

Types, labels and object model are nsys2prv's (see prv_types), for the Trace of any reader. One application; one task
per process; one thread per host thread and per stream. In a trace without a GPU the innermost operator of each instant
takes the place of a kernel, as a state has no depth.
"""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path

from harness.common.errors import WorkError
from harness.common.system.bounded_read import why_unread
from harness.common.system.files import write_whole
from harness.export.objects import ObjectModel, RowKind, TimelineRow, build_object_model
from harness.export.prv_blocks import blocks_of, lines
from harness.export.prv_labels import Labels, clean, event_types, pcf_text
from harness.traces.trace import Trace


@dataclass(frozen=True)
class ParaverFiles:
    """The three files and how much is in them."""

    prv: Path
    tasks: int
    threads: int
    records: int
    nodes: list[str]
    end_ns: int
    notes: list[str]


def write_paraver(traces: Sequence[Trace], out: Path, hosts: Mapping[int, str] | None = None) -> ParaverFiles:
    """Write `out`.prv, .pcf and .row; each appears whole or not at all, the .prv last. `hosts`: node name by rank, for
    traces that do not name their node. Raises WorkError: there is nothing to write, or the folder cannot be written."""
    model = build_object_model(traces, hosts)
    labels = Labels.of(model.tasks)
    blocks = [
        block
        for index, task in enumerate(model.tasks)
        for block in blocks_of(task, index + 1, _cpu_of_rows(model, index), labels, model.end_ns)
    ]
    first_line = header(model).encode() + b"\n"
    try:
        _write(out.with_name(out.name + ".row"), [row_text(model).encode()])
        _write(out.with_name(out.name + ".pcf"), [pcf_text(event_types(labels)).encode()])
        prv = _write(out.with_name(out.name + ".prv"), chain([first_line], lines(blocks)))
    except OSError as error:
        raise WorkError(f"{out}.prv cannot be written: {why_unread(error)}; --out PREFIX writes elsewhere") from error
    return ParaverFiles(
        prv=prv,
        tasks=len(model.tasks),
        threads=sum(len(task.rows) for task in model.tasks),
        records=sum(len(block) for block in blocks),
        nodes=model.nodes,
        end_ns=model.end_ns,
        notes=model.notes,
    )


def header(model: ObjectModel) -> str:
    """`#Paraver (date):end_ns:nodes(CPUs of each):1:tasks(threads:node,…)`. A "CPU" is a device; see `_cpus`."""
    cpus = _cpus(model)
    per_node = ",".join(str(sum(node == each for node, _, _ in cpus)) for each in model.nodes)
    tasks = ",".join(f"{len(task.rows)}:{model.nodes.index(task.node) + 1}" for task in model.tasks)
    return (
        f"#Paraver ({datetime.now():%d/%m/%Y at %H:%M}):{model.end_ns}_ns:{len(model.nodes)}({per_node}):"
        f"1:{len(model.tasks)}({tasks})"
    )


def row_text(model: ObjectModel) -> str:
    """The .row file: names of CPUs (devices), nodes, tasks and threads."""
    cpus = [f"{name} @ {node}" for node, name, _ in _cpus(model)]
    tasks = [f"{task.label} @ {task.node}" for task in model.tasks]
    threads = [
        _row_name(row, task_number, row_number)
        for task_number, task in enumerate(model.tasks, 1)
        for row_number, row in enumerate(task.rows, 1)
    ]
    levels = {"CPU": cpus, "NODE": model.nodes, "TASK": tasks, "THREAD": threads}
    return "\n".join(
        f"LEVEL {level} SIZE {len(names)}\n" + "".join(clean(name) + "\n" for name in names)
        for level, names in levels.items()
    )


def _row_name(row: TimelineRow, task_number: int, thread_number: int) -> str:
    """As nsys2prv names it where it has it; a lane beyond the first is marked."""
    lane = f" lane {row.lane + 1}" if row.lane else ""
    if row.kind is RowKind.STREAM:
        return f"CUDA-D{row.a}.S{row.b}{lane}"
    if row.kind is RowKind.METRICS:
        return f"Metrics GPU{row.a}"
    if row.kind is RowKind.START_END:
        return f"NVTX startend 1.{task_number}{lane}"
    return f"THREAD 1.{task_number}.{thread_number}{lane}"


def _cpus(model: ObjectModel) -> list[tuple[str, str, tuple[int, int]]]:
    """(node, name, (task, device)) of each device, node by node as in Paraver; a task without a device gets a CPU.

    Two tasks on one device share its entry; it carries the first task's key.
    """
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for index, task in enumerate(model.tasks):
        if not task.devices:
            found[task.node, f"CPU of {task.label}"] = (index, -1)
        for device in task.devices:
            found.setdefault((task.node, f"GPU{device}"), (index, device))
    in_order = sorted(found.items(), key=lambda item: model.nodes.index(item[0][0]))
    return [(node, name, key) for (node, name), key in in_order]


def _cpu_of_rows(model: ObjectModel, index: int) -> list[int]:
    """The device number, from 1, of each row of a task; a host thread has the task's first device."""
    task = model.tasks[index]
    number = {(node, name): position + 1 for position, (node, name, _) in enumerate(_cpus(model))}
    names = {device: f"GPU{device}" for device in task.devices}
    first = names[task.devices[0]] if names else f"CPU of {task.label}"
    return [number[task.node, names.get(row.a, first) if row.kind is not RowKind.HOST else first] for row in task.rows]


def compress(prv: Path) -> Path:
    """Put `prv`.gz, which Paraver opens too, in the place of `prv`. Raises WorkError: the folder cannot be written."""
    packed = prv.with_name(prv.name + ".gz")

    def write(draft: Path) -> None:
        with prv.open("rb") as source, gzip.open(draft, "wb", compresslevel=6) as target:
            shutil.copyfileobj(source, target, 1 << 20)

    try:
        write_whole(packed, write)
        prv.unlink()
    except OSError as error:
        raise WorkError(f"{packed} cannot be written: {why_unread(error)}; {prv} stays") from error
    return packed


def _write(path: Path, pieces: Iterable[bytes]) -> Path:
    def write(draft: Path) -> None:
        with draft.open("wb") as file:
            file.writelines(pieces)

    write_whole(path, write)
    return path

"""What threads did beside CUDA: samples of functions, waits, the profiler's own work."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.traces.columns import (
    Columns,
    NameTable,
    constant,
    distinct,
    distinct_rows,
    is_sorted,
    joined,
    sorted_spans,
)
from harness.traces.database import Database
from harness.traces.nsys.devices import names_of, process_of, string_ids, thread_of
from harness.traces.trace import I32, I64, SHORTEST_HOST_NS, U8, Calls, HostKind, HostSpans, Ranges
from harness.traces.vocabulary import OFF_CORE, overhead_kind

SAMPLES, CHAINS = "COMPOSITE_EVENTS", "SAMPLING_CALLCHAINS"
_COLLECTOR = "Python's garbage collector"
_INTERPRETER = re.compile(r"(?:lib)?python\d[\d.]*(?:\.so[\d.]*)?|python")
_SYSTEM = re.compile(r"lib(?:c|m|dl|rt|pthread)[-.]\S*|ld-\S*")
# A call passes through them, or the profiler put them there.
_IN_BETWEEN = re.compile(r"\[.*\]|lib(?:stdc\+\+|gcc_s|c10|cupti)[-.]\S*|libToolsInjection\S*|\S*libnvtx\S*")
_COLLECTS = re.compile(
    r"collect|(?:_?PyGC_Collect|gc_collect|collect_generations|collect_with_callback|untrack_tuples|deduce_unreach)\w*"
)
# Calls pass through them, every program needs them all the time, or they began the thread.
_TRIFLE = re.compile(
    r"(?:void )?(?:c10::(?:impl::|Dispatcher|function_ref)|at::(?:_ops|TensorIteratorBase)::|std::|operator )"
    r"|_init\b|_*(?:dynamic_cast|(?:libc_)?(?:malloc|free|calloc|realloc|start_main|start_call_main)|start_thread|clone)"
    r"|_*(?:pthread_(?:once|getspecific|mutex_(?:un)?lock)|clock_gettime|gettimeofday|tls_get_addr|errno)"
)
_PERIODS = 2  # of sampling; for longer than that without a sample, a thread did not run
_COLLECTION_NAMES = re.compile(r"(?:python )?(?:gc|garbage collect(?:ion|or)?)(?:[.: ].*)?", re.IGNORECASE)
_THREAD_BITS = 24
_OVERHEADS = ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD")
# Tables of calls: the column of their names, and what they are.
_CALLED = {
    "OSRT_API": ("nameId", HostKind.OS_CALL),
    **dict.fromkeys(("CUDNN_EVENTS", "CUBLAS_EVENTS"), ("nameId", HostKind.OPERATOR)),
    **dict.fromkeys(
        ("MPI_P2P_EVENTS", "MPI_COLLECTIVES_EVENTS", "MPI_START_WAIT_EVENTS", "MPI_OTHER_EVENTS"),
        ("textId", HostKind.OPERATOR),
    ),
}


class Says(IntEnum):
    """How much a function says of what a thread did; more is larger."""

    NOTHING = 0
    PYTHON_RUNS = 1  # the interpreter, and nothing that it calls
    SYSTEM = 2  # the C library: it reads, waits or copies
    LIBRARY = 3  # a function without a name in a library that has one
    FUNCTION = 4
    PYTHON = 5  # a function of the Python program
    COLLECTS = 6


def _sample_names(database: Database, names: NameTable, samples: I64) -> tuple[I32, U8]:
    """Name and kind of the function that says most in the chain of each of `samples`, which are ascending ids: the
    innermost one; -1: its chain says nothing."""
    found = _functions(database, samples)
    pairs = found.functions.tolist()
    texts = string_ids(database, {part for pair in pairs for part in divmod(pair, found.modules)})
    said = [_said(*(texts.get(part, "") for part in divmod(pair, found.modules))) for pair in pairs]
    says = np.array([level for level, _ in said], np.uint8)[found.function] if said else np.empty(0, np.uint8)
    best = np.full(len(samples), -1, np.int64)
    for level in list(Says)[1:]:
        rows = np.flatnonzero(says == level)
        best[found.sample[rows]] = found.function[rows]  # of several, the last one is kept
    index = np.append(names.indices(name for _, name in said), np.int32(-1))
    kinds = np.array([*(_KINDS.get(level, HostKind.SAMPLE) for level, _ in said), 0], np.uint8)
    return index[best], kinds[best]


class _Functions(NamedTuple):
    """The rows of some samples' chains, each chain from its outermost to its innermost function."""

    sample: I64  # of each row: its place among the samples
    function: NDArray[np.integer]  # of each row: its place in `functions`
    functions: I64  # the distinct ones: symbol * modules + module
    modules: int


def _functions(database: Database, samples: I64) -> _Functions:
    chains = database.integers(CHAINS, "id", "symbol", "module", "stackDepth")
    sample, depth = np.searchsorted(samples, chains["id"]), chains["stackDepth"]
    sample[sample == len(samples)] = -1
    mine = np.flatnonzero(np.append(samples, -1)[sample] == chains["id"])
    mine = mine[::-1] if is_sorted(depth + (chains["id"] << 16)) else mine[np.argsort(-depth[mine], kind="stable")]
    modules = max(int(chains["module"].max(initial=0)), 0) + 1
    functions, function = distinct_rows(chains["symbol"][mine] * modules + chains["module"][mine])
    return _Functions(sample[mine], function, functions, modules)


_KINDS = {Says.PYTHON: HostKind.PYTHON, Says.COLLECTS: HostKind.COLLECTOR}


def _said(symbol: str, path: str) -> tuple[Says, str]:
    """How much a function of the module at `path` says, and its name.

    >>> _said("at::native::copy_impl(at::Tensor&, bool)", "/opt/torch/lib/libtorch_cpu.so")
    (<Says.FUNCTION: 4>, 'at::native::copy_impl (libtorch_cpu.so)')
    >>> _said("__read", "/lib/x86_64-linux-gnu/libc-2.31.so")
    (<Says.SYSTEM: 2>, 'read (libc-2.31.so)')
    >>> _said("0x7f12", "/usr/lib/libhdf5.so.103")
    (<Says.LIBRARY: 3>, 'libhdf5.so.103')
    """
    module = path.rsplit("/", 1)[-1]
    if module.endswith(".py"):
        return Says.PYTHON, f"{path}(0): {symbol}"
    if _INTERPRETER.fullmatch(module):
        collects = _COLLECTS.fullmatch(symbol)
        return (Says.COLLECTS, _COLLECTOR) if collects else (Says.PYTHON_RUNS, f"Python code ({module})")
    is_system, named = _SYSTEM.fullmatch(module), not symbol.startswith("0x")
    if not module or _IN_BETWEEN.fullmatch(module) or (_TRIFLE.match(symbol) if named else is_system):
        return Says.NOTHING, ""
    if named:
        return (Says.SYSTEM if is_system else Says.FUNCTION), f"{_short(symbol)} ({module})"
    return Says.LIBRARY, module


def _short(symbol: str) -> str:
    """A function's name without its arguments."""
    plain = symbol.replace("(anonymous namespace)::", "").lstrip("_")
    return re.split(r"[(<]", plain)[0] or plain


def host_spans(database: Database, names: NameTable, calls: Calls, ranges: Ranges) -> HostSpans:
    """Long spans of the threads that call CUDA or have ranges, and all of the profiler's work in their processes."""
    threads = np.unique([number for part in (calls, ranges) for number in _distinct_threads(part)]).astype(np.int64)
    parts = [_calls(database, names, threads, table) for table in _CALLED] + [_waits(database, names, threads)]
    parts += [_overhead(database, names, table, np.unique(threads >> _THREAD_BITS)) for table in _OVERHEADS]
    parts += [_collections(ranges, names.texts), _samples(database, names, threads)]
    return sorted_spans(HostSpans(**joined(parts)))


def _distinct_threads(spans: Calls | Ranges) -> list[int]:
    """The threads of many rows, without sorting these."""
    found = []
    for process in distinct(spans.process):
        threads = spans.thread[spans.process == process]
        seen = np.zeros(int(threads.max()) + 1, bool)  # a thread's number has 24 bits
        seen[threads[threads >= 0]] = True
        found += [(process << _THREAD_BITS) | thread for thread in np.flatnonzero(seen).tolist()]
    return found


def _thread_ids(process: I64, thread: I64) -> I64:
    """One number for each thread of each process."""
    return (process << _THREAD_BITS) | thread


def _calls(database: Database, names: NameTable, threads: I64, table: str) -> Columns:
    name_column, kind = _CALLED[table]
    raw = _long(database, table, name_column)
    raw = _kept(raw, np.isin(_thread_ids(raw["process"], raw["thread"]), threads))
    name = names_of(database, names, raw.pop("nameId"), "[unnamed call]")
    return {**raw, "name": name, "kind": constant(kind, len(name), np.uint8)}


def _waits(database: Database, names: NameTable, threads: I64) -> Columns:
    """The stretches in which a thread ran on no core, by the kernel's scheduler."""
    raw = database.integers("SCHED_EVENTS", "start", "isSchedIn", "globalTid")
    raw = {"process": process_of(raw["globalTid"]), "thread": thread_of(raw["globalTid"]), **raw}
    raw = _kept(raw, np.isin(_thread_ids(raw["process"], raw["thread"]), threads))
    raw = _kept(raw, np.lexsort((raw["start"], raw["globalTid"])))
    left = (raw["isSchedIn"][:-1] == 0) & (raw["isSchedIn"][1:] != 0) & (np.diff(raw["globalTid"]) == 0)
    out = np.flatnonzero(left & (np.diff(raw["start"]) >= SHORTEST_HOST_NS))
    placed = {name: raw[name][out] for name in ("thread", "process")}
    kind = constant(HostKind.WAIT, len(out), np.uint8)
    name = constant(names[OFF_CORE] if len(out) else -1, len(out), np.int32)
    return {"start_ns": raw["start"][out], "end_ns": raw["start"][out + 1], **placed, "name": name, "kind": kind}


def _overhead(database: Database, names: NameTable, table: str, processes: I64) -> Columns:
    raw = _long(database, table)
    raw = _kept(raw, np.isin(raw["process"], processes))
    name = names_of(database, names, raw.pop("nameId"), "[unnamed overhead]")
    kind = np.array([overhead_kind(names.texts[index]) for index in name.tolist()], np.uint8)
    return {**raw, "name": name, "kind": kind}


def _long(database: Database, table: str, name_column: str = "nameId") -> Columns:
    """The spans of a table that are not short, with `nameId` for a name."""
    raw = database.integers(table, "start", "end", "globalTid", name_column)
    raw = _kept(raw, raw["end"] - raw["start"] >= SHORTEST_HOST_NS)
    return {**_placed(raw["start"], raw["end"], raw["globalTid"]), "nameId": raw[name_column]}


def _placed(start: I64, end: I64, thread_id: I64) -> Columns:
    return {"start_ns": start, "end_ns": end, "thread": thread_of(thread_id), "process": process_of(thread_id)}


def _kept(columns_of_table: Columns, keep: NDArray[np.bool_ | np.intp]) -> Columns:
    return {name: column[keep] for name, column in columns_of_table.items()}


def _collections(ranges: Ranges, texts: list[str]) -> Columns:
    """Collections of Python's collector, which nsys and programs mark with a range or a domain of that name."""
    collects = np.array([bool(_COLLECTION_NAMES.fullmatch(text)) for text in texts] + [False], bool)
    rows = np.flatnonzero(collects[ranges.name] | collects[ranges.domain])
    columns = {name: getattr(ranges, name)[rows] for name in ("start_ns", "end_ns", "name", "thread", "process")}
    return {**columns, "kind": constant(HostKind.COLLECTOR, len(rows), np.uint8)}


def _samples(database: Database, names: NameTable, threads: I64) -> Columns:
    """Each sample up to its thread's next one; neighbours of the same name are one span."""
    raw = database.integers(SAMPLES, "id", "start", "globalTid")
    thread_ids = _thread_ids(process_of(raw["globalTid"]), thread_of(raw["globalTid"]))
    raw = _kept(raw, np.isin(thread_ids, threads))
    by_id = np.argsort(raw["id"], kind="stable")
    name, kind = _sample_names(database, names, raw["id"][by_id])
    raw |= {"name": np.empty_like(name), "kind": np.empty_like(kind)}
    raw["name"][by_id], raw["kind"][by_id] = name, kind
    raw = _kept(raw, np.lexsort((raw["start"], raw["globalTid"])))
    end = _ends(raw["start"], raw["globalTid"])
    follows = np.zeros(len(end), bool)
    follows[1:] = (end[:-1] == raw["start"][1:]) & (np.diff(raw["globalTid"]) == 0) & (np.diff(raw["name"]) == 0)
    first = np.flatnonzero(~follows)
    last = np.append(first[1:], len(end)) - 1 if len(first) else first
    columns = _placed(raw["start"][first], end[last], raw["globalTid"][first])
    columns |= {name: raw[name][first] for name in ("name", "kind")}
    return _kept(columns, columns["name"] >= 0)


def _ends(start: I64, thread: I64) -> I64:
    """When each sample ceases to hold; samples are in order of thread and start."""
    same = np.append(thread[1:] == thread[:-1], False) if len(thread) else np.empty(0, bool)
    gap = np.append(start[1:], 0) - start
    period = int(np.median(gap[same])) if same.any() else 0
    return start + np.minimum(np.where(same, gap, period), _PERIODS * period)

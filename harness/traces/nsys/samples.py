"""Sampled call chains of an nsys export: what each says in one name. Must not know what the spans are used for."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.traces.columns import NameTable, distinct_rows, is_sorted
from harness.traces.database import Database
from harness.traces.nsys.ids import string_ids
from harness.traces.trace import I32, I64, U8, HostKind

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


class Says(IntEnum):
    """How much a function says of what a thread did; more is larger."""

    NOTHING = 0
    PYTHON_RUNS = 1  # the interpreter, and nothing that it calls
    SYSTEM = 2  # the C library: it reads, waits or copies
    LIBRARY = 3  # a function without a name in a library that has one
    FUNCTION = 4
    PYTHON = 5  # a function of the Python program
    COLLECTS = 6


class Named(NamedTuple):
    """Of each of n samples: its name and kind; -1: its chain says nothing."""

    name: I32
    kind: U8


def sample_names(database: Database, names: NameTable, samples: I64) -> Named:
    """The function that says most in the chain of each of `samples`, which are ascending ids: the innermost one."""
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
    return Named(index[best], kinds[best])


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
    mine = (
        mine[::-1]
        if is_sorted(depth + (chains["id"] << 16))
        else mine[np.argsort(-depth[mine], kind="stable")]
    )
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

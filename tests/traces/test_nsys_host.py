"""What the host did, from nsys: calls of the operating system, samples, the scheduler, collections, overhead."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from harness.traces import open_trace, vocabulary
from harness.traces.nsys import host as samples
from harness.traces.trace import SHORTEST_HOST_NS, HostKind, Trace
from tests.synthetic import nsys

LONG = SHORTEST_HOST_NS
PERIOD = 400_000  # of sampling
PYTHON = ("_PyEval_EvalFrameDefault", "/opt/conda/bin/python3.10")
LIBC = "/lib/x86_64-linux-gnu/libc-2.31.so"

Span = tuple[str, HostKind, int, int, int]


def spans(trace: Trace) -> list[Span]:
    host = trace.host
    columns = (host.name, host.kind, host.thread, host.start_ns, host.end_ns - host.start_ns)
    return [
        (trace.names[name], HostKind(kind), thread, start, length)
        for name, kind, thread, start, length in zip(*(c.tolist() for c in columns), strict=True)
    ]


def read(tmp_path: Path, made: nsys.Nsys) -> list[Span]:
    return spans(open_trace(made.saved(tmp_path / "t.sqlite")))


def test_long_calls_of_the_system_are_kept_on_threads_that_launch_or_have_ranges(tmp_path: Path) -> None:
    made = nsys.nsys_step()
    made.range("loader", 0, LONG, tid=11)
    made.host("OSRT_API", "read", 5, LONG)
    made.host("OSRT_API", "poll", 5, LONG - 1)
    made.host("OSRT_API", "pthread_cond_wait", 7, 2 * LONG, tid=11)
    made.host("OSRT_API", "sem_wait", 7, 2 * LONG, tid=12)
    made.host("OSRT_API", "read", 7, 2 * LONG, pid=10)
    assert read(tmp_path, made) == [
        ("read", HostKind.OS_CALL, 9, 5, LONG),
        ("pthread_cond_wait", HostKind.OS_CALL, 11, 7, 2 * LONG),
    ]


def test_the_profilers_work_is_kept_on_all_threads_of_the_process_and_the_drivers_told_from_it(tmp_path: Path) -> None:
    made = nsys.nsys_step()
    made.host("PROFILER_OVERHEAD", "CUPTI: Buffer flush", 5, LONG, tid=33)
    made.host("PROFILER_OVERHEAD", "CUPTI: Buffer flush", 5, LONG, pid=10)
    made.host("CUPTI_ACTIVITY_KIND_OVERHEAD", "Lazy Function Loading", 9, LONG)
    made.host("CUPTI_ACTIVITY_KIND_OVERHEAD", "Command Buffer Full", 10, 2 * LONG)
    assert [(name, kind) for name, kind, *_ in read(tmp_path, made)] == [
        ("Lazy Function Loading", HostKind.OS_CALL),
        ("Command Buffer Full", HostKind.OS_CALL),
        ("CUPTI: Buffer flush", HostKind.PROFILER),
    ]


@pytest.mark.parametrize(
    ("chain", "name", "kind"),
    [
        ([("0x7f1", "/usr/lib/libcuda.so.535"), ("0x7f2", "libcudart.so.12"), ("cudaMemcpyAsync", "libcudart.so.12"),
          ("at::native::copy_impl(at::Tensor&)", "libtorch_cpu.so"), PYTHON],
         "cudaMemcpyAsync (libcudart.so.12)", HostKind.SAMPLE),
        ([("__memmove_avx_unaligned", LIBC), ("inflate_fast", "/lib/libz.so.1"), PYTHON],
         "inflate_fast (libz.so.1)", HostKind.SAMPLE),
        ([("__read", LIBC), ("_io_FileIO_readinto", PYTHON[1]), PYTHON], "read (libc-2.31.so)", HostKind.SAMPLE),
        ([("0x7f3", "/usr/lib/libhdf5.so.103"), PYTHON], "libhdf5.so.103", HostKind.SAMPLE),
        ([("0x7f4", "[vdso]"), ("__clock_gettime", LIBC), PYTHON], "Python code (python3.10)", HostKind.SAMPLE),
        ([("visit_decref", PYTHON[1]), ("gc_collect_main", PYTHON[1]), PYTHON],
         "Python's garbage collector", HostKind.COLLECTOR),
        ([("void c10::function_ref<void (char**)>::callback_fn<at::native>(long)", "libtorch_cpu.so"),
          ("at::native::(anonymous namespace)::copy_same_dtype(at::TensorIteratorBase&)", "libtorch_cpu.so")],
         "at::native::copy_same_dtype (libtorch_cpu.so)", HostKind.SAMPLE),
        ([("__read", LIBC), PYTHON, ("load", "/home/me/data.py"), ("main", "/home/me/train.py")],
         "/home/me/data.py(0): load", HostKind.PYTHON),
    ],
)  # fmt: skip
def test_a_sample_is_named_by_the_innermost_function_that_says_something(
    tmp_path: Path, chain: list[tuple[str, str]], name: str, kind: HostKind
) -> None:
    made = nsys.nsys_step()
    made.sample(1_000, *chain)
    made.sample(1_000 + PERIOD, ("[Broken backtraces]", "[Broken backtraces]"))
    assert [span[:2] for span in read(tmp_path, made)] == [(name, kind)]


def test_a_sample_lasts_until_the_next_one_and_no_longer_than_two_periods(tmp_path: Path) -> None:
    made = nsys.nsys_step()
    for start in (0, PERIOD, 2 * PERIOD, 9 * PERIOD):
        made.sample(start, ("inflate", "libz.so.1"), PYTHON)
    made.sample(10 * PERIOD, ("read", LIBC), PYTHON)
    made.sample(5, ("inflate", "libz.so.1"), tid=12)  # of a thread that launches nothing
    assert read(tmp_path, made) == [
        ("inflate (libz.so.1)", HostKind.SAMPLE, 9, 0, 4 * PERIOD),
        ("inflate (libz.so.1)", HostKind.SAMPLE, 9, 9 * PERIOD, PERIOD),
        ("read (libc-2.31.so)", HostKind.SAMPLE, 9, 10 * PERIOD, PERIOD),
    ]


def test_a_thread_that_ran_on_no_core_waited(tmp_path: Path) -> None:
    made = nsys.nsys_step()
    for start, on_core in [(0, True), (100, False), (100 + LONG, True), (2 * LONG, False), (2 * LONG + 9, True)]:
        made.scheduled(start, on_core)
    made.scheduled(0, False, tid=12)
    made.scheduled(9 * LONG, True, tid=12)
    assert read(tmp_path, made) == [("not on a core", HostKind.WAIT, 9, 100, LONG)]


@pytest.mark.parametrize("name", ["GC", "gc.collect", "Python GC", "garbage collection"])
def test_a_range_or_a_domain_of_the_collector_is_a_collection(tmp_path: Path, name: str) -> None:
    made = nsys.nsys_step()
    made.range(name, 2_000, 3 * LONG)
    made.range(name, 0, None, kind=75, domain=4)
    made.range("generation 2", 9 * LONG, LONG, domain=4)
    made.range("gcn layer", 20 * LONG, LONG)
    assert [(start, kind) for _, kind, _, start, _ in read(tmp_path, made)] == [
        (2_000, HostKind.COLLECTOR),
        (9 * LONG, HostKind.COLLECTOR),
    ]


def test_an_export_without_any_of_it_has_no_spans_of_the_host(tmp_path: Path) -> None:
    tables = ["OSRT_API", "PROFILER_OVERHEAD", "SCHED_EVENTS", "COMPOSITE_EVENTS", "SAMPLING_CALLCHAINS"]
    made = nsys.Nsys(without_tables=tables)
    made.kernel("k", 5, 5, correlation=1)
    made.call("cudaLaunchKernel", 1, 2, correlation=1)
    assert read(tmp_path, made) == []


def test_the_examples_are_true() -> None:
    for module in (samples, vocabulary):
        failed, tried = doctest.testmod(module)
        assert tried > 1
        assert failed == 0

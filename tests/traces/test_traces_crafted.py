"""Files made to break the reader: each is one sentence, or what cannot be true is left out and the report says so."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from isal import isal_zlib

from harness.replay.graph.device import _reach
from harness.traces import errors, open_trace
from harness.traces.kineto import gather
from tests.synthetic import kineto
from tests.synthetic.kineto import Record
from tests.traces.crafted import outcome
from tests.waiting import limit_s

T = 4_458_676_988_068_751  # as gpu_step begins
DEEP = "[" * 100_000 + "]" * 100_000
BYTES_64 = 1 << 64
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL()"
MESSAGE = {"Collective name": "allreduce", "In msg nelems": 4, "Out msg nelems": 4, "dtype": "Float",
           "Group size": 8, "Process Group Name": "0"}  # fmt: skip


def written(path: Path, records: list[Record], text: str = "", **how: Any) -> Path:
    """A file in which `"@@"` stands for `text`."""
    path.write_bytes(kineto.kineto_text(records, **how).replace(b'"@@"', text.encode()))
    return path


def changed(category: str, **fields: Any) -> list[Record]:
    """A step whose first record of a category has other fields; those of its arguments begin with `args_`."""
    records = kineto.gpu_step()
    record = next(record for record in records if record.get("cat") == category)
    for name, value in fields.items():
        (record["args"] if name.startswith("args_") else record)[name.removeprefix("args_")] = value
    return records


@pytest.mark.parametrize("layout", kineto.LAYOUTS)
@pytest.mark.parametrize("inside", ["event", "args"])
def test_an_event_nested_a_hundred_thousand_deep_is_left_out_and_counted(
    tmp_path: Path, layout: str, inside: str
) -> None:
    odd = kineto.kernel("k", T, 5, **({"zz": "@@"} if inside == "args" else {}))
    odd |= {"zz": "@@"} if inside == "event" else {}
    path = written(tmp_path / "t.json", [*kineto.gpu_step(), odd], DEEP, layout=layout)
    assert "1 record was left out: not valid JSON" in outcome(path)
    assert len(open_trace(path).events) == 4


@pytest.mark.parametrize(
    "text", [DEEP, '{"traceEvents": ' + DEEP + "}", '{"traceEvents": ' + "[" * 100_000], ids=["bare", "events", "open"]
)
def test_a_file_of_nothing_but_brackets_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.json").write_text(text)
    assert "nested too deeply" in outcome(tmp_path / "t.json")


NO_TIME = ("1" + "0" * 30, "-" + "1" + "0" * 30, "9223372036854775808", "1e400", "-1e400",
           '"1e999999999"', "9" * 5000)  # fmt: skip


@pytest.mark.parametrize("value", NO_TIME, ids=lambda value: value[:12])
@pytest.mark.parametrize("field", ["ts", "dur"])
def test_an_event_at_no_possible_time_is_left_out_and_said(tmp_path: Path, field: str, value: str) -> None:
    path = written(tmp_path / "t.json", changed("kernel", **{field: "@@"}), value)
    assert "1 record was left out: without a valid duration" in outcome(path)
    assert len(open_trace(path).events) == 3


@pytest.mark.parametrize("category", ["kernel", "cuda_runtime", "user_annotation"])
@pytest.mark.parametrize("field", ["pid", "tid"])
def test_a_record_with_a_number_beyond_64_bits_is_left_out_and_said(tmp_path: Path, category: str, field: str) -> None:
    path = written(tmp_path / "t.json", changed(category, **{field: "@@"}), str(BYTES_64))
    assert "1 record was left out: not readable (the first: Expected `int`" in outcome(path)


@pytest.mark.parametrize(("value", "says"), [
    (str(BYTES_64), "left out: not readable"), ("1e400", "left out: not readable"),
    ("true", "left out: not readable"), ("-5", "whose number no machine has"),
    (str(1 << 32), "whose number no machine has"), (str(1 << 31), "whose number no machine has"),
])  # fmt: skip
def test_work_on_an_impossible_device_is_left_out_and_said(tmp_path: Path, value: str, says: str) -> None:
    path = written(tmp_path / "t.json", changed("kernel", args_device="@@"), value)
    assert says in outcome(path)
    assert set(open_trace(path).events.device.tolist()) == {0}


@pytest.mark.parametrize("field", ["stream", "correlation"])
def test_streams_and_correlations_beyond_64_bits_are_left_out_and_said(tmp_path: Path, field: str) -> None:
    path = written(tmp_path / "t.json", changed("kernel", **{f"args_{field}": "@@"}), str(BYTES_64))
    assert "1 record was left out: not readable" in outcome(path)


def test_a_few_odd_records_among_thousands_are_found_and_too_many_condemn_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = [kineto.kernel("k", T + 10 * i, 5) for i in range(3000)]
    odd = [kineto.kernel("k", T + 10 * i, 5, stream=BYTES_64) for i in range(20)]
    path = kineto.kineto(
        tmp_path / "t.json", [record for i, one in enumerate(odd) for record in (one, *good[150 * i : 150 * (i + 1)])]
    )
    trace = open_trace(path)
    assert len(trace.events) == 3000
    assert trace.notes[0].startswith("20 records were left out: not readable")
    monkeypatch.setattr(gather, "_MOST_UNREADABLE", 10)
    assert "11 of its records cannot be read" in outcome(path)


@pytest.mark.parametrize(("field", "value"), [
    ("In msg nelems", str(BYTES_64)), ("In msg nelems", '"' + "9" * 5000 + '"'), ("In msg nelems", str(1 << 61)),
    ("Group size", str(1 << 40)), ("Group size", str(BYTES_64)), ("Dst Rank", str(1 << 40)),
    ("Dst Rank", '"' + "9" * 30 + '"'),
    ("Process Group Name", "[]"),
], ids=str)  # fmt: skip
def test_a_message_of_impossible_size_group_or_peer_is_not_counted(tmp_path: Path, field: str, value: str) -> None:
    message = kineto.kernel(NCCL, T + 40_000, 10, correlation=11, **(MESSAGE | {field: "@@"}))
    path = written(tmp_path / "t.json", [*kineto.gpu_step(), message], value)
    outcome(path)
    found = open_trace(path).collectives
    assert not len(found) or found.bytes.tolist() in ([16], [-1])
    assert max(found.group_size.tolist(), default=8) == 8 and set(found.peer.tolist()) <= {-1}


@pytest.mark.parametrize("shapes", [
    "5", '"x"', "null", '[["a"]]', "[[null]]", "[[1.5]]", DEEP,
    "[[" + ",".join(["99999999999"] * 99) + "]]", "[[" + "9" * 300 + "]]",
], ids=lambda text: text[:12])  # fmt: skip
def test_shapes_that_are_none_leave_the_size_unknown(tmp_path: Path, shapes: str) -> None:
    types = {"Input type": ["float", "float"], "Input Dims": "@@"}
    records = [
        kineto.operator("c10d::allreduce_", T, 10, **types),
        kineto.said("gloo:all_reduce", T + 1, 5),
        kineto.operator("aten::mm", T + 20, 5),
    ]
    path = written(tmp_path / "t.json", records, shapes, header=kineto.HEADER | {"deviceProperties": []})
    said = outcome(path)
    if "nested" not in said:
        assert open_trace(path).collectives.bytes.tolist() in ([-1], [4])


FAR = 9_000_000_000_000_000_000


@pytest.mark.parametrize("odd", [[1], [-FAR // 4], [FAR // 2], [1, -FAR // 4, FAR // 2]], ids=str)
def test_events_centuries_from_the_others_are_left_out_and_said(tmp_path: Path, odd: list[int]) -> None:
    base = 1_700_000_000_000_000_000
    path = kineto.kineto(tmp_path / "t.json", [*kineto.gpu_step(base), *(kineto.kernel("k", t, 5) for t in odd)])
    assert f"{len(odd)} calls, ranges or events ended before they started or are over 104 days from others" in outcome(
        path
    )
    assert (
        open_trace(path).events.start_ns.tolist()
        == open_trace(kineto.kineto(path, kineto.gpu_step(base))).events.start_ns.tolist()
    )


def test_events_that_together_take_centuries_are_one_sentence(tmp_path: Path) -> None:
    long = [kineto.kernel("k", T, 1 << 52, stream=i) for i in range(1100)]
    assert "more than a century" in outcome(kineto.kineto(tmp_path / "t.json", long))


def test_thousands_of_streams_over_a_hundred_days_do_not_mix() -> None:
    """Streams times days are more than 64 bits."""
    index = np.repeat(np.arange(3000), 2)
    end = np.tile(np.array([1 << 52, 5]), 3000) + index
    assert _reach(end, index).tolist() == (np.repeat(end[::2], 2)).tolist()


def test_more_devices_than_a_machine_has_are_one_sentence(tmp_path: Path) -> None:
    records = [kineto.kernel("k", T + i, 2, device=i) for i in range(300)]
    assert outcome(kineto.kineto(tmp_path / "t.json", records)) == "is damaged: it has work on more than 256 devices"


def test_ranges_nested_deeper_than_calls_nest_are_left_out_and_said(tmp_path: Path) -> None:
    ranges = [kineto.said("r", T + i, 40_000 - 2 * i) for i in range(1500)]
    path = kineto.kineto(tmp_path / "t.json", [*kineto.gpu_step(), *ranges])
    assert "501 ranges are nested in 1000 others: left out" in outcome(path)


def distributed(**fields: Any) -> Record:
    return kineto.HEADER | {"distributedInfo": kineto.HEADER["distributedInfo"] | fields}


@pytest.mark.parametrize(("fields", "says"), [
    ({"world_size": 10**12}, "the world size 1000000000000 of rank 3 in the file cannot be true"),
    ({"world_size": 10**30}, "the world size 10000000000000000000… of rank 3"),
    ({"world_size": 3}, "the world size 3 of rank 3"), ({"world_size": -1}, "the world size -1 of rank 3"),
    ({"rank": -1}, "the rank -1 in the file cannot be true"), ({"rank": 10**12}, "the rank 1000000000000 in the file"),
    ({"rank": BYTES_64}, "the rank 18446744073709551616 in the file"),
], ids=str)  # fmt: skip
def test_a_rank_or_world_size_that_no_job_has_is_said_and_not_used(tmp_path: Path, fields: Record, says: str) -> None:
    records = [*kineto.gpu_step(), kineto.kernel(NCCL, T + 40_000, 10, correlation=11, **MESSAGE)]
    path = kineto.kineto(tmp_path / "t.json", records, header=distributed(**fields))
    assert says in outcome(path)
    identity = open_trace(path).identity
    assert identity.rank in (3, None) and identity.world_size in (8, None)


@pytest.mark.parametrize("epoch", [BYTES_64, -(1 << 63), 10**30, (1 << 63) - 1], ids=str)
def test_a_clock_that_began_at_no_time_is_said_and_not_used(tmp_path: Path, epoch: int) -> None:
    header = kineto.HEADER | {"baseTimeNanoseconds": epoch}
    path = kineto.kineto(tmp_path / "t.json", kineto.gpu_step(), header=header)
    assert "clock cannot be true" in outcome(path)


def bomb(path: Path, head: bytes, unit: bytes, size: int, tail: bytes = b"") -> Path:
    """A gzip file of `size` bytes of one thing."""
    packer = isal_zlib.compressobj(1, isal_zlib.DEFLATED, 31)
    block = unit * ((1 << 20) // len(unit))
    with path.open("wb") as file:
        file.write(packer.compress(head))
        for _ in range(size // len(block)):
            file.write(packer.compress(block))
        file.write(packer.compress(tail) + packer.flush())
    return path


BOMBS = {
    "records.json.gz": (
        b'{"traceEvents": [\n  {\n',
        b'    "ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1\n  },\n  {\n',
    ),
    "a string.json.gz": (b'{"traceEvents": [{"ph": "X", "name": "', b"a"),
    "blanks.json.gz": (b"", b" "),
    "objects.json.gz": (b"", b'{"a":'),
    "after the events.json.gz": (b'{"traceEvents": [], "a": "', b"a"),
    "export.sqlite.gz": (b"SQLite format 3\0", b"\0"),
}  # fmt: skip


BOUNDED_REPORT = """
import resource, sys
from harness.common.errors import HarnessError
from harness.measure.paths import measure_jobs
from harness.traces import errors

errors._ALWAYS_BYTES = int(sys.argv[1])
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + (1 << 30)
resource.setrlimit(resource.RLIMIT_AS, (size, size))
resource.setrlimit(resource.RLIMIT_FSIZE, (256 << 20, 256 << 20))
for path in sys.argv[2:]:
    try:
        print(*(f.evidence for f in measure_jobs([path])[0].quality.problems))
    except HarnessError as error:
        print(error)
"""


@pytest.mark.parametrize("limit", [20 << 20, pytest.param(errors._ALWAYS_BYTES, marks=pytest.mark.long)])
def test_gzip_bombs_end_with_one_sentence_in_bounded_memory_and_disk(tmp_path: Path, limit: int) -> None:
    """In a process that may have 1 GB more than it has at its start, and no file of more than 256 MB."""
    paths = [bomb(tmp_path / name, *what, limit + (12 << 20)) for name, what in BOMBS.items()]
    assert sum(path.stat().st_size for path in paths) < 20e6
    members = tmp_path / "members.json.gz"
    members.write_bytes(gzip.compress(b" ") * 5_000)
    world = kineto.kineto(tmp_path / "world.json", kineto.gpu_step(), header=distributed(world_size=1 << 24, rank=0))
    done = subprocess.run(
        [sys.executable, "-c", BOUNDED_REPORT, str(limit), *map(str, [*paths, members, world])],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        timeout=limit_s(),
    )
    lines = done.stdout.splitlines()
    assert len(lines) == len(paths) + 2, done.stderr[-2000:]
    said = {path.name: line.removeprefix(f"{path}: ") for path, line in zip(paths, lines, strict=False)}
    too_much = "unpacks to more than 100 times its size, more than any trace: it is damaged, or is not a trace"
    seen_before = {"blanks.json.gz": "does not start as JSON", "objects.json.gz": "no traceEvents"}
    other = seen_before if limit == errors._ALWAYS_BYTES else {}
    assert {name for name, why in said.items() if why == too_much} == {*BOMBS} - {*other}
    assert all(why in said[name] for name, why in other.items())
    assert "does not start as JSON" in lines[-2] and "1 of 16777216 ranks were read" in lines[-1]
    assert not [folder for folder in tmp_path.iterdir() if folder.is_dir()], "nothing unpacked stays behind"

"""Kineto files that are damaged or made to break the reader: each is one sentence, or what cannot be true is left out,
the rest is read, and the report says so."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isal import isal_zlib

from harness.analysis.summary import RecordingVerdict
from harness.replay.graph.device import _reach
from harness.traces import TraceError, errors, open_trace
from harness.traces.kineto import framing, gather
from harness.traces.kineto.fill import About, read_about
from tests.synthetic import kineto, one_gpu
from tests.synthetic.kineto import HEADER, Number, Record, gpu_step, kernel, operator, said
from tests.traces.crafted import outcome, verdict
from tests.traces.told import told
from tests.waiting import limit_s

ALL, ONE = tuple(kineto.LAYOUTS), ("torch 1.9",)
T = 4_458_676_988_068_751  # as gpu_step begins
DEEP = "[" * 100_000 + "]" * 100_000
BYTES_64 = 1 << 64
FAR = 9_000_000_000_000_000_000
UNIX = 1_700_000_000_000_000_000
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL()"
MESSAGE = {"Collective name": "allreduce", "In msg nelems": 4, "Out msg nelems": 4, "dtype": "Float",
           "Group size": 8, "Process Group Name": "0"}  # fmt: skip
NO_JSON, NO_TIME = "1 record was left out: not valid JSON", "1 record was left out: without a valid duration"
NOT_READ, NO_DEVICE = "left out: not readable", "whose number no machine has"
AFAR = "calls, ranges or events ended before they started or are over 104 days from others"


class Damage(NamedTuple):
    """Records, and what the report says of them; events: how many are read. In the file's text `odd` takes the place of
    `"@@"`."""

    records: Sequence[Record]
    says: str = ""
    events: int | None = None
    odd: str = ""
    layouts: Sequence[str] = ONE
    header: Record = HEADER

    def written(self, path: Path, layout: str) -> Path:
        text = kineto.kineto_text(self.records, layout, header=self.header)
        path.write_bytes(text.replace(b'"@@"', self.odd.encode()))
        return path


def changed(category: str, **fields: Any) -> list[Record]:
    """A step whose first record of a category has other fields; those of its arguments begin with `args_`."""
    records = gpu_step()
    record = next(record for record in records if record.get("cat") == category)
    for name, value in fields.items():
        (record["args"] if name.startswith("args_") else record)[name.removeprefix("args_")] = value
    return records


def distributed(**fields: Any) -> Record:
    return HEADER | {"distributedInfo": HEADER["distributedInfo"] | fields}


SENT = kernel(NCCL, T + 40_000, 10, correlation=15, **MESSAGE)
UNTIMED = [
    kernel(NCCL, 5_000, 10, **MESSAGE), kineto.call("cudaLaunchKernel", 5_000, 10), said("ProfilerStep#9", 5_000, 10),
    operator("record_param_comms", 5_000, 10),
]  # fmt: skip
IMPOSSIBLE_TIMES = ("1" + "0" * 30, "-1" + "0" * 30, "9223372036854775808", "1e400", "-1e400", '"1e999999999"',
                    "9" * 5000)  # fmt: skip
MESSAGES = [
    ("In msg nelems", str(BYTES_64)), ("In msg nelems", '"' + "9" * 5000 + '"'), ("In msg nelems", str(1 << 61)),
    ("Group size", str(1 << 40)), ("Group size", str(BYTES_64)), ("Dst Rank", str(1 << 40)),
    ("Dst Rank", '"' + "9" * 30 + '"'), ("Process Group Name", "[]"),
]  # fmt: skip
SHAPES = (
    "5", '"x"', "null", '[["a"]]', "[[null]]", "[[1.5]]", DEEP, "[[" + ",".join(["99999999999"] * 99) + "]]",
    "[[" + "9" * 300 + "]]",
)  # fmt: skip
WHO = [
    ({"world_size": 10**12}, "the world size 1000000000000 of rank 3 in the file cannot be true"),
    ({"world_size": 10**30}, "the world size 10000000000000000000… of rank 3"),
    ({"world_size": 3}, "the world size 3 of rank 3"), ({"world_size": -1}, "the world size -1 of rank 3"),
    ({"rank": -1}, "the rank -1 in the file cannot be true"), ({"rank": 10**12}, "the rank 1000000000000 in the file"),
    ({"rank": BYTES_64}, "the rank 18446744073709551616 in the file"),
]  # fmt: skip
DAMAGES = {
    "an event nested a hundred thousand deep": Damage(
        [*gpu_step(), kernel("k", T, 5) | {"zz": "@@"}], NO_JSON, 4, DEEP, ALL
    ),
    "arguments nested so deep": Damage([*gpu_step(), kernel("k", T, 5, zz="@@")], NO_JSON, 4, DEEP, ALL),
    "a word after a value": Damage([*gpu_step(), kernel("k", T, 5, stream="@@")], NO_JSON, 4, "7 oops", ALL),
    **{
        f"a bandwidth of {odd}": Damage(
            [kernel("Memcpy HtoD", 5_000, 0, cat="gpu_memcpy", bandwidth="@@"), *gpu_step()], "", 5, odd, ALL
        )
        for odd in ("inf", "-nan", "Infinity")
    },
    **{
        f"{field} of {odd[:12]}": Damage(changed("kernel", **{field: "@@"}), NO_TIME, 3, odd)
        for field in ("ts", "dur") for odd in IMPOSSIBLE_TIMES
    },
    **{
        f"records whose {key} is {value}": Damage(
            [*(record | {key: value} for record in UNTIMED), *gpu_step(T), SENT,
             *({k: v for k, v in record.items() if k != key} for record in UNTIMED)],
            "8 records were left out: without a valid duration", 5, "", ALL,
        )
        for key, value in (("dur", None), ("dur", Number("-1")), ("dur", "soon"), ("ts", None))
    },
    **{
        f"{field} of a {category} beyond 64 bits": Damage(
            changed(category, **{field: "@@"}), f"{NOT_READ} (the first: Expected `int`", None, str(BYTES_64)
        )
        for category in ("kernel", "cuda_runtime", "user_annotation") for field in ("pid", "tid")
    },
    **{
        f"device {odd}": Damage(changed("kernel", args_device="@@"), says, 3, odd)
        for odd, says in (
            (str(BYTES_64), NOT_READ), ("1e400", NOT_READ), ("true", NOT_READ), ("-5", NO_DEVICE),
            (str(1 << 32), NO_DEVICE), (str(1 << 31), NO_DEVICE),
        )
    },
    **{
        f"{field} beyond 64 bits": Damage(changed("kernel", **{f"args_{field}": "@@"}), NOT_READ, 3, str(BYTES_64))
        for field in ("stream", "correlation")
    },
    **{
        f"{field} of {odd[:12]}": Damage(
            [*gpu_step(), kernel(NCCL, T + 40_000, 10, correlation=15, **(MESSAGE | {field: "@@"}))], "", None, odd
        )
        for field, odd in MESSAGES
    },
    **{
        f"shapes {odd[:12]}": Damage(
            [operator("c10d::allreduce_", T, 10, **{"Input type": ["float", "float"], "Input Dims": "@@"}),
             said("gloo:all_reduce", T + 1, 5), operator("aten::mm", T + 20, 5)],
            "", None, odd, header=HEADER | {"deviceProperties": []},
        )
        for odd in SHAPES
    },
    **{
        f"events at {odd}": Damage(
            [*gpu_step(UNIX), *(kernel("k", at, 5) for at in odd)], f"{len(odd)} {AFAR}", 4
        )
        for odd in ([1], [-FAR // 4], [FAR // 2], [1, -FAR // 4, FAR // 2])
    },
    "events that together take centuries": Damage(
        [kernel("k", T, 1 << 52, stream=i) for i in range(1100)], "more than a century"
    ),
    "more devices than a machine has": Damage(
        [kernel("k", T + i, 2, device=i) for i in range(300)], "is damaged: it has work on more than 256 devices"
    ),
    "ranges nested deeper than calls nest": Damage(
        [*gpu_step(), *(said("r", T + i, 40_000 - 2 * i) for i in range(1500))],
        "501 ranges are nested in 1000 others: left out", 4,
    ),
    **{f"who: {fields}": Damage([*gpu_step(), SENT], says, 5, header=distributed(**fields)) for fields, says in WHO},
    **{
        f"a clock that began at {epoch}": Damage(
            gpu_step(), "clock cannot be true", 4, header=HEADER | {"baseTimeNanoseconds": epoch}
        )
        for epoch in (BYTES_64, -(1 << 63), 10**30, (1 << 63) - 1)
    },
    "no work": Damage([], "holds neither work of a GPU nor a launch", 0),
    # Ranks' files put together: correlation numbers count per process, so launches of one may be another's.
    "several processes": Damage(
        [*gpu_step(), *(record | {"pid": 51} for record in gpu_step()
                        if record.get("cat") in ("cuda_runtime", "user_annotation"))],
        "holds 2 processes", 4, layouts=ALL,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "layout"), [(name, one) for name, each in DAMAGES.items() for one in each.layouts])
def test_of_odd_records_the_report_says_what_is_left_out_or_one_sentence(
    tmp_path: Path, name: str, layout: str
) -> None:
    damage = DAMAGES[name]
    path = damage.written(tmp_path / "t.json", layout)
    assert damage.says in outcome(path)
    try:
        found = told(open_trace(path))
    except TraceError:
        assert damage.events is None
        return
    assert damage.events in (None, len(found["events"]))
    assert {*found["device"]} <= {*range(3)} and {*found["peers"]} <= {-1}
    assert {size for _, size in found["messages"]} <= {16, 4, -1}
    assert {members for *_, members in found["collectives"]} <= {8, -1}
    assert found["rank"] in (3, None) and found["world"][0] in (8, None)


def steps(count: int) -> list[Record]:
    return [record for i in range(count) for record in gpu_step(10**15 + 10**6 * i, 10 * i)]


RECORDS, WHOLE = steps(6), 24  # and their events
TEXT, MANY = kineto.kineto_text(RECORDS), gzip.compress(kineto.kineto_text(steps(300)))
HALF, HALF_PACKED = (
    f"the {what}; the events before that were read"
    for what in ("file ends in the middle of its events", "compressed file ends in the middle")
)
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
CONTENTS: dict[str, tuple[bytes, str, range | None]] = {
    "half a file": (TEXT[: len(TEXT) // 2], HALF, range(WHOLE // 3, WHOLE)),
    "half a packed file": (MANY[: len(MANY) // 2], HALF_PACKED, range(WHOLE, 50 * WHOLE)),
    **{
        f"without {lost} bytes of its checksum, {layout}": (
            gzip.compress(kineto.kineto_text(RECORDS, layout))[:-lost], HALF_PACKED, range(WHOLE, WHOLE + 1)
        )
        for layout in ALL for lost in (1, 8)
    },
    **{
        f"the end of the events is the end, {layout}": (
            kineto.kineto_text(RECORDS, layout, footer={}).rpartition(b"]")[0] + b"]", "", range(WHOLE, WHOLE + 1)
        )
        for layout in ALL
    },
    "several packed parts": (
        gzip.compress(TEXT[:1000]) + gzip.compress(TEXT[1000:]) + b"\0" * 100, "", range(WHOLE, WHOLE + 1)
    ),
    "half a character": (TEXT.replace(b"gemm", b"gem\xe2\x82"), "", range(WHOLE, WHOLE + 1)),
    "a broken header": (TEXT.replace(b"node7", b"node\xff"), "", range(WHOLE, WHOLE + 1)),
    "empty": (b"", "is empty", None), "a pointer": (LFS, "git lfs pull", None),
    "text": (b"hello", "does not start as JSON", None), "other JSON": (b'{"a": 1}', "no traceEvents", None),
    "a zip file": (b"PK\x03\x04" + TEXT, "an archive must be unpacked first", None),
    "a tar file": (gzip.compress(b"rank0.json".ljust(512, b"\0") + TEXT), "an archive must be unpacked first", None),
    "half a header": (b'{"schemaVersion": 1, "deviceProp', "no traceEvents", None),
    "half a packed header": (b"\x1f\x8b", "ends in the middle", None),
    "brackets": (DEEP.encode(), "nested too deeply", None),
    "brackets for events": (b'{"traceEvents": ' + DEEP.encode() + b"}", "nested too deeply", None),
    "open brackets": (b'{"traceEvents": ' + b"[" * 100_000, "nested too deeply", None),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTENTS)
def test_of_a_damaged_file_what_is_before_the_damage_is_read_or_one_sentence_says_what_it_is(
    tmp_path: Path, name: str
) -> None:
    content, says, events = CONTENTS[name]
    for file in ("t.json", "t.json.gz"):
        (path := tmp_path / file).write_bytes(content)
        assert says in outcome(path)
        if events is not None:
            trace = open_trace(path)
            assert len(trace.events) in events
            assert trace.notes or name.startswith(("several", "half a character", "a broken")), "read without a word"


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(ALL), st.floats(0, 1))
def test_a_file_cut_anywhere_gives_a_prefix_with_a_note_or_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, layout: str, share: float
) -> None:
    text = kineto.kineto_text(RECORDS, layout).rstrip()
    path, cut = tmp_path_factory.mktemp("cut") / "t.json", int(share * (len(text) - 1))
    path.write_bytes(text[:cut])
    try:
        trace = open_trace(path)
    except TraceError as error:
        assert cut < text.index(b"traceEvents") + 20 or str(error).endswith("of its events, before any work")
        return
    assert trace.notes, f"{cut} of {len(text)} bytes were read without a word"
    path.write_bytes(text)
    whole = open_trace(path).events.start_ns.tolist()
    assert trace.events.start_ns.tolist() == whole[: len(trace.events)]


def test_a_good_recording_is_good_only_with_its_end(tmp_path: Path) -> None:
    whole = one_gpu.written(tmp_path / "whole.json.gz", one_gpu.training())
    assert verdict(whole) is RecordingVerdict.GOOD
    packed = whole.read_bytes()
    files = {"t.json.gz": packed, "t.json": gzip.decompress(packed)}
    cuts = [
        (name, int(share * len(data))) for share in (0.02, 0.2, 0.5, 0.8, 0.95, 0.999) for name, data in files.items()
    ]
    for name, cut in [*cuts, ("t.json.gz", len(packed) - 8)]:
        (tmp_path / name).write_bytes(files[name][:cut])
        assert verdict(tmp_path / name) is not RecordingVerdict.GOOD, f"{name} cut at {cut}"


def test_damaged_compression_gives_what_is_before_it(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(MANY[: len(MANY) // 2] + b"no deflate block looks like this" * 100)
    trace = open_trace(path)  # the text before the damage may hold a record that is no JSON
    assert WHOLE < len(trace.events) < 50 * WHOLE
    assert "damaged" in trace.notes[0] or "ends in the middle" in trace.notes[0]


def test_a_missing_file_and_a_folder_are_one_sentence(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "none.json", "No such file"), (tmp_path, "is a folder, not a file")):
        with pytest.raises(TraceError, match=why):
            open_trace(path)


@pytest.mark.parametrize("layout", ALL)
def test_endless_blanks_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    monkeypatch.setattr(framing, "MOST_RECORD_BYTES", 1 << 20)
    text = kineto.kineto_text(RECORDS, layout)
    end = text.rindex(b"}", 0, text.rindex(b"]")) + 1
    (path := tmp_path / "t.json").write_bytes(text[:end] + b" " * (8 << 20) + text[end:])
    assert outcome(path) == "is damaged: in 1 MB of its events no record ends"


@pytest.mark.parametrize("layout", ["torch 1.9", "torch 2.13", "indented by 2", "keys sorted"])
def test_a_record_that_is_indented_otherwise_is_read_as_one_of_its_own(tmp_path: Path, layout: str) -> None:
    text = kineto.kineto_text([*gpu_step(), *(said(f"ProfilerStep#{i}", 1_000 * i, 900) for i in range(6))], layout)
    at = text.index(b"{", text.index(b"ProfilerStep#1"))
    (path := tmp_path / "t.json").write_bytes(text[:at] + b"      " + text[at:])
    assert (len(open_trace(path).ranges), open_trace(path).notes) == (8, [])


def test_a_few_odd_records_among_thousands_are_found_and_too_many_condemn_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [kernel("k", T + 10 * i, 5, stream=BYTES_64 if i % 150 == 0 else 7) for i in range(3000)]
    path = kineto.kineto(tmp_path / "t.json", records)
    trace = open_trace(path)
    assert len(trace.events) == 2980
    assert trace.notes[0].startswith("20 records were left out: not readable")
    monkeypatch.setattr(gather, "_MOST_UNREADABLE", 10)
    assert "11 of its records cannot be read" in outcome(path)


def test_no_flipped_byte_of_a_header_is_an_error_and_one_that_cannot_be_read_is_doubted() -> None:
    header = b'{"schemaVersion": 1, "host_name": "node7", "distributedInfo": {"backend": "nccl", "rank": 3}'
    for place in range(len(header)):
        for bit in range(8):
            flipped = header[:place] + bytes([header[place] ^ (1 << bit)]) + header[place + 1 :]
            assert isinstance(read_about(flipped, b""), About)
    for inside in (b'"a": "\xff"', b'"a": ' + b"[" * 100_000, b'"a": "\\ud800"', b"\0"):
        assert not read_about(b"{" + inside, b"").whole


def test_thousands_of_streams_over_a_hundred_days_do_not_mix() -> None:
    """Streams times days are more than 64 bits."""
    index = np.repeat(np.arange(3000), 2)
    end = np.tile(np.array([1 << 52, 5]), 3000) + index
    assert _reach(end, index).tolist() == (np.repeat(end[::2], 2)).tolist()


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

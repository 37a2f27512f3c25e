"""Broken files: one sentence with the reason, and the events before the break."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.traces import TraceError, open_trace
from harness.traces.kineto import framing
from tests.synthetic import kineto


def steps(count: int) -> list[kineto.Record]:
    return [record for i in range(count) for record in kineto.gpu_step(10**15 + 10**6 * i, 10 * i)]


RECORDS = steps(6)
WHOLE = 24  # events in RECORDS


def sentence(path: Path) -> str:
    with pytest.raises(TraceError) as caught:
        open_trace(path)
    text = str(caught.value)
    assert text.startswith(str(path)) and "\n" not in text and caught.value.exit_code == 1
    return text.removeprefix(f"{path}: ")


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(kineto.LAYOUTS)), st.floats(0, 1))
def test_a_file_cut_anywhere_gives_a_prefix_with_a_note_or_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, layout: str, share: float
) -> None:
    text = kineto.kineto_text(RECORDS, layout).rstrip()
    cut = int(share * (len(text) - 1))
    path = write(tmp_path_factory.mktemp("cut") / "t.json", text[:cut])
    try:
        trace = open_trace(path)
    except TraceError as error:
        assert cut < text.index(b"traceEvents") + 20 or str(error).endswith("of its events, before any work")
        return
    assert trace.notes, f"{cut} of {len(text)} bytes were read without a word"
    whole = open_trace(write(path.with_name("whole.json"), text))
    n = len(trace.events)
    assert n <= WHOLE
    assert trace.events.start_ns.tolist() == whole.events.start_ns[:n].tolist()


@pytest.mark.parametrize("layout", kineto.LAYOUTS)
def test_a_file_that_ends_with_its_events_is_not_whole(tmp_path: Path, layout: str) -> None:
    text = kineto.kineto_text(RECORDS, layout, footer={})
    end = text.rindex(b"]")
    trace = open_trace(write(tmp_path / "t.json", text[: end + 1]))
    assert len(trace.events) == WHOLE
    assert trace.notes


def test_half_a_file_still_gives_half_its_events(tmp_path: Path) -> None:
    text = kineto.kineto_text(RECORDS)
    trace = open_trace(write(tmp_path / "t.json", text[: len(text) // 2]))
    assert WHOLE // 3 < len(trace.events) < 2 * WHOLE // 3
    assert trace.notes == ["the file ends in the middle of its events; the events before that were read"]


def test_a_compressed_file_cut_off_gives_what_could_be_unpacked(tmp_path: Path) -> None:
    packed = gzip.compress(kineto.kineto_text(steps(300)))
    trace = open_trace(write(tmp_path / "t.json.gz", packed[: len(packed) // 2]))
    assert WHOLE < len(trace.events) < 50 * WHOLE
    assert trace.notes == ["the compressed file ends in the middle; the events before that were read"]


@pytest.mark.parametrize("layout", kineto.LAYOUTS)
@pytest.mark.parametrize("lost", [1, 8])
def test_a_compressed_file_without_its_checksum_is_not_whole(tmp_path: Path, layout: str, lost: int) -> None:
    packed = gzip.compress(kineto.kineto_text(RECORDS, layout))
    trace = open_trace(write(tmp_path / "t.json.gz", packed[:-lost]))
    assert len(trace.events) == WHOLE
    assert trace.notes == ["the compressed file ends in the middle; the events before that were read"]


def test_damaged_compression_is_an_error_that_says_so(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(kineto.kineto_text(steps(300))))
    packed[len(packed) // 2 :] = b"no deflate block looks like this" * 100
    path = write(tmp_path / "t.json.gz", bytes(packed))
    trace = open_trace(path)  # the text before the damage may hold a record that is no JSON
    assert WHOLE < len(trace.events) < 50 * WHOLE
    assert "damaged" in trace.notes[0] or "ends in the middle" in trace.notes[0]


def test_compressed_reads_like_plain_and_in_several_members(tmp_path: Path) -> None:
    text = kineto.kineto_text(RECORDS)
    packed = gzip.compress(text[:1000]) + gzip.compress(text[1000:]) + b"\0" * 100
    assert len(open_trace(write(tmp_path / "t.json.gz", packed)).events) == WHOLE


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "git lfs pull"),
        (b"hello", "does not start as JSON"),
        (b'{"a": 1}', "no traceEvents"),
        (b'{"schemaVersion": 1, "deviceProp', "no traceEvents"),
        (b"\x1f\x8b", "ends in the middle"),
    ],
    ids=["empty", "lfs", "text", "other json", "half a header", "half a gzip header"],
)
def test_a_file_that_is_no_trace_is_one_sentence(tmp_path: Path, data: bytes, says: str) -> None:
    for name in ("t.json", "t.json.gz"):
        assert says in sentence(write(tmp_path / name, data))


def test_a_missing_file_and_a_folder_are_one_sentence(tmp_path: Path) -> None:
    assert "No such file" in sentence(tmp_path / "none.json")
    assert sentence(tmp_path) == "is a folder, not a file"


@pytest.mark.parametrize("layout", kineto.LAYOUTS)
def test_endless_blanks_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    monkeypatch.setattr(framing, "MOST_RECORD_BYTES", 1 << 20)
    text = kineto.kineto_text(RECORDS, layout)
    end = text.rindex(b"}", 0, text.rindex(b"]")) + 1
    path = write(tmp_path / "t.json", text[:end] + b" " * (8 << 20) + text[end:])
    assert sentence(path) == "is damaged: in 1 MB of its events no record ends"


def test_a_record_that_is_not_valid_json_is_left_out_and_counted(tmp_path: Path) -> None:
    for layout in kineto.LAYOUTS:
        text = kineto.kineto_text(RECORDS, layout).replace(b'"stream"', b'"stream" oops', 1)
        trace = open_trace(write(tmp_path / "t.json", text))
        assert (len(trace.events), trace.notes) == (WHOLE - 1, ["1 record was left out: not valid JSON"]), layout


@pytest.mark.parametrize("layout", kineto.LAYOUTS)
def test_a_bandwidth_that_is_no_number_and_half_a_character_do_no_harm(tmp_path: Path, layout: str) -> None:
    records = [kineto.kernel("Memcpy HtoD", 5_000, 0, cat="gpu_memcpy", bandwidth="@"), *kineto.gpu_step()]
    text = kineto.kineto_text(records, layout)
    for odd in (b"inf", b"-nan", b"Infinity"):
        mended = open_trace(write(tmp_path / "t.json", text.replace(b'"@"', odd)))
        assert len(mended.events) == 5
    half = open_trace(write(tmp_path / "t.json", text.replace(b"gemm", b"gem\xe2\x82")))
    assert any(name.startswith("void gem\ufffd") for name in half.names)


TIMELESS = [("dur", None), ("dur", kineto.Number("-1")), ("dur", "soon"), ("ts", None)]


@pytest.mark.parametrize("layout", kineto.LAYOUTS)
def test_records_without_a_time_are_left_out_and_counted(tmp_path: Path, layout: str) -> None:
    arguments = {"Collective name": "allreduce", "In msg nelems": 4, "Out msg nelems": 4, "dtype": "Float"}
    bad = [
        kineto.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL()", 5_000, 10, **arguments),
        kineto.call("cudaLaunchKernel", 5_000, 10),
        kineto.said("ProfilerStep#9", 5_000, 10),
        kineto.operator("record_param_comms", 5_000, 10),
    ]
    for key, value in TIMELESS:
        odd = [record | {key: value} for record in bad]
        missing = [{k: v for k, v in record.items() if k != key} for record in bad]
        good = kineto.kernel("ncclDevKernel_AllGather_RING_LL()", 9_000, 10, **arguments)
        path = kineto.kineto(tmp_path / "t.json", [*odd, *kineto.gpu_step(), good, *missing], layout)
        trace = open_trace(path)
        assert (len(trace.events), len(trace.calls), len(trace.ranges)) == (5, 2, 2), (key, value)
        assert trace.collectives.bytes.tolist() == [16]
        assert trace.notes == ["8 records were left out: without a valid duration"]


@pytest.mark.parametrize("layout", ["torch 1.9", "torch 2.13", "indented by 2", "keys sorted"])
def test_a_record_that_is_indented_otherwise_is_read_as_one_of_its_own(tmp_path: Path, layout: str) -> None:
    ranges = [kineto.said(f"ProfilerStep#{i}", 1_000 * i, 900) for i in range(6)]
    text = kineto.kineto_text([*kineto.gpu_step(), *ranges], layout)
    at = text.index(b"{", text.index(b"ProfilerStep#1"))
    trace = open_trace(write(tmp_path / "t.json", text[:at] + b"      " + text[at:]))
    assert len(trace.ranges) == 8
    assert trace.notes == []


def test_a_trace_without_any_work_says_so(tmp_path: Path) -> None:
    trace = open_trace(kineto.kineto(tmp_path / "t.json", []))
    assert len(trace.events) == 0
    assert "holds neither work of a GPU nor a launch" in trace.notes[0]


@pytest.mark.parametrize("layout", sorted(kineto.LAYOUTS))
def test_a_file_of_several_processes_is_an_error_that_says_so(tmp_path: Path, layout: str) -> None:
    """Ranks' files put together: correlation numbers count per process, so launches of one may be another's."""
    records = kineto.gpu_step()
    others = [record | {"pid": 51} for record in records if record.get("cat") in ("cuda_runtime", "user_annotation")]
    (note,) = open_trace(kineto.kineto(tmp_path / "t.json", [*records, *others], layout)).notes
    assert "holds 2 processes" in note
    assert open_trace(kineto.kineto(tmp_path / "t.json", records, layout)).notes == []

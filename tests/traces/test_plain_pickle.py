"""A pickle from anywhere: nothing in it runs, and what is no memory snapshot gives one sentence and exit code 2."""

from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.cli.main import main
from harness.common.errors import RequestError
from harness.traces.plain_pickle import UnfitError, is_pickle, map_pickle
from tests.analysis.cuda_snapshots import Allocator

MARKER = "was-here"


class _Runs:
    """Its pickle makes a file when it is read as pickles are."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {MARKER}",)


def whole() -> bytes:
    allocator = Allocator()
    allocator.alloc(1000, 1)
    return pickle.dumps(allocator.snapshot())


def with_blocks(**block: object) -> bytes:
    return pickle.dumps({"segments": [{"address": 1, "blocks": [block]}]})


MANY = [{"size": 1, "state": "inactive"}]
HOSTILE: dict[str, tuple[bytes, str]] = {
    "os.system by REDUCE": (pickle.dumps({"segments": _Runs()}), "wants to build posix.system, which is refused"),
    "os.system by INST": (b"(S'touch was-here'\nios\nsystem\n.", "wants to build os.system, which is refused"),
    "GLOBAL": (b"ccollections\nOrderedDict\n.", "wants to build collections.OrderedDict, which is refused"),
    "a state_dict": (pickle.dumps(OrderedDict(a=1)), "wants to build collections.OrderedDict, which is refused"),
    "a persistent id": (b"\x80\x02K\x01Q.", "wants to load an object from elsewhere, which is refused"),
    "an extension": (b"\x80\x02\x82\x01.", "is not a pickle, or is damaged"),
    "a call of a text": (b"\x80\x02X\x01\x00\x00\x00a)R.", "is not a pickle, or is damaged"),
    "a huge memo": (b"\x80\x02]r\xff\xff\xff\x7f.", "more memory"),
    "a text of a terabyte": (b"\x80\x04\x8d" + (1 << 40).to_bytes(8, "little") + b"a.", "more memory"),
    "lists nested deeply": (
        b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
        "is damaged: `segments` is not a list",
    ),
    "a key nested deeply": (b"\x80\x02})" + b"\x85" * 2_000_000 + b"K\x01s.", "crashed the process that read it"),
    "the same blocks often": (pickle.dumps({"segments": [{"blocks": MANY * 99}] * 99}), "again and again"),
    "cut off": (whole()[:-30], "is cut off"),
    "empty": (b"", "is empty"),
    "a text file": (b"hello\n", "is not a pickle, or is damaged"),
    "a zip archive": (b"PK\x03\x04rest", "is a zip archive, as torch.save writes weights"),
    "a Git LFS pointer": (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
    "a number": (pickle.dumps(7), "not a memory snapshot of PyTorch: it has no `segments`"),
    "segments of numbers": (pickle.dumps([1, 2]), "is damaged: `segments` is not a list of dicts"),
    "traces of no list": (pickle.dumps({"segments": [], "device_traces": [7]}), "`device_traces` is not a list"),
    "a block without a state": (with_blocks(size=1), "is damaged: `state` is not a text"),
    "a size that is a text": (with_blocks(size="1", state="inactive"), "`size` is not a whole number"),
    "a size below 0": (with_blocks(size=-1, state="inactive"), "`size` is not a whole number"),
    "a size that is true": (with_blocks(size=True, state="inactive"), "`size` is not a whole number"),
}


@pytest.mark.parametrize(("content", "sentence"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_or_other_pickle_gives_one_sentence_and_runs_nothing(
    content: bytes, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(content)
    assert main(["report", str(path)]) == 2
    out, err = capfd.readouterr()
    (line,) = err.splitlines()
    assert out == "" and f"{path}: " in line and sentence in line
    assert list(tmp_path.iterdir()) == [path]


def test_every_end_of_a_snapshot_that_is_cut_off_gives_one_sentence(tmp_path: Path) -> None:
    content = whole()
    for end in range(1, len(content), len(content) // 20):
        path = tmp_path / "snapshot.pkl"
        path.write_bytes(content[:end])
        with pytest.raises(RequestError, match=r"is cut off|is not a pickle, or is damaged"):
            map_pickle(path, _nothing)


@given(st.binary(max_size=60))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bytes_of_any_kind_are_read_or_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(b"\x80\x04" + content)
    try:
        map_pickle(path, _nothing)
    except RequestError as error:
        assert len(str(error).splitlines()) == 1


def test_what_is_wrong_with_the_content_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps([1]))
    with pytest.raises(RequestError, match=r"a\.pkl: is odd"):
        map_pickle(path, _odd)


def test_a_pickle_is_known_by_its_name_or_its_first_bytes(tmp_path: Path) -> None:
    for name, content, known in (("a.pickle", b"", True), ("b", b"\x80\x04.", True), ("c.json", b"{}", False)):
        (tmp_path / name).write_bytes(content)
        assert is_pickle(tmp_path / name) is known
    (tmp_path / "d.pickle").mkdir()
    assert not is_pickle(tmp_path / "d.pickle") and not is_pickle(tmp_path / "nowhere.pickle")


def _nothing(data: object, file_bytes: int) -> int:
    return file_bytes


def _odd(data: object, file_bytes: int) -> int:
    raise UnfitError("is odd")

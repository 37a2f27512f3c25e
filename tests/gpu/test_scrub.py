"""A trace that is given away names no place and no person, keeps its numbers digit by digit, and stays small."""

from __future__ import annotations

import gzip
import json
import platform
import random
import socket
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import scrub
from tests.gpu.scrub import clean, leaks, marks, scrubbed, secrets
from tests.synthetic.one_gpu import event, training, written


def telling() -> dict[str, Any]:
    """A trace that contains the place, the host and the user of its recording."""
    trace = training()
    trace["traceEvents"].append(
        event("user_annotation", "enumerate(/home/ada/project/train.py)", 10.0, 5.0, file="/home/ada/data/set.json")
    )
    trace["traceEvents"].append(
        event("user_annotation", f"run on {socket.gethostname()}.cluster by ada", 20.0, 5.0, note="kept/by/nobody")
    )
    return {**trace, "host_name": socket.gethostname(), "traceName": "/tmp/x/trace.json", "INFO": ["at /home/ada"]}


def unpacked(packed: bytes) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(gzip.decompress(packed))
    return read


def test_paths_hosts_and_users_are_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(platform, "node", lambda: "node0417.cluster")
    monkeypatch.setattr(socket, "gethostname", lambda: "node0417")
    monkeypatch.setenv("USER", "ada")
    asked_anew(monkeypatch)
    path = written(tmp_path / "trace.json.gz", telling())
    assert "/home/ada" in gzip.decompress(path.read_bytes()).decode()
    text = gzip.decompress(scrubbed(path).packed).decode()
    assert [word for word in ("node0417", "ada", "/home", "/tmp", "train.py") if word in text] == []
    assert leaks(scrubbed(path).packed, scrub.secrets()) == []


def asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of this machine are cached; a test changes them, and no later test may see its names."""
    monkeypatch.setattr("tests.gpu.scrub.secrets", cache(secrets.__wrapped__))


def test_no_name_server_is_asked_for_the_names_to_hide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda *_: pytest.fail("this may wait for DNS"))
    monkeypatch.setattr(platform, "node", lambda: "node0417.cluster")
    assert {"node0417.cluster", "node0417"} <= set(secrets.__wrapped__())


def test_what_was_forgotten_is_found(tmp_path: Path) -> None:
    path = written(tmp_path / "trace.json.gz", telling())
    assert "/home/ada/project/train.py" in leaks(path.read_bytes(), [])
    assert leaks(path.read_bytes(), [socket.gethostname()])[0] == socket.gethostname()


def test_a_kernels_name_stays_what_it_is() -> None:
    names = ["void cutlass::Kernel<float, 4/2>(int)", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "a // b", "root"]
    trace = clean({"traceEvents": [event("kernel", name, 0.0, 1.0) for name in names]}, ["node0417"])
    assert [e["name"] for e in trace["traceEvents"]] == names


def test_every_time_keeps_its_digits(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    text = json.dumps(training()).replace(": 100.0", ": 100.010")
    path.write_bytes(gzip.compress(text.encode()))
    before = json.loads(text, parse_float=Decimal)["traceEvents"]
    after = json.loads(gzip.decompress(scrubbed(path, most_steps=6).packed), parse_float=str)["traceEvents"]
    assert [str(e["ts"]) for e in before] == [e["ts"] for e in after]
    assert "100.010" in [e["dur"] for e in after]


def test_the_last_steps_are_kept_whole(tmp_path: Path) -> None:
    path = written(tmp_path / "trace.json.gz", training(steps=9))
    made = scrubbed(path)
    trace = unpacked(made.packed)
    assert (made.steps, len(marks(trace))) == (5, 5)
    assert {e["name"] for e in trace["traceEvents"] if "Step#" in e["name"]} == {
        f"ProfilerStep#{n}" for n in range(4, 9)
    }
    assert sum(e["cat"] == "kernel" for e in trace["traceEvents"]) == 5


def test_a_large_trace_loses_first_what_a_report_misses_least(tmp_path: Path) -> None:
    trace, chance = training(steps=5), random.Random(1)
    for n in range(4000):  # incompressible operators
        dims = [[chance.randrange(10**9), chance.randrange(10**9)]]
        trace["traceEvents"].append(event("cpu_op", "aten::add", n % 900, 1.0, **{"Input Dims": dims}))
    path = written(tmp_path / "trace.json.gz", trace)
    assert scrubbed(path).left_out == []
    thinner = scrubbed(path, limit=40_000)
    assert thinner.left_out[:2] == ["arrows", "shapes of operators"]
    assert len(thinner.packed) <= 40_000
    assert thinner.steps == 5
    kept = unpacked(scrubbed(path, limit=3_000).packed)["traceEvents"]
    assert sum(e["cat"] == "kernel" for e in kept) == 5


def test_steps_are_dropped_last_and_an_impossible_limit_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path / "trace.json.gz", training(steps=5))
    assert scrubbed(path, limit=len(scrubbed(path, most_steps=2).packed)).steps < 5
    with pytest.raises(ValueError, match="even one step is larger than 50 bytes"):
        scrubbed(path, limit=50)


def test_the_same_trace_gives_the_same_bytes(tmp_path: Path) -> None:
    path = written(tmp_path / "trace.json.gz", training())
    assert scrubbed(path).packed == scrubbed(path).packed

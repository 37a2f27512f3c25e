"""A trace that is given away names no place and no person, keeps its numbers digit by digit, and stays small."""

from __future__ import annotations

import gzip
import json
import platform
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


def test_paths_hosts_and_users_are_gone_and_no_name_server_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda *_: pytest.fail("this may wait for DNS"))
    monkeypatch.setattr(platform, "node", lambda: "node0417.cluster")
    monkeypatch.setattr(socket, "gethostname", lambda: "node0417")
    monkeypatch.setenv("USER", "ada")
    # The names of this machine are cached; no later test may see these.
    monkeypatch.setattr("tests.gpu.scrub.secrets", cache(secrets.__wrapped__))
    assert {"node0417.cluster", "node0417", "ada"} <= set(scrub.secrets())
    path = written(tmp_path / "trace.json.gz", telling())
    before = path.read_bytes()
    assert "/home/ada/project/train.py" in leaks(before, []) and leaks(before, ["node0417"])[0] == "node0417"
    packed = scrubbed(path).packed
    text = gzip.decompress(packed).decode()
    assert [word for word in ("node0417", "ada", "/home", "/tmp", "train.py") if word in text] == []
    assert leaks(packed, scrub.secrets()) == []


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


def test_the_last_steps_that_fit_are_kept_whole_and_always_in_the_same_bytes(tmp_path: Path) -> None:
    path = written(tmp_path / "trace.json.gz", training(steps=9))
    made = scrubbed(path)
    trace = json.loads(gzip.decompress(made.packed))
    assert (made.steps, len(marks(trace)), made.packed) == (5, 5, scrubbed(path).packed)
    named = {e["name"] for e in trace["traceEvents"] if "Step#" in e["name"]}
    assert named == {f"ProfilerStep#{n}" for n in range(4, 9)}
    assert sum(e["cat"] == "kernel" for e in trace["traceEvents"]) == 5
    assert not any("Input Dims" in e.get("args", {}) for e in trace["traceEvents"])
    assert scrubbed(path, limit=len(scrubbed(path, most_steps=2).packed)).steps == 2
    with pytest.raises(ValueError, match="even one step is larger than 50 bytes"):
        scrubbed(path, limit=50)

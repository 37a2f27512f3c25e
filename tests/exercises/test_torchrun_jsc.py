"""JSC's torchrun_jsc in torchrun's place. The package is a stand-in here that does what it does with a command line."""

from __future__ import annotations

import argparse
import os
import sys
from types import ModuleType

import pytest

run = pytest.importorskip("torch.distributed.run", reason="the training extra is not installed")

from exercises.utils.launch import meet_as_at_jsc  # noqa: E402  # torch first


def stand_in_for_torchrun_jsc() -> ModuleType:
    """On the host it adds who is the host, and its name, behind the program; elsewhere only the first."""

    def apply_fixes() -> None:
        node = os.environ["TORCHRUN_JSC_NODE_RANK"]
        endpoint = next(word for word in sys.argv if word.startswith("--rdzv-endpoint="))
        host = endpoint.partition("=")[2].partition(":")[0]
        own = [f"--local_addr={host}"] * (node == "0")
        sys.argv[1:1] = [*own, f"--rdzv_conf=is_host={int(node == '0')}"]

    module = ModuleType("torchrun_jsc")
    module.apply_fixes = apply_fixes  # type: ignore[attr-defined]
    return module


def options_of(monkeypatch: pytest.MonkeyPatch, nodes: int, node: int) -> argparse.Namespace:
    """The options with which torchrun starts on this node."""
    given: list[argparse.Namespace] = []
    monkeypatch.setattr(run, "run", given.append)
    monkeypatch.setattr(sys, "argv", ["launch"])
    monkeypatch.delenv("TORCHRUN_JSC_NODE_RANK", raising=False)
    monkeypatch.setitem(sys.modules, "torchrun_jsc", stand_in_for_torchrun_jsc())
    meet_as_at_jsc()
    words = [f"--nnodes={nodes}", f"--node-rank={node}", "--master-addr=jwb0097i", "--master-port=20001"]
    run.run(run.parse_args([*words, "--nproc-per-node=4", "train.py", "--tp", "2"]))
    return given[0]


@pytest.mark.parametrize("node", [0, 1])
def test_several_nodes_meet_by_c10d_at_the_first_ones_fast_name(monkeypatch: pytest.MonkeyPatch, node: int) -> None:
    got = options_of(monkeypatch, 2, node)
    assert (got.rdzv_backend, got.rdzv_endpoint) == ("c10d", "jwb0097i:20001")
    assert got.rdzv_conf == f"is_host={int(node == 0)}"
    assert got.local_addr == (None if node else "jwb0097i")
    assert (got.training_script, got.training_script_args) == ("train.py", ["--tp", "2"])
    assert (got.nnodes, got.nproc_per_node) == ("2", "4")


def test_one_node_starts_as_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert options_of(monkeypatch, 1, 0).rdzv_backend == "static"


def test_a_python_without_it_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchrun_jsc", None)
    with pytest.raises(SystemExit, match=f"^{sys.executable} has no torchrun_jsc.*network.torchrun: torchrun in"):
        meet_as_at_jsc()

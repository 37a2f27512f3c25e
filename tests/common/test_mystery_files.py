"""The faults of a mystery lie in a hidden file that says so; what cannot be read is no mystery's faults."""

from __future__ import annotations

from pathlib import Path

from harness.common.faults.fault import faults_file
from harness.common.faults.mystery import checksum, hidden_faults, hidden_file, hidden_text, is_mystery

FAULTS = ("data-stall,ms=61.7,rank=1", "crash,kind=gone,step=5")


def test_the_file_is_hidden_and_says_what_it_is_before_it_says_the_faults(tmp_path: Path) -> None:
    assert any(part.startswith(".") for part in hidden_file(tmp_path).relative_to(tmp_path).parts)
    assert "do-not-look" in hidden_file(tmp_path).name
    first, *_ = hidden_text(FAULTS).splitlines()
    assert first.startswith("Please do not look") and "lesson mystery reveal" in first
    assert not [fault for fault in FAULTS if fault in first]


def test_what_is_hidden_is_read_back(tmp_path: Path) -> None:
    assert (is_mystery(tmp_path), hidden_faults(tmp_path)) == (False, ())
    assert faults_file(tmp_path, 1) == tmp_path / "faults" / "rank1.jsonl"
    hidden_file(tmp_path).parent.mkdir()
    hidden_file(tmp_path).write_text(hidden_text(FAULTS))
    assert (is_mystery(tmp_path), hidden_faults(tmp_path)) == (True, FAULTS)
    assert faults_file(tmp_path, 1).parent == hidden_file(tmp_path).parent, "what was injected is hidden too"


def test_the_checksum_is_that_of_all_faults_in_their_order() -> None:
    assert checksum(FAULTS) == checksum(list(FAULTS))
    assert len({checksum(faults) for faults in (FAULTS, FAULTS[::-1], FAULTS[:1], ())}) == 4

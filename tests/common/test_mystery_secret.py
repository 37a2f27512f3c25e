"""A secret can be read by the harness and by nobody who opens its file; a changed one is found out."""

from __future__ import annotations

import pytest

from harness.common.mystery import LINES_BLOCK, Secret, seal, unseal

FAULTS = ("data-stall,ms=61.7,rank=1", "pause,ms=33.3")
SECRET = Secret(FAULTS, "5a17")


def test_what_was_sealed_comes_back() -> None:
    assert Secret.open(SECRET.sealed) == SECRET
    assert unseal(seal(b"x" * 100_000, b"n" * 16, 256)) == b"x" * 100_000
    assert unseal(seal(b"", b"n" * 16, 256)) == b""


def test_a_sealed_word_shows_neither_its_text_nor_its_length() -> None:
    one, two = SECRET.sealed, Secret(FAULTS[:1], "5a17").sealed
    assert len(one) == len(two)
    assert not any(word in one for word in ("stall", "pause", "61.7"))
    assert len(set(one)) > 40, "it looks like chance"
    lines = [seal(text, b"n" * 16, LINES_BLOCK) for text in (b"", b'{"step": 1}\n' * 50)]
    assert len(lines[0]) == len(lines[1])


@pytest.mark.parametrize("place", [0, 30, 200, -1])
def test_a_changed_word_is_found_out(place: int) -> None:
    word = SECRET.sealed
    other = "A" if word[place] != "A" else "B"
    changed = word[:place] + other + (word[place + 1 :] if place != -1 else "")
    with pytest.raises(ValueError):
        Secret.open(changed)


@pytest.mark.parametrize("word", ["", "A", "no sealed text", "é"])
def test_what_is_no_sealed_word_is_refused(word: str) -> None:
    with pytest.raises(ValueError):
        Secret.open(word)


def test_a_commitment_fixes_salt_and_faults() -> None:
    assert SECRET.commitment == Secret(FAULTS, "5a17").commitment
    others = [Secret(FAULTS, "5a18"), Secret(FAULTS[::-1], "5a17"), Secret(FAULTS[:1], "5a17")]
    assert len({secret.commitment for secret in (SECRET, *others)}) == 4

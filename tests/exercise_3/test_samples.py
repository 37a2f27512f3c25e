"""Pre-training samples: consecutive tokens of Megatron's .bin/.idx pair, every one once per epoch, in seeded order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from harness.common.errors import RequestError

if TYPE_CHECKING:
    from exercises.exercise_3_MegatronLM.data import Samples

SEQUENCE = 8
DOCUMENTS = (3, 20, 1, 17, 40)


@pytest.fixture(autouse=True, scope="module")
def megatron() -> None:
    """Its import takes seconds, which only the worker with these tests pays."""
    pytest.importorskip("megatron.core", reason="exercise 3's data is Megatron's")


def samples_of(prefix: Path, length: int = SEQUENCE, vocabulary_size: int = 100, seed: int = 0) -> Samples:
    from exercises.exercise_3_MegatronLM.data import Samples

    return Samples(prefix, length, vocabulary_size=vocabulary_size, seed=seed)


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """81 tokens 0, 1, 2 … in documents of uneven length."""
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(str(tmp_path / "text.bin"), dtype=np.int32)
    begin = 0
    for length in DOCUMENTS:
        builder.add_document(list(range(begin, begin + length)), [length])
        begin += length
    builder.finalize(str(tmp_path / "text.idx"))
    return tmp_path / "text"


def test_a_sample_is_one_sequence_and_the_token_after_it(prefix: Path) -> None:
    samples = samples_of(prefix)
    for index in range(len(samples)):
        tokens = samples.sample(index)
        assert tokens.tolist() == list(range(int(tokens[0]), int(tokens[0]) + SEQUENCE + 1))


def test_an_epoch_has_every_sequence_once_and_the_next_another_order(prefix: Path) -> None:
    samples = samples_of(prefix)
    assert len(samples) == 10
    epochs = [[int(samples.sample(e * 10 + i)[0]) for i in range(10)] for e in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(0, 80, SEQUENCE))
    assert epochs[0] != epochs[1]


def test_a_set_shorter_than_a_sequence_starts_over(prefix: Path) -> None:
    tokens = samples_of(prefix, 200).sample(3)
    assert tokens.tolist() == [place % 81 for place in range(201)]


def test_a_token_without_an_embedding_is_named(prefix: Path) -> None:
    samples = samples_of(prefix, vocabulary_size=80)  # the last token is 80, and a model of 81 has it
    with pytest.raises(RequestError, match="has token 80, the model only 80 tokens"):
        for index in range(len(samples)):
            samples.sample(index)


def test_a_missing_pair_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"--data-path .*there is no .*text\.idx"):
        samples_of(tmp_path / "text")

"""`--engine megatron-lm`: what NVIDIA's pretrain_gpt.py is asked, word by word."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.experiment import Megatron
from harness.megatron_args import pretrain_gpt_argv
from harness.model import find_model

GOLDEN = Path(__file__).parent / "golden"


def fitted(**fields: object) -> Megatron:
    """An experiment as a site of four GPUs per node completes it."""
    workshop: dict[str, object] = {
        "engine": "megatron-lm",
        "gpus_per_node": 4,
        "tp": 4,
        "seq_length": 4096,
        "micro_batch_size": 1,
        "global_batch_size": 128,
        "mixed_precision": True,
    }
    return Megatron.model_validate(workshop | fields)


def argv(
    model: str, fields: dict[str, object] | None = None, *, profile: bool = True, mock_data: bool = True
) -> list[str]:
    sizes, _, _ = find_model(model)
    return pretrain_gpt_argv(fitted(**(fields or {})), sizes, profile=profile, mock_data=mock_data)


def one_flag_per_line(words: list[str]) -> str:
    return " ".join(words).replace(" --", "\n--") + "\n"


@pytest.mark.parametrize(
    ("name", "model", "fields"),
    [
        ("mistral-7b-tp4", "mistral-7b", {}),
        ("mistral-7b-n2-tp4-pp2", "mistral-7b", {"nodes": 2, "pp": 2, "activation_checkpointing": True}),
        ("mixtral-8x7b-n2-tp2-ep4", "mixtral-8x7b", {"nodes": 2, "tp": 2, "ep": 4}),
    ],
)
def test_the_words_are_the_golden_ones(name: str, model: str, fields: dict[str, object]) -> None:
    assert one_flag_per_line(argv(model, fields)) == (GOLDEN / f"{name}.txt").read_text()


def test_no_flag_is_given_twice() -> None:
    flags = [
        word
        for word in argv("mixtral-8x7b", {"nodes": 2, "tp": 2, "ep": 2, "pp": 2})
        if word.startswith("--")
    ]
    assert len(flags) == len(set(flags))


def test_the_window_is_iterations_five_to_nine_on_every_rank() -> None:
    words = argv("mistral-7b", {"nodes": 2, "pp": 2})
    begin = words.index("--profile")
    assert words[begin : begin + 6] == [
        "--profile",
        "--profile-step-start",
        "5",
        "--profile-step-end",
        "10",
        "--profile-ranks",
    ]
    assert words[begin + 6 : begin + 14] == [str(rank) for rank in range(8)]
    assert words[words.index("--train-iters") + 1] == "10"


def test_nothing_is_profiled_and_no_data_made_up_unless_asked() -> None:
    words = argv("mistral-7b", profile=False, mock_data=False)
    assert not {"--profile", "--profile-ranks", "--mock-data"} & set(words)


def test_sequence_parallelism_comes_with_tensor_parallelism_only() -> None:
    assert "--sequence-parallel" in argv("mistral-7b")
    assert "--sequence-parallel" not in argv("mistral-7b", {"tp": 1, "pp": 4})


def test_tied_embeddings_stay_tied() -> None:
    assert "--untie-embeddings-and-output-weights" not in argv("llama-3.2-3b", {"tp": 1})
    assert "--untie-embeddings-and-output-weights" in argv("mistral-7b")

"""`--engine megatron-lm`: the argv of NVIDIA's pretrain_gpt.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.experiment.exercises import Megatron
from harness.experiment.model import find_model
from harness.launch.exercises.base import TrainedModel
from harness.launch.exercises.megatron import pretrain_gpt_argv
from harness.launch.job import Machine, resolve_defaults
from harness.site.site import load_site

GOLDEN = Path(__file__).parent / "golden"


LOGIN = Machine(gpus=0, cores=8, has_nsys=False, python="python3", runs_dir="/runs")


def argv(
    model: str, fields: dict[str, object] | None = None, *, profile: bool = True, mock_data: bool = True
) -> list[str]:
    """The experiment as resolved on Leonardo, with four GPUs per node."""
    sizes, _, _ = find_model(model)
    asked = Megatron.model_validate({"engine": "megatron-lm"} | (fields or {}))
    fitted = resolve_defaults(asked, load_site("leonardo"), LOGIN, "cuda", TrainedModel(sizes))
    assert isinstance(fitted, Megatron)
    return pretrain_gpt_argv(fitted, sizes, profile=profile, mock_data=mock_data)


def one_flag_per_line(words: list[str]) -> str:
    return " ".join(words).replace(" --", "\n--") + "\n"


@pytest.mark.parametrize(
    ("name", "model", "fields"),
    [
        ("mistral-7b-tp4", "mistral-7b", {"tp": 4}),
        ("mistral-7b-n2-tp4-pp2", "mistral-7b", {"nodes": 2, "pp": 2, "activation_checkpointing": True}),
    ],
)
def test_the_arguments_are_the_golden_ones(name: str, model: str, fields: dict[str, object]) -> None:
    """After a deliberate change: HARNESS_WRITE_GOLDEN=1 pytest tests/exercise_3, then read the diff."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("HARNESS_WRITE_GOLDEN"):
        path.write_text(one_flag_per_line(argv(model, fields)))
    assert one_flag_per_line(argv(model, fields)) == path.read_text()


def test_megatron_computes_in_bf16_unless_asked_for_fp32() -> None:
    """In fp32 the slides' iterations would take Leonardo 48 minutes, and its debug queue gives 30."""
    assert "--bf16" in argv("mistral-7b")
    assert "--bf16" not in argv("mistral-7b", {"mixed_precision": False})


def test_nothing_is_profiled_and_no_data_made_up_unless_asked() -> None:
    words = argv("mistral-7b", profile=False, mock_data=False)
    assert not {"--profile", "--profile-ranks", "--mock-data"} & set(words)


def test_tied_embeddings_stay_tied() -> None:
    assert "--untie-embeddings-and-output-weights" not in argv("llama-3.2-3b", {"tp": 1})
    assert "--untie-embeddings-and-output-weights" in argv("mistral-7b")

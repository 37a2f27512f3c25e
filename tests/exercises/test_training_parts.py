"""What the training scripts share: each part does what its page says, without training anything."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the training scripts need PyTorch")

from exercises.entry import run_script  # noqa: E402

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402 - needs torch

from exercises.exercise_1_DDP import variants  # noqa: E402
from exercises.utils import synchronisation  # noqa: E402
from exercises.utils.arguments import DEFAULT_DATA, DEFAULT_TOKENIZER, TrainingArguments, parse_arguments  # noqa: E402
from exercises.utils.data import (  # noqa: E402
    IGNORED,
    Instruction,
    check_vocabulary,
    encode_example,
    load_instructions,
    load_vocabulary,
)
from exercises.utils.loaders import PythonTokenizer  # noqa: E402
from exercises.utils.models import build_model, load_model_config, save_random_weights  # noqa: E402
from harness.common.errors import RequestError, WorkError  # noqa: E402
from harness.common.run_folder.metrics_lines import StartLine  # noqa: E402
from harness.common.run_folder.profile_window import FINE_TUNING, RECORDED_VARIABLE, ProfileWindow, as_recorded  # noqa: E402
from harness.observe import metrics  # noqa: E402
from harness.observe.heartbeat import PROGRESS  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
MODELS = sorted((ROOT / "configs/models").glob("*.yaml"))


# The window


def test_the_window_is_the_workshops_by_default() -> None:
    window = FINE_TUNING
    phases = [window.phase(step) for step in range(38)]
    assert phases == ["skip"] * 10 + ["wait"] + ["warmup"] * 5 + ["active"] * 20 + ["after"] * 2


HOUR = 3600 * 10**9


@pytest.mark.parametrize(
    ("begin_ns", "end_ns", "phase"),
    [(-HOUR, HOUR, "active"), (-HOUR, None, "active"), (HOUR, 2 * HOUR, "skip"), (-2 * HOUR, -HOUR, "after")],
)
def test_steps_that_nsys_records_by_the_clock_are_the_profiled_ones(
    begin_ns: int, end_ns: int | None, phase: str
) -> None:
    now = time.time_ns()
    times = f"{now + begin_ns} {0 if end_ns is None else now + end_ns}"
    window = as_recorded(FINE_TUNING, {RECORDED_VARIABLE: times})
    assert (window.phase(12), window.end) == (phase, FINE_TUNING.end)
    assert as_recorded(FINE_TUNING, {RECORDED_VARIABLE: "1"}).phase(12) == "warmup"


# The command line


def _parse(*words: str) -> TrainingArguments:
    return parse_arguments(TrainingArguments, "", argv=["--run-dir", "r", "--model", "m", *words])


def test_training_ends_with_the_window_unless_steps_say_otherwise() -> None:
    assert _parse().total_steps == 36
    assert _parse("--skip", "0", "--active", "2").total_steps == 8
    assert _parse("--steps", "100").total_steps == 100


@pytest.mark.parametrize(
    "words",
    [["--micro-batch-size", "0"], ["--steps", "two"], ["--profiler", "vtune"], ["--skip", "-1"],
     ["--random-weights", "--checkpoint", "c"]],
)  # fmt: skip
def test_a_wrong_option_exits_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        _parse(*words)
    assert refused.value.code == 2
    assert words[0] in capsys.readouterr().err


# Data and tokenizer


def test_the_plain_python_tokenizer_gives_the_compiled_ones_ids() -> None:
    compiled = load_vocabulary(None)
    plain = PythonTokenizer(DEFAULT_TOKENIZER / "tokenizer.json")
    texts = [e.prompt + e.output for e in load_instructions(DEFAULT_DATA)[::5]]
    texts += ["", " ", "aaaaaaa", "Zürich\r\n\r\n  naïve 12345 ½ 東京 🚲", "it's  we'LL\n", "\n\n\n"]
    for text in texts:
        assert plain.encode(text) == compiled.encode(text), text


def test_labels_count_the_answer_and_its_end_only() -> None:
    vocabulary = load_vocabulary(None)
    example = Instruction("Name a colour.", "", "Blue.")
    batch = encode_example(example, vocabulary, seq_length=96)
    ids, labels = batch["input_ids"].tolist(), batch["labels"].tolist()
    answer = [*vocabulary.encode("Blue."), vocabulary.end_id]
    assert len(ids) == len(labels) == 96
    assert [label for label in labels if label != IGNORED] == answer
    prompt = len(vocabulary.encode(example.prompt))
    assert ids[prompt : prompt + len(answer)] == labels[prompt : prompt + len(answer)] == answer
    assert set(ids[prompt + len(answer) :]) == {vocabulary.padding_id}


@pytest.mark.parametrize(
    "example",
    [Instruction("Count.", "", "one two " * 200), Instruction("Read this: " + "blah " * 200, "", "Done.")],
    ids=["long answer", "long prompt"],
)
def test_a_long_example_is_cut_and_still_has_a_label(example: Instruction) -> None:
    vocabulary = load_vocabulary(None)
    batch = encode_example(example, vocabulary, 64)
    assert batch["input_ids"].shape == batch["labels"].shape == (64,)
    counted = batch["labels"] != IGNORED
    assert counted.any()
    assert torch.equal(batch["labels"][counted], batch["input_ids"][counted])
    assert batch["labels"][counted][0] == vocabulary.encode(example.output)[0]


@pytest.mark.parametrize(
    ("text", "complaint"), [("{", "is not JSON"), ('[{"instruction": "x"}]', "entry 0 lacks"), ("[1]", "entry 0 lacks")]
)
def test_data_that_is_not_instructions_is_refused_by_name(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "data.json"
    path.write_text(text)
    with pytest.raises(RequestError, match=complaint) as refused:
        load_instructions(path)
    assert str(path) in str(refused.value)


def test_a_vocabulary_larger_than_the_models_is_refused() -> None:
    with pytest.raises(RequestError, match="1024 tokens, but the model has 512"):
        check_vocabulary(load_vocabulary(None), 512)


# Errors


def test_a_full_gpu_is_one_sentence_that_says_what_to_try(capsys: pytest.CaptureFixture[str]) -> None:
    said = (
        "CUDA out of memory. Tried to allocate 112.00 MiB. GPU 0 has a total capacity of 79.10 GiB of which 37.12 MiB "
        "is free. Including non-PyTorch memory, this process has 79.05 GiB memory in use. Of the allocated memory …"
    )

    def main() -> int:
        raise torch.OutOfMemoryError(said)

    with pytest.raises(SystemExit) as ended:
        run_script(main)
    assert ended.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: CUDA out of memory. Tried to allocate 112.00 MiB. GPU 0 has a total capacity of")
    assert "37.12 MiB is free. Try a smaller --micro-batch-size, --seq-length or --model" in line


# Models

BILLIONS = {
    "llama-3.2-1b": 1.24, "llama-3.2-3b": 3.21, "llama-3.1-8b": 8.03, "llama-3.3-70b": 70.6,
    "mistral-7b": 7.24,
}  # fmt: skip


def test_random_weights_are_drawn_on_the_device_that_trains() -> None:
    config = load_model_config(ROOT / "configs/models/tiny-llama.yaml")
    built = build_model(config, None, activation_checkpointing=False, device=torch.device("meta"))
    places = {tensor.device.type for tensor in (*built.parameters(), *built.buffers())}
    assert places == {"meta"}


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_every_model_file_loads_and_names_a_tiny_twin(path: Path) -> None:
    config = load_model_config(path)
    assert config.name == path.stem
    if config.tiny:
        assert config.parameters() < 10_000_000
        built = build_model(config, None, activation_checkpointing=False)
        assert sum(p.numel() for p in built.parameters()) == config.parameters()
    else:
        assert config.parameters() / 1e9 == pytest.approx(BILLIONS[config.name], rel=0.005)
        twin = load_model_config(path.with_name(f"{config.tiny_twin}.yaml"))
        assert twin.tiny
        assert twin.architecture == config.architecture


@pytest.mark.parametrize("rank", [None, 8])
def test_a_flop_counter_counts_what_the_formula_says(rank: int | None) -> None:
    config, tokens = load_model_config(ROOT / "configs/models/tiny-mistral.yaml"), 64
    model = build_model(config, None, activation_checkpointing=False)
    model.config._attn_implementation = "eager"
    expected = config.flops_per_token(tokens)
    if rank is not None:
        model, expected = (variants.with_lora(model, rank, recomputes=False), config.lora_flops_per_token(tokens, rank))
    ids = torch.arange(tokens).reshape(1, tokens)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids).loss.backward()
    assert counter.get_total_flops() == expected * tokens
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert trained == (config.parameters() if rank is None else config.lora_parameters(rank))


def test_offloaded_activations_change_no_gradient() -> None:
    config = load_model_config(ROOT / "configs/models/tiny-mistral.yaml")
    model = build_model(config, None, activation_checkpointing=False)
    ids = torch.arange(64).reshape(2, 32)

    def gradients(wanted: bool) -> tuple[list[Any], int]:
        model.zero_grad()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            with variants.offload_activations(model, wanted):
                loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
        fetched = sum(event.name == "fetch_activation" for event in profile.events())
        return [parameter.grad.clone() for parameter in model.parameters()], fetched

    (usual, none), (offloaded, some) = gradients(False), gradients(True)
    assert none == 0 and some > config.num_hidden_layers
    assert all(torch.equal(a, b) for a, b in zip(usual, offloaded, strict=True))


@pytest.mark.parametrize(
    ("change", "complaint"), [("hidden_size: 64", "lacks hidden_size"), ("name: tiny-llama", "lacks name")]
)
def test_a_model_file_that_lacks_something_is_refused(tmp_path: Path, change: str, complaint: str) -> None:
    text = (ROOT / "configs/models/tiny-llama.yaml").read_text()
    assert change in text
    (tmp_path / "m.yaml").write_text(text.replace(change, "", 1))
    with pytest.raises(RequestError, match=complaint):
        load_model_config(tmp_path / "m.yaml")


# Metrics


def _start(window: ProfileWindow) -> StartLine:
    return StartLine(
        rank=0, world_size=1, local_rank=0, backend=None, device="cpu", model="m", parameters=1,
        weights="random", dtype="float32", seq_length=8, micro_batch_size=1, gradient_accumulation_steps=1,
        flops_per_token=None, peak_flops_per_s=None, window=window, trained_parameters=None,
    )  # fmt: skip


def _without_a_tensor(weights: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(weights)
    del tensors["model.norm.weight"]
    save_file(tensors, weights, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda weights: weights.unlink(), "its weights cannot be read"),
        (lambda weights: weights.write_bytes(weights.read_bytes()[:1000]), "its weights cannot be read"),
        (lambda weights: weights.write_bytes(weights.read_bytes()[:-9]), "its weights cannot be read"),
        (_without_a_tensor, "lacks model.norm.weight; random weights are --random-weights"),
    ],
    ids=["no weights", "half a header", "cut short", "a tensor less"],
)
def test_an_incomplete_checkpoint_is_refused_in_a_sentence(
    tmp_path: Path, damage: Callable[[Path], object], complaint: str
) -> None:
    """transformers would train on made-up values for what is missing."""
    config = load_model_config(ROOT / "configs/models/tiny-mistral.yaml")
    save_random_weights(config, tmp_path, seed=1)
    damage(tmp_path / "model.safetensors")
    with pytest.raises(RequestError, match=complaint) as refused:
        build_model(config, tmp_path, activation_checkpointing=False)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("tied", [True, False])
def test_a_whole_checkpoint_loads_with_its_own_values(tmp_path: Path, tied: bool) -> None:
    """Of tied embeddings the file holds one."""
    config = replace(load_model_config(ROOT / "configs/models/tiny-llama.yaml"), tie_word_embeddings=tied)
    save_random_weights(config, tmp_path, seed=1)
    first, again = (build_model(config, tmp_path, activation_checkpointing=False) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))


def test_random_weights_depend_on_their_seed_alone(tmp_path: Path) -> None:
    config = load_model_config(ROOT / "configs/models/tiny-llama.yaml")
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        torch.rand(1)
        save_random_weights(config, tmp_path / name, seed)
    a, b, c = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert a == b != c


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_checksum_is_of_every_bit_in_any_order(dtype: Any) -> None:
    parameters = torch.arange(100, dtype=dtype) / 3
    changed = parameters.clone()
    changed[7] = torch.nextafter(changed[7], changed[8])
    same, other = (synchronisation.checksum([each]) for each in (parameters.flip(0), changed))
    assert synchronisation.checksum([parameters]) == same != other


def test_a_writer_that_is_closed_writes_nothing_for_another_thread_that_still_has_it(tmp_path: Path) -> None:
    with metrics.MetricsWriter(tmp_path, _start(FINE_TUNING)) as writer:
        pass
    PROGRESS.own_times.append((3, 100))
    writer.write_pending()
    assert PROGRESS.own_times.pop() == (3, 100)


def test_a_failed_training_says_so_in_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), metrics.MetricsWriter(tmp_path, _start(FINE_TUNING)):
        raise ZeroDivisionError("by hand")
    end = json.loads((tmp_path / "metrics" / "rank0.jsonl").read_text().splitlines()[-1])
    assert (end["status"], end["reason"]) == ("failed", "ZeroDivisionError: by hand")


def test_fewer_processes_than_the_launcher_started_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    synchronisation.require_every_process(2)
    with pytest.raises(WorkError, match="started 2 processes but training sees 1"):
        synchronisation.require_every_process(1)


# The student's version


def test_the_functions_of_our_list_for_nsys_are_pytorchs() -> None:
    for entry in json.loads((ROOT / "configs/nsys/python-trace/pytorch.json").read_text()):
        for name in entry["functions"]:
            found = importlib.import_module(entry["module"])
            for part in name.split("."):
                found = getattr(found, part)
            assert callable(found)

"""--mixed-precision and --unified-memory in the training scripts: what they set and refuse, and that fp8 trains."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the training scripts need PyTorch")

from exercises.exercise_1_DDP import variants  # noqa: E402 - needs torch
from exercises.utils import unified_memory  # noqa: E402
from exercises.utils.arguments import TrainingArguments, parse_arguments  # noqa: E402
from exercises.utils.describe import describe, measured_peak_flops_per_s  # noqa: E402
from exercises.utils.models import build_model, load_model_config  # noqa: E402
from exercises.utils.precision import set_precision  # noqa: E402
from harness.common.errors import RequestError  # noqa: E402
from harness.common.model.model_config import Precision  # noqa: E402
from harness.common.run_folder.run_files import METRICS  # noqa: E402
from harness.observe import metrics  # noqa: E402
from tests.waiting import limit_s  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "configs/models/tiny-llama.yaml"
CPU = torch.device("cpu")
# Beside the environment, by scripts/test: transformers would import it in every other test too.
TORCHAO = Path(sys.prefix) / "torchao"
HAS_TORCHAO = find_spec("torchao") is not None


def parsed(*words: str) -> TrainingArguments:
    return parse_arguments(TrainingArguments, "", argv=["--run-dir", "r", "--model", str(TINY), *words])


@pytest.fixture
def with_torchao(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchao can be imported, here and in processes that the test starts."""
    if HAS_TORCHAO:
        return
    if not TORCHAO.is_dir():
        pytest.skip("needs torchao, which bash scripts/test fetches")
    monkeypatch.syspath_prepend(TORCHAO)
    monkeypatch.setenv("PYTHONPATH", str(TORCHAO))


@pytest.fixture
def usual_products() -> Iterator[None]:
    """PyTorch's setting for float32 products, put back afterwards."""
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    ("words", "precision", "bf16", "dtype"),
    [
        ((), "fp32", False, "float32"),
        (("--mixed-precision",), "bf16", True, "bfloat16"),
        (("--mixed-precision", "bf16"), "bf16", True, "bfloat16"),
        (("--mixed-precision", "tf32"), "tf32", False, "tf32"),
        (("--mixed-precision", "fp8"), "fp8", True, "float8"),
    ],
)
def test_a_run_says_what_it_computes_in(words: tuple[str, ...], precision: str, bf16: bool, dtype: str) -> None:
    asked = parsed(*words)
    assert (asked.precision, asked.mixed_precision) == (precision, bf16)
    assert describe(asked, load_model_config(TINY), 8, CPU).dtype == dtype


def a_gpu(monkeypatch: pytest.MonkeyPatch, name: str, capability: tuple[int, int]) -> Any:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: name)
    return torch.device("cuda", 0)


def test_only_tf32_rounds_the_products_of_float32(monkeypatch: pytest.MonkeyPatch, usual_products: None) -> None:
    device = a_gpu(monkeypatch, "NVIDIA H100", (9, 0))
    set_precision("tf32", device)
    assert torch.get_float32_matmul_precision() == "high"  # as a container's environment may have it from the start
    others: tuple[Precision, ...] = ("fp32", "bf16", "fp8")
    for precision in others:
        set_precision("tf32", device)
        set_precision(precision, device)
        assert torch.get_float32_matmul_precision() == "highest"


def test_what_a_device_cannot_is_one_sentence(monkeypatch: pytest.MonkeyPatch, usual_products: None) -> None:
    with pytest.raises(RequestError, match="this training runs on CPUs: use --mixed-precision fp32"):
        set_precision("tf32", CPU)
    with pytest.raises(RequestError, match=r"tf32 needs GPUs from Ampere .*Tesla V100: use --mixed-precision fp32"):
        set_precision("tf32", a_gpu(monkeypatch, "Tesla V100", (7, 0)))
    with pytest.raises(RequestError, match=r"fp8 needs GPUs from Hopper .*A100: use --mixed-precision bf16"):
        set_precision("fp8", a_gpu(monkeypatch, "NVIDIA A100", (8, 0)))
    set_precision("tf32", a_gpu(monkeypatch, "NVIDIA A100", (8, 0)))


def test_a_training_asks_its_device_for_the_precision(tmp_path: Path) -> None:
    script = ROOT / "exercises/exercise_1_DDP/train.py"
    argv = [sys.executable, str(script), "--run-dir", str(tmp_path), "--model", str(TINY), "--mixed-precision", "tf32"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=limit_s(60), check=False)
    assert (done.returncode, "only GPUs have TF32" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(
    ("module", "call", "said"),
    [
        ("torchao.float8", lambda: variants.in_fp8(None, CPU), "--mixed-precision fp8: this Python has no torchao"),
        ("rmm", lambda: unified_memory.use(0), "--unified-memory: this Python has no RMM"),
    ],
)
def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, module: str, call: Any, said: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(RequestError, match=said):
        call()


@pytest.fixture
def rmm(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """RMM and CUDA as far as they are asked, on a GH200; what they were asked, in order."""
    asked: list[str] = []

    def noted(what: str, answer: Any = None) -> Any:
        def called(*words: object, **named: object) -> Any:
            asked.append(f"{what} {[*words, *named.values()]}")
            return answer

        return called

    counting = SimpleNamespace(allocation_counts=SimpleNamespace(peak_bytes=5))
    mr = SimpleNamespace(
        get_per_device_resource=lambda device: f"pool of {device}",
        StatisticsResourceAdaptor=noted("counts", counting),
        set_per_device_resource=lambda device, resource: asked.append(f"uses {device} {resource is counting}"),
    )
    package, allocators = ModuleType("rmm"), ModuleType("rmm.allocators.torch")
    package.__dict__.update(mr=mr, reinitialize=noted("reinitialize"))
    allocators.__dict__["rmm_torch_allocator"] = "RMM's"
    for name, module in {"rmm": package, "rmm.allocators": package, "rmm.allocators.torch": allocators}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda.memory, "change_current_allocator", noted("allocates"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "NVIDIA GH200 120GB")
    monkeypatch.setattr(metrics, "other_allocators", [])
    monkeypatch.setattr(unified_memory, "other_allocators", metrics.other_allocators)
    return asked


def test_unified_memory_is_this_ranks_and_counted_by_rmm(rmm: list[str]) -> None:
    assert not metrics.other_allocators
    unified_memory.use(3)
    assert rmm == ["reinitialize [True, True, 3]", "counts ['pool of 3']", "uses 3 True", 'allocates ["RMM\'s"]']
    assert metrics.peak_memory_bytes() == 5
    assert measured_peak_flops_per_s(torch.device("cuda"), "bfloat16") is None


def test_unified_memory_is_for_gh200(rmm: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "NVIDIA H100 80GB HBM3")
    with pytest.raises(RequestError, match="--unified-memory needs GH200, and this is NVIDIA H100 80GB HBM3"):
        unified_memory.use(0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RequestError, match="this training runs on CPUs: leave it out"):
        unified_memory.use(0)


def test_the_layers_of_odd_sizes_and_the_output_stay_as_they_are() -> None:
    layer = torch.nn.Linear(32, 48)
    assert variants.is_converted(layer, "model.layers.0.mlp.up_proj")
    assert not variants.is_converted(layer, "lm_head")
    assert not variants.is_converted(layer, "base_model.lm_head")
    assert not variants.is_converted(torch.nn.Linear(32, 40), "up_proj")
    assert not variants.is_converted(torch.nn.Embedding(32, 48), "embed_tokens")


@pytest.mark.usefixtures("with_torchao")
def test_all_matrices_of_the_layers_become_torchaos() -> None:
    model = build_model(load_model_config(TINY), None, False)
    before = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    linear = {name for name, part in model.named_modules() if isinstance(part, torch.nn.Linear)}
    converted = variants.in_fp8(model, CPU)
    kinds = {name: type(part).__name__ for name, part in converted.named_modules()}
    assert {name for name, kind in kinds.items() if kind == "Float8Linear"} == linear - {"lm_head"}
    assert kinds["lm_head"] == "Linear"
    # the same weights, in float32
    assert {name: parameter.data_ptr() for name, parameter in converted.named_parameters()} == before
    assert {parameter.dtype for parameter in converted.parameters()} == {torch.float32}


def losses(precision: Precision) -> list[float]:
    """Of 8 steps on one batch, from the same weights."""
    torch.manual_seed(0)
    model = build_model(load_model_config(TINY), None, False)
    tokens = torch.randint(0, 1000, (2, 32))
    if precision == "fp8":
        model = variants.in_fp8(model, CPU)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    found = []
    for _ in range(8):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


@pytest.mark.usefixtures("with_torchao")
@pytest.mark.train
@pytest.mark.long
def test_fp8_learns_as_fp32_does_and_not_the_same() -> None:
    exact, rounded = losses("fp32"), losses("fp8")
    assert exact != rounded
    learned = exact[0] - exact[-1]
    assert learned > 0.4
    assert rounded == pytest.approx(exact, abs=learned / 20)


@pytest.mark.usefixtures("with_torchao")
@pytest.mark.train
@pytest.mark.long
def test_the_script_trains_in_fp8(tmp_path: Path) -> None:
    script, run = ROOT / "exercises/exercise_1_DDP/train.py", tmp_path / "run"
    words = [
        "--run-dir",
        str(run),
        "--model",
        str(TINY),
        *["--device", "cpu", "--steps", "3", "--mixed-precision", "fp8"],
    ]
    done = subprocess.run(
        [sys.executable, str(script), *words], capture_output=True, text=True, check=False, timeout=limit_s()
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in METRICS.path(run, 0).read_text(encoding="utf-8").splitlines()]
    assert (lines[0]["dtype"], lines[-1]["status"], lines[-1]["steps"]) == ("float8", "completed", 3)

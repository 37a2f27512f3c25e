"""Whose code a Python function is, and where, from the names that profilers give."""

from __future__ import annotations

import pytest

from harness.traces.python_functions import Owner, python_function


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        ("train.py", Owner.USER), ("/home/me/lab/train.py", Owner.USER), ("./train.py", Owner.USER),
        ("../src/data.py", Owner.USER), ("models/resnet.py", Owner.USER), ("datasets/coco.py", Owner.USER),
        ("<ipython-input-5-ab12>", Owner.USER), ("/tmp/ipykernel_77/123.py", Owner.USER),
        ("C:\\me\\train.py", Owner.USER), ("/home/me/Megatron-LM/pretrain_gpt.py", Owner.USER),
        ("/home/me/transformers/examples/run_clm.py", Owner.USER), ("/workspace/profile.py", Owner.USER),
        ("transformers/trainer.py", Owner.FRAMEWORK), ("vllm/v1/worker/gpu_model_runner.py", Owner.FRAMEWORK),
        ("/home/me/Megatron-LM/megatron/core/tensor.py", Owner.FRAMEWORK),
        ("/workspace/sglang/python/sglang/srt/scheduler.py", Owner.FRAMEWORK),
        ("/opt/venv/lib/python3.12/site-packages/timm/data/loader.py", Owner.FRAMEWORK),
        ("/opt/venv/lib/python3.12/site-packages/anything/x.py", Owner.LIBRARY),
        ("/opt/venv/lib/python3.12/site-packages/harness/files/exercises/exercise_1_DDP/train.py", Owner.USER),
        ("/usr/lib/python3/dist-packages/numpy/core.py", Owner.LIBRARY),
        ("/opt/conda/lib/python3.10/threading.py", Owner.LIBRARY), ("threading.py", Owner.LIBRARY),
        ("multiprocessing/pool.py", Owner.LIBRARY), ("torch/nn/modules/module.py", Owner.LIBRARY),
        ("PIL/Image.py", Owner.LIBRARY), ("<string>", Owner.LIBRARY), ("<frozen importlib._bootstrap>", Owner.LIBRARY),
        ("<eval_with_key>.50", Owner.LIBRARY), ("/tmp/torchinductor_root/ob/cob.py", Owner.LIBRARY),
    ],
)  # fmt: skip
def test_whose_code_a_file_is(path: str, owner: Owner) -> None:
    found = python_function(f"{path}(120): preprocess")
    assert (found.file, found.line, found.function, found.owner) == (path, 120, "preprocess", owner)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("<built-in method zoom of module object at 0x7f>", "zoom"),
        ("<built-in method copy_ of Tensor object at 0x7f>", "Tensor.copy_"),
        ("<built-in function linear>", "linear"),
        ("<built-in method  of pybind11_builtins.pybind11_detail object at 0x7f>", "a function of C++"),
        ("nn.Module: Linear_3", "nn.Module: Linear_3"),
    ],
)  # fmt: skip
def test_what_has_no_file_is_a_librarys(name: str, function: str) -> None:
    found = python_function(name)
    assert (found.file, found.line, found.function, found.owner) == (None, None, function, Owner.LIBRARY)

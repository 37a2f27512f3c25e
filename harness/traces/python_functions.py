"""Names of Python functions as profilers write them: their file, line and function, and whose code it is."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from harness.common.paths import INSTALLED_EXERCISES

_CALL = re.compile(r"(?P<file>.+)\((?P<line>\d+)\): (?P<function>.*)", re.DOTALL)
_BUILT_IN = re.compile(r"<built-in (?:method|function) (?P<function>.*?)(?: of (?P<of>.*?)(?: object at 0x\w+)?)?>")
_NO_TYPE = re.compile(r"(?:type|module|PyCapsule|pybind11_builtins\..*)\Z")  # says nothing about a method
_INSTALLED = re.compile(r"(?<![^/])(?:site-packages|dist-packages|lib(?:64)?/python\d(?:\.\d+)?|torchinductor_\w+)/")
_NOTEBOOK = re.compile(r"<ipython-input-|<stdin>|(?:^|/)ipykernel_\d+/")
# The names of packages, as they are imported.
_FRAMEWORK_NAMES = """
accelerate aphrodite axolotl catalyst colossalai composer deepspeed detectron2 diffusers fairseq fairseq2 fastai
fairscale flair ignite keras lightning lightning_fabric litgpt llamafactory lmdeploy megatron mmcv mmdet mmengine
mmpretrain mmseg monai nanotron nemo olmo opacus openrlhf optimum peft pytorch_lightning ray
sentence_transformers setfit sglang skorch speechbrain spacy tensorrt_llm timm torch_geometric torchrec
torchrl torchtitan torchtune transformer_lens transformers trl ultralytics unsloth verl vllm xtuner
"""
_LIBRARY_NAMES = """
absl aiohttp aiter albumentations anyio apex attr attrs av bitsandbytes boto3 botocore braceexpand causal_conv1d
certifi charset_normalizer click cloudpickle comet_ml cudf cuml cupy cv2 cython dask decord deep_gemm deep_ep
dill dgl docutils einops etils faiss fastapi fbgemm_gpu filelock flash_attn flash_mla flashinfer
flax fsspec functorch gcsfs gin google gql grpc h11 h5py httpcore httpx huggingface_hub hydra idna imageio
importlib_metadata ipykernel IPython jax jaxlib jinja2 joblib jsonschema kornia librosa liger_kernel lmdb loguru
mamba_ssm markupsafe marshmallow matplotlib ml_dtypes mlflow mpi4py mpmath msgpack msgspec multiprocess neptune
networkx nltk numba numexpr numpy nvidia nvtx ogb omegaconf onnx onnxruntime open_clip openai opt_einsum optree
orjson packaging pandas parso PIL pip pkg_resources platformdirs plotly polars prometheus_client prompt_toolkit psutil
pyarrow pybind11 pycocotools pydantic pydantic_core pydub pydevd pygments pynvml pytest pyximport redis regex requests
rich s3fs sacremoses safetensors scipy sentencepiece sentry_sdk setuptools simplejson six skimage sklearn sniffio
soundfile sqlalchemy starlette submitit sympy tensorboard tensorboardX tensordict tensorflow tensorstore
termcolor threadpoolctl tiktoken tokenizers torch torch_cluster torch_scatter torch_sparse torch_tensorrt torch_xla
torchao torchaudio torchdata torchmetrics torchsnapshot torchtext torchvision tornado tqdm traitlets
transformer_engine triton triton_kernels typeguard typer typing_extensions urllib3 uvicorn uvloop wandb
webdataset websockets wrapt xarray xformers yaml yarl zarr zmq zstandard
"""
_PYTHON = sys.stdlib_module_names - {"cmd", "code", "profile", "trace"}  # rather the name of somebody's script


class Owner(IntEnum):
    """Whose code a function is."""

    USER = 0
    FRAMEWORK = 1  # runs trainings and inference in the user's place: transformers, vLLM, DeepSpeed
    LIBRARY = 2  # Python's own, torch and everything below a framework


@dataclass(frozen=True, slots=True)
class PythonFunction:
    """A function in a Python program."""

    file: str | None  # as recorded: Kineto leaves out the folders that Python searches for modules
    line: int | None  # of its definition; None: not recorded, as in nsys' samples
    function: str
    owner: Owner


_FRAMEWORKS, _LIBRARIES = frozenset(_FRAMEWORK_NAMES.split()), frozenset(_LIBRARY_NAMES.split())


@lru_cache(maxsize=1 << 16)
def python_function(name: str) -> PythonFunction:
    """The function that a span of kind PYTHON is named after.

    >>> python_function("/home/me/train.py(12): main")
    PythonFunction(file='/home/me/train.py', line=12, function='main', owner=<Owner.USER: 0>)
    >>> python_function("transformers/pipelines/video_classification.py(120): preprocess").owner
    <Owner.FRAMEWORK: 1>
    >>> python_function("threading.py(937): _bootstrap").owner
    <Owner.LIBRARY: 2>
    >>> python_function("<built-in method astype of numpy.ndarray object at 0x7f12>").function
    'numpy.ndarray.astype'
    """
    call = _CALL.fullmatch(name)
    if call:
        file = call["file"]
        return PythonFunction(file, int(call["line"]) or None, call["function"], owner_of(file.replace("\\", "/")))
    built_in = _BUILT_IN.fullmatch(name)
    if built_in:
        of = built_in["of"] or ""
        prefix = f"{of}." if of and not _NO_TYPE.match(of) else ""
        name = prefix + (built_in["function"] or "a function of C++")
    return PythonFunction(None, None, name, Owner.LIBRARY)


def owner_of(path: str) -> Owner:
    """Whose code a file is, by its path alone.

    Kineto leaves out the folders that Python searches, so a path may begin with a package's name; the file of a module
    that is in no package is Python's own or the user's.
    """
    if _NOTEBOOK.search(path) or INSTALLED_EXERCISES in path:
        return Owner.USER
    if path.startswith("<"):
        return Owner.LIBRARY  # <string>, <frozen os>, <eval_with_key>.7: made by a library
    installed = max((found.end() for found in _INSTALLED.finditer(path)), default=0)
    if installed:
        return Owner.FRAMEWORK if path[installed:].split("/", maxsplit=1)[0] in _FRAMEWORKS else Owner.LIBRARY
    *folders, file = path.split("/")
    if not folders:
        return _of_package(file.removesuffix(".py"))
    return _of_package(folders[0]) if folders[0].isidentifier() else _of_checkout(folders)


def _of_package(name: str) -> Owner:
    if name in _FRAMEWORKS:
        return Owner.FRAMEWORK
    return Owner.LIBRARY if name in _LIBRARIES or name in _PYTHON else Owner.USER


def _of_checkout(folders: list[str]) -> Owner:
    """A package in a checkout of its own project: …/Megatron-LM/megatron/core. A script beside it is the user's."""
    for place, name in enumerate(folders):
        if any(above.lower().split("-")[0] == name for above in folders[:place]):
            return _of_package(name)
    return Owner.USER

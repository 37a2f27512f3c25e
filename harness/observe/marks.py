"""Which part of the job's time a function belongs to, by its name, its file and the object that it makes.

The sampler of the main thread asks once per function. Knows no PyTorch before the training has imported it.
"""

from __future__ import annotations

import re
import sys
from types import CodeType, FrameType
from typing import Any, NamedTuple

from harness.common.run_folder.job_parts import (
    CHECKPOINTS,
    COMPILATION,
    DATA,
    EVALUATION,
    FIRST_STEP,
    IMPORTS,
    MEETING,
    MODEL,
    TRACES,
)

_IMPORT = "<frozen importlib._bootstrap>"
_FUNCTIONS: tuple[tuple[str, bool, str, str], ...] = (  # part, strong, file, function
    (TRACES, True, r"torch/profiler/profiler\.py$", r"(start|stop|prepare)(_trace)?|export_\w+|_transit_action"),
    (TRACES, True, r"harness/observe/capture\.py$", r"begin|end|_write|_start_nsys|_stop_nsys"),
    (
        MEETING,
        True,
        r"torch/distributed/distributed_c10d\.py$",
        r"init_process_group|new_group|\w*barrier|split_group|(all_gather|broadcast|gather|scatter)\w*|all_reduce",
    ),
    (MEETING, True, r"torch/distributed/(rendezvous|device_mesh)\.py$", r"[a-z]\w*"),
    (MEETING, True, r"torch/distributed/utils\.py$", r"_verify_param\w+|_sync_(module|params)\w+"),
    (CHECKPOINTS, True, r"torch/serialization\.py$", "save"),
    (CHECKPOINTS, True, r"torch/distributed/checkpoint/state_dict_saver\.py$", r"\w*save\w*"),
    (CHECKPOINTS, True, r"safetensors/\w+\.py$", r"save\w*"),
    (CHECKPOINTS, True, r"-packages/", r"save_(pretrained|checkpoint|state|model|weights)|_save(_checkpoint)?"),
    (DATA, True, r"torch/utils/data/dataloader\.py$", r"__init__|__iter__|__next__|_get_iterator"),
    (DATA, True, r"-packages/(datasets|webdataset|torchvision/datasets|streaming)/", r"[a-z_]\w*"),
    (DATA, True, r"transformers/\w*tokenization\w*\.py$|/tokenization_\w+\.py$", r"[a-z_]\w*"),
    (COMPILATION, True, r"torch/_dynamo/convert_frame\.py$", r"\w*compile\w*|__call__"),
    (COMPILATION, True, r"torch/_inductor/compile_fx\.py$", r"\w*compile\w*"),
    (COMPILATION, True, r"triton/compiler/compiler\.py$", r"compile"),
    (FIRST_STEP, True, r"torch/utils/cpp_extension\.py$", r"load\w*|_jit_compile|_write_ninja\w+"),
    (MODEL, True, r"torch/nn/modules/module\.py$", r"load_state_dict|to|cuda|half|bfloat16|float|double|_apply"),
    (MODEL, True, r"torch/nn/init\.py$", r"\w+"),
    (MODEL, True, r"torch/optim/\w+\.py$", "__init__"),
    (MODEL, True, r"torch/nn/parallel/distributed\.py$", "__init__"),
    (MODEL, True, r"torch/distributed/checkpoint/state_dict_loader\.py$", r"\w*load\w*"),
    (MODEL, True, r"-packages/", r"from_(pretrained|config)|load_(checkpoint|state|model|pretrained\w*)|fully_shard"),
    (MODEL, True, r"accelerate/accelerator\.py$", r"prepare\w*"),
    (MODEL, True, r"deepspeed/__init__\.py$", "initialize"),
    (MODEL, False, r"torch/serialization\.py$", "load"),
    (MODEL, False, r"safetensors/\w+\.py$|huggingface_hub/", r"[a-z_]\w*"),
    (DATA, False, r"pandas/io/|numpy/lib/\w*npyio|pyarrow/|/h5py/|/PIL/|torchaudio/", r"[a-z_]\w*"),
    (DATA, False, r"/(json/__init__|csv|gzip|bz2|lzma|zipfile|tarfile)\.py$|/(zipfile|urllib)/", r"[a-z_]\w*"),
)
_RULES = tuple((part, strong, re.compile(file), re.compile(name)) for part, strong, file, name in _FUNCTIONS)
_BY_NAME = (  # functions and methods of the user's own
    (MODEL, re.compile(r"load_?(checkpoint|ckpt|snapshot)|resume|init_?weights|reset_parameters", re.I)),
    (CHECKPOINTS, re.compile(r"(^|_)(save|checkpoint|ckpt|snapshot)", re.I)),
    (EVALUATION, re.compile(r"^_?(run_)?(eval|evaluat|valid|test)\w*", re.I)),
    (
        MODEL,
        re.compile(r"(build|create|make|load|init|get|setup|construct|prepare)_?\w*(model|net|network|weights)", re.I),
    ),
    (DATA, re.compile(r"(^|_)(data|dataset|dataloader|loader|corpus|tokeni[sz]\w*|preprocess\w*)s?($|_)", re.I)),
    (DATA, re.compile(r"^_?(load|read|fetch|download|parse|tokeni[sz]e)_\w+", re.I)),
)


class FunctionMark(NamedTuple):
    """What is known of a function. users: it is the user's own. part: of the job's time that it belongs to; empty:
    none. strong: also if a function that called it belongs to another. imports: its first argument names a module."""

    users: bool
    part: str = ""
    strong: bool = True
    imports: bool = False


def subject_of(frame: FrameType) -> Any:
    """What a frame is about: the name of a module that is imported, the class of an object that is made; else None."""
    code = frame.f_code
    if code.co_argcount and (code.co_name == "__init__" or code.co_filename == _IMPORT):
        first = frame.f_locals.get(code.co_varnames[0])
        return first if isinstance(first, str) else type(first)
    return None


def kind_of(code: CodeType, users: bool, subject: Any) -> FunctionMark | None:
    """What is known of a function; None: it is not the user's, and of no part. subject: as `subject_of` gives it."""
    name, file = code.co_name, code.co_filename
    if file == _IMPORT:
        return FunctionMark(False, IMPORTS, imports=True) if name == "_find_and_load" else None
    if name == "__init__" and isinstance(subject, type):
        part = _made(subject)
        if part:
            return FunctionMark(users, part)
    if users:
        part = next((part for part, pattern in _BY_NAME if pattern.search(name)), "")
        return FunctionMark(True, part, strong=False)
    for part, strong, of_file, of_name in _RULES:
        if of_name.fullmatch(name) and of_file.search(file):
            return FunctionMark(False, part, strong)
    return None


def _made(kind: type) -> str:
    """The part in which objects of a class are made."""
    torch = sys.modules.get("torch")
    module = getattr(getattr(torch, "nn", None), "Module", None)
    if module is not None and issubclass(kind, module):
        return MODEL
    data = getattr(getattr(getattr(torch, "utils", None), "data", None), "Dataset", None)
    named = re.search(r"dataset|corpus|dataloader|datamodule", kind.__name__, re.I)
    return DATA if named or (data is not None and issubclass(kind, data)) else ""

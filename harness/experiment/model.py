"""A model as the launcher knows it: the numbers of one file in configs/models, or of a checkpoint's config.json. Knows
no framework: building the network is the training script's business."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, ValidationError
from pydantic.dataclasses import dataclass

from harness.common.errors import RequestError, nearest_or_list
from harness.common.model.model_config import ModelConfig, ModelDefaults
from harness.common.paths import COMMAND, CONFIGS, expanded
from harness.common.system.bounded_read import BoundedReadError, read_bounded_json
from harness.experiment.yaml_file import read_yaml

MODELS = CONFIGS / "models"

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"  # of a name on the hub, and safe as a folder's
_STRICT = ConfigDict(extra="forbid", defer_build=True, protected_namespaces=())

# Of a checkpoint's config.json: fields that we call the same, and those of some architectures.
_NEEDED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "max_position_embeddings")
_USUAL = {"rms_norm_eps": 1e-5, "tie_word_embeddings": False}


def _own_part(name: str) -> str:
    """The model's part of a name on the hub, without the owner's: it names the run's folder."""
    found = re.fullmatch(f"(?:{_PART}/)?({_PART})", name)
    if found is None:
        raise ValueError(
            f"got {name!r}, takes NAME or OWNER/NAME as on Hugging Face, of letters, digits and ._- "
            "beginning with a letter or digit"
        )
    return found[1]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Model(ModelConfig):
    """One model file, validated."""

    hub_name: Annotated[str, AfterValidator(_own_part)]

    def __post_init__(self) -> None:
        for name, value in (vars(self) | vars(self.defaults)).items():
            least = 8 if name.endswith("seq_length") else 1
            if type(value) is int and value < least:
                raise ValueError(f"field {name}: must be at least {least}, not {value}")


def model_names() -> list[str]:
    """The models that come with the harness."""
    return sorted(p.stem for p in MODELS.glob("*.yaml"))


def find_model(name_or_path: str) -> tuple[Model, Path | None, Path | None]:
    """(the model, its file if it is one of ours, the checkpoint folder if one was given). A user's own file is not
    given: it may change while a job waits, and the run trains what was validated here. Raises RequestError: the name,
    file or folder does not exist, or does not describe a model."""
    if name_or_path in model_names():
        path = MODELS / f"{name_or_path}.yaml"
        return _validated(path, read_yaml(path, "model file")), path, None
    path = expanded(name_or_path)
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except OSError as error:
        raise RequestError(f"--model: {path} cannot be read ({error.strerror})") from None
    if is_folder:
        return _from_checkpoint(path), None, path.absolute()
    if path.suffix in (".yaml", ".yml") and is_file:
        return _validated(path, read_yaml(path, "model file")), None, None
    hint = nearest_or_list(name_or_path, model_names(), f"{COMMAND} help launch lists all models")
    raise RequestError(
        f"--model: {name_or_path!r} is neither a model of the harness, nor a model file, nor a checkpoint folder{hint}"
    )


def _validated(path: Path, data: Any) -> Model:
    try:
        return Model(**data)
    except (ValidationError, TypeError) as error:
        why = _first_of(error) if isinstance(error, ValidationError) else "must be a mapping of fields"
        raise RequestError(f"model file {path}: {why}") from None


def _first_of(error: ValidationError) -> str:
    first = error.errors()[0]
    said = first["msg"].removeprefix("Value error, ")
    return f"field {'.'.join(map(str, first['loc']))}: {said}" if first["loc"] else said


def _from_checkpoint(folder: Path) -> Model:
    config = folder / "config.json"
    # Of a run's name a part: not hidden, and without signs that a path or a shell reads.
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.name).strip("._-")[:96] or "checkpoint"
    try:
        raw = read_bounded_json(config)
        if "num_local_experts" in raw or "num_experts" in raw:
            raise RequestError(f"--model: {config} is of a mixture of experts: take a dense model")
        heads = int(raw["num_attention_heads"])
        return Model(
            name=folder.name,
            hub_name=safe,
            architecture=raw["model_type"],
            **{name: raw[name] for name in _NEEDED},
            **{name: raw.get(name, usual) for name, usual in _USUAL.items()},
            num_attention_heads=heads,
            num_key_value_heads=raw.get("num_key_value_heads") or heads,
            head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
            rope_theta=raw.get("rope_theta") or (raw.get("rope_parameters") or {}).get("rope_theta", 10000.0),
            defaults=ModelDefaults(seq_length=512, pretrain_seq_length=4096, micro_batch_size=1),
        )
    except OSError as error:
        raise RequestError(f"--model: {config} cannot be read ({error.strerror}): not a checkpoint folder") from None
    except BoundedReadError as error:
        raise RequestError(f"--model: {config} {error}") from None
    except ValidationError as error:
        raise RequestError(f"--model: {config} does not describe a decoder model ({_first_of(error)})") from None
    except (KeyError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise RequestError(f"--model: {config} does not describe a decoder model ({error!r})") from None

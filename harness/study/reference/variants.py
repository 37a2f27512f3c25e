"""A list of variants: which runs a reference consists of. One YAML file, validated on load; launches nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from harness.common.errors import RequestError, nearest, nearest_or_list
from harness.common.paths import CONFIGS, expanded
from harness.experiment.exercises import AnyExperiment, Experiment, Training
from harness.experiment.parse import validate
from harness.experiment.yaml_file import read_yaml
from harness.study.lessons import fixed_fields, is_asked, lesson_names, load_lesson

LISTS = CONFIGS / "references"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
NAME_TAKES = "letters, digits, dots, dashes and underscores, at most 80, the first a letter or a digit"


def plain_name(text: str) -> str:
    """The text, if it can name a folder anywhere. Raises ValueError."""
    if not NAME.fullmatch(text):
        raise ValueError(f"a name takes {NAME_TAKES}, not {text!r}")
    return text


PlainName = Annotated[str, AfterValidator(plain_name)]


class ListPart(BaseModel):
    """A piece of a list: unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Variant(ListPart):
    """One run of the list. lessons: those that it answers, together with another variant."""

    name: PlainName
    asks: AnyExperiment
    lessons: tuple[str, ...] = ()


class VariantList(ListPart):
    """A list. device: what its runs are about; runs on the other kind would answer other lessons."""

    name: PlainName
    title: str
    device: Literal["cpu", "gpu"]
    variants: tuple[Variant, ...] = Field(min_length=1)

    def only(self, names: tuple[str, ...]) -> VariantList:
        """The list with these variants alone; all of them without names.

        Raises:
            RequestError: it has no such variant.
        """
        known = [variant.name for variant in self.variants]
        for name in names:
            if name not in known:
                hint = nearest_or_list(name, known, "slurm.sh reference record --dry-run lists all")
                raise RequestError(f"--only: the list {self.name} has no variant {name!r}{hint}")
        chosen = tuple(each for each in self.variants if not names or each.name in names)
        return self.model_copy(update={"variants": chosen})


def list_names() -> list[str]:
    """The lists that come with the harness."""
    return sorted(path.stem for path in LISTS.glob("*.yaml"))


def load_list(name_or_path: str) -> VariantList:
    """A list by name, or from a file.

    Raises:
        RequestError: there is no such list, or its file is wrong.
    """
    is_path = "/" in name_or_path or name_or_path.endswith((".yaml", ".yml"))
    path = expanded(name_or_path) if is_path else LISTS / f"{name_or_path}.yaml"
    if not is_path and name_or_path not in list_names():
        near = nearest(name_or_path, list_names())
        raise RequestError(
            f"--list: there is no list {name_or_path!r}; there are {', '.join(list_names())}, or give a file"
            + (f": did you mean {near}?" if near else "")
        )
    found = _validated(path)
    wrong = list(_misfits(found))
    if wrong:
        raise RequestError("\n".join(f"list of variants {path}: {sentence}" for sentence in wrong))
    return found


def _validated(path: Path) -> VariantList:
    try:
        return VariantList(**read_yaml(path, "list of variants"))
    except (ValidationError, TypeError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
        where, said = ".".join(map(str, first["loc"])), str(first["msg"]).removeprefix("Value error, ")
        raise RequestError(f"list of variants {path}: {where}{': ' * bool(where)}{said}") from None


def _misfits(found: VariantList) -> Iterator[str]:
    """A sentence for each variant that is there twice, breaks a rule of its exercise, or answers no such lesson."""
    seen: dict[str, str] = {}
    names = set[str]()
    for variant in found.variants:
        if variant.name in names:
            yield f"variant {variant.name} is given twice"
        names.add(variant.name)
        twin = seen.setdefault(variant.asks.model_dump_json(), variant.name)
        if twin != variant.name:
            yield f"variants {twin} and {variant.name} ask for the same run: drop one"
        for rule in variant.asks.broken_rules():
            yield f"variant {variant.name}: {rule.sentence}"
        if isinstance(variant.asks, Training) and (variant.asks.faults or variant.asks.mystery):
            yield f"variant {variant.name}: a reference has no faults: drop them"
        for lesson in variant.lessons:
            yield from _lesson_misfits(variant, lesson, found.device)


def _lesson_misfits(variant: Variant, name: str, device: str) -> Iterator[str]:
    if name not in lesson_names():
        hint = nearest_or_list(name, lesson_names(), "slurm.sh lesson lists all")
        yield f"variant {variant.name}: there is no lesson {name}{hint}"
        return
    pair = load_lesson(name).pair(cpu=device == "cpu")
    if not any(is_asked(variant.asks, arm, fixed_fields(pair)) for arm in (pair.a, pair.b)):
        yield f"variant {variant.name}: lesson {name} asks for another run"


def at_site(asks: Experiment, defaults: Mapping[str, Any]) -> Experiment:
    """What a variant asks for, with the site's defaults if it leaves a field open, as in any launch there.

    Raises:
        RequestError: they do not go together; one line per reason.
    """
    known = type(asks).model_fields
    usual = {name: value for name, value in defaults.items() if name in known}
    given = {name: getattr(asks, name) for name in asks.model_fields_set}
    made, errors = validate(type(asks), {**usual, **given})
    if made is None:
        raise RequestError("\n".join(errors))
    return made

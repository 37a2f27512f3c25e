"""From words on a command line to a validated experiment, with all errors in one message. Knows options and
experiments; knows neither the command-line library nor any site."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from harness.common.display.printable import printable
from harness.common.errors import RequestError, nearest, unknown_flag
from harness.common.paths import COMMAND, CONFIGS
from harness.common.run_folder.job_folder import WORD
from harness.common.system.secrets import masked_words
from harness.experiment.exercises import EXERCISES, Experiment, OwnTraining, Training, listing
from harness.experiment.options import VALUE, Flag, Option, options_of
from harness.experiment.own import HOW_TO_TYPE
from harness.experiment.yaml_file import read_yaml

SLIDE = CONFIGS / "slide.yaml"

Given = Mapping[str, Any]
"""Field name → the word or fixed value that was given for it."""


@cache
def all_options() -> dict[str, list[tuple[type[Experiment], Option]]]:
    """Spelling → the (experiment, option) pairs that know it."""
    found: dict[str, list[tuple[type[Experiment], Option]]] = {}
    classes: list[type[Experiment]] = [*EXERCISES.values(), OwnTraining]
    for cls in classes:
        for option in options_of(cls):
            for name in option.flag.names:
                found.setdefault(name, []).append((cls, option))
    return found


def build_experiment(
    pairs: list[tuple[str, Any]],
    unknown: Iterable[str],
    spellings: Iterable[str],
    defaults: Given | None = None,
    given: Given | None = None,
) -> Experiment:
    """The experiment of a command line.

    Args:
    pairs: (spelling, value) as given, e.g. `("--nodes", "2")`, `("--mixed-precision", True)`.
    unknown: words that are not options.
    spellings: all that the command knows, for suggestions.
    defaults: the site's own. A default for a field that the exercise does not have is left out.
    given: of an own training the fields that no flag sets: the words after `--`, and where they were typed.

    Raises RequestError: one line per error.
    """
    words = list(unknown)
    if given is not None:
        errors = [_unknown_sentence(word, spellings) if word.startswith("-") else _after_dashes(word) for word in words]
        return _built(OwnTraining, pairs, errors, {**(defaults or {}), **given})
    errors = [_unknown_sentence(word, spellings) for word in words]
    number, complaint = _exercise(pairs)
    if number is None and (scripts := [word for word in words if word.endswith(".py")]):
        raise RequestError(_after_dashes(scripts[0]))
    if number is None:
        raise RequestError("\n".join([complaint, *errors, *_wrong_for_every_exercise(pairs)]))
    return _built(EXERCISES[number], pairs, errors, defaults or {})


def _built(cls: type[Experiment], pairs: list[tuple[str, Any]], errors: list[str], defaults: Given) -> Experiment:
    given, misplaced = flags_as_fields(cls, pairs)
    usual = {name: value for name, value in defaults.items() if name in cls.model_fields}
    experiment, wrong = validate(cls, usual | given)
    errors = [*errors, *misplaced, *wrong]
    if errors or experiment is None:
        raise RequestError("\n".join(errors))
    return experiment


def validate(cls: type[Experiment], given: Given) -> tuple[Experiment | None, list[str]]:
    """`given` as an experiment of `cls`, and a sentence for everything wrong with it (rules included)."""
    draft, bad, errors = _drafted(cls, given)
    errors += [rule.sentence for rule in draft.broken_rules() if not rule.fields & bad]
    return (None if errors else draft), errors


def values_of(cls: type[Experiment], given: Given) -> tuple[dict[str, Any], list[str]]:
    """`given` as the fields' own values, and a sentence for each that its field does not take; no rule is asked."""
    draft, bad, errors = _drafted(cls, given)
    return {name: getattr(draft, name) for name in given if name not in bad}, errors


def _drafted(cls: type[Experiment], given: Given) -> tuple[Experiment, set[str], list[str]]:
    """The experiment without the fields whose values are wrong, their names, and a sentence for each."""
    bad = {field for field in _numbers_of(cls) if not _plain(given.get(field))}
    own: dict[str, list[str]] = {}  # what a field's own validators said
    try:
        draft = cls(**{name: word for name, word in given.items() if name not in bad})
    except ValidationError as error:
        for each in error.errors():
            name = str(each["loc"][0])
            bad.add(name)
            if each["type"] == "value_error":
                own.setdefault(name, []).append(str(each["ctx"]["error"]))
        draft = cls(**{name: word for name, word in given.items() if name not in bad})
    wrong = [name for name in given if name in bad]
    return draft, bad, [each for name in wrong for each in _field_sentences(cls, name, given[name], own.get(name))]


@cache
def _numbers_of(cls: type[Experiment]) -> tuple[str, ...]:
    kinds = {option.field: option.info.annotation for option in options_of(cls)}
    return tuple(name for name, kind in kinds.items() if not choices_of(kind) and {int, float} & {*_leaves(kind)})


def _plain(word: object) -> bool:
    """False for a word that only Python reads as a number: `4_0`, one behind a blank, one in another script."""
    return not isinstance(word, str) or re.fullmatch(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?", word, re.IGNORECASE) is not None


def command_of(experiment: Experiment, site: str | None = None, defaults: Given | None = None) -> list[str] | None:
    """The words after `slurm.sh` that ask for this experiment, as on the slides: training flags after `--`. Of a
    training of the user's own, `run` with all flags before `--`; they ask for it in the folder where it was typed.

    site: as given to `--site`. defaults: the site's own. None: a default differs and no flag takes it back, or the
    experiment is a mystery, which no flags ask for.
    """
    if isinstance(experiment, Training) and experiment.mystery is not None:
        return None
    own = ["--", *experiment.command] if isinstance(experiment, OwnTraining) else None
    where: list[str] = ["-e", str(experiment.exercise)] if own is None else ["run"]
    training: list[str] = []
    usual = _usual(type(experiment), defaults or {})
    for option in options_of(type(experiment)):
        value = getattr(experiment, option.field)
        if value == getattr(usual, option.field) or option.field == "exercise":
            continue
        words = _written(option, value)
        if words is None:
            return None
        (where if option.flag.group == "where" else training).extend(words)
    where += ["--site", site] if site is not None else []
    if own is not None:
        return [*where, *training, *own]
    return [*where, *(["--", *training] if training else [])]


def asked_text(
    experiment: Experiment, typed: Sequence[str], site: str | None = None, defaults: Given | None = None
) -> str:
    """The flags that differ from the default, without secrets; of a mystery and where no flags ask for it, as typed."""
    if list(typed[:1]) == [WORD]:  # of a command that was not launched by us
        return shlex.join(masked_words(typed))
    words = masked_words(command_of(experiment, site, defaults) or list(typed))
    return shlex.join(words if isinstance(experiment, OwnTraining) else [word for word in words if word != "--"])


def _usual(cls: type[Experiment], defaults: Given) -> Experiment:
    """What a command without flags runs. Defaults that do not validate are left out."""
    try:
        return cls.model_validate({name: value for name, value in defaults.items() if name in cls.model_fields})
    except ValidationError:
        return cls.model_validate({})


def _written(option: Option, value: object) -> list[str] | None:
    """The words that set `value`; None if no flag does."""
    for name, meaning in option.flag.names.items():
        if meaning is not VALUE and meaning == value:
            return [name]
    spelled = [name for name, meaning in option.flag.names.items() if meaning is VALUE]
    if option.flag.alone is not None and option.flag.words[option.flag.alone] == value:
        return spelled
    if isinstance(value, tuple):
        return [word for each in value for word in (spelled[0], str(each))]
    return [spelled[0], str(value)] if spelled and value is not None else None


def _exercise(pairs: list[tuple[str, Any]]) -> tuple[int | None, str]:
    words = [v for k, v in pairs if k in ("-e", "--exercise")]
    if not words:
        return None, (
            f"-e/--exercise is missing: say which exercise to run ({listing()}), or name a training of your own, as in "
            f"{HOW_TO_TYPE}"
        )
    word = words[-1]
    if word in {str(n) for n in EXERCISES}:
        return int(word), ""
    return None, f"-e/--exercise: there is no exercise {word!r}; the exercises are {listing()}"


def _wrong_for_every_exercise(pairs: list[tuple[str, Any]]) -> list[str]:
    """The errors in the flags that all exercises take, if the exercise is not known."""
    cls, options = next(iter(EXERCISES.values())), all_options()
    shared = [(name, word) for name, word in pairs if cls in (home for home, _ in options.get(name, ()))]
    given, wrong = flags_as_fields(cls, shared)
    return [*wrong, *validate(cls, given)[1]]


def flags_as_fields(cls: type[Experiment], pairs: list[tuple[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Flags with their values as fields of `cls`, and a sentence for each that it does not have."""
    own = {name: option for option in options_of(cls) for name in option.flag.names}
    given: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    wrong = []
    for name, word in pairs:
        if name not in own:
            wrong.append(_misplaced_sentence(cls, name))
        elif name not in ("-e", "--exercise"):
            field, fixed = own[name].field, own[name].flag.names[name]
            if own[name].flag.repeats:
                given[field] = (*given.get(field, ()), *((word,) if isinstance(word, str) else word))
                continue
            meant = own[name].flag.words.get(word, word) if fixed is VALUE else fixed
            typed = f"{name} {word}" if fixed is VALUE else name
            if given.setdefault(field, meant) != meant:
                wrong.append(f"{spelled[field]} and {typed} exclude each other: drop one")
            spelled.setdefault(field, typed)
    return given, wrong


def _misplaced_sentence(cls: type[Experiment], name: str) -> str:
    homes = [number for number, home in EXERCISES.items() if home in (cls for cls, _ in all_options()[name])]
    if not homes:
        longer = [each for each, uses in all_options().items() if each.startswith(f"{name}-") and cls in dict(uses)]
        meant = f", or did you mean {longer[0]}?" if longer else ""
        return f"{name} is for a training of your own, as in {HOW_TO_TYPE}: drop it{meant}"
    *most, last = (f"{n} ({EXERCISES[n].title})" for n in homes)
    where = " and ".join([*([", ".join(most)] if most else []), last])
    number = cls.model_fields["exercise"].default
    belongs = f"{name} belongs to exercise {where}"
    if cls is OwnTraining:
        return f"{belongs}; a flag of your own script comes after its name: {HOW_TO_TYPE}"
    if not issubclass(cls, Training):
        return f"{belongs}; exercise {number} ({cls.title}) takes no training flags: drop it"
    if instead := cls.instead.get(name) or of_slide(name):
        return f"{belongs}; in exercise {number} {instead}"
    return f"{belongs}, not to exercise {number} ({cls.title}): drop it or use -e {homes[0]}"


def _after_dashes(word: str) -> str:
    return f"{printable(word)}: a training of your own comes after --, as in {HOW_TO_TYPE}"


def _unknown_sentence(word: str, known: Iterable[str]) -> str:
    if not word.startswith("-"):
        return f"unexpected word {word!r}: a flag begins with - ({COMMAND} help launch lists all flags)"
    if here := of_slide(word):
        return f"{printable(word.partition('=')[0])} is on the course's slide; here {here}"
    return unknown_flag(word, known, f"{COMMAND} help launch")


def of_slide(word: str) -> str:
    """What to type for an argument of the training script on the course's slide; empty: the slide does not have it."""
    name = word.partition("=")[0].lstrip("-")
    rows = (row for row in read_yaml(SLIDE, "the slide's command")["options"] if "here" in row)
    found = (row["here"] for row in rows if row["slide"].split()[0].lstrip("-") == name)
    return str(next(found, "")).replace("`", "")


def _field_sentences(cls: type[Experiment], field: int | str, word: object, sentences: list[str] | None) -> list[str]:
    """What is wrong with a field: what its own validators said, else what it takes."""
    option = next(o for o in options_of(cls) if o.field == field)
    usual = f"got {str(word)!r}, takes {allowed(option.info)}{_hint(option.info, word)}"
    return [f"{option.spelling}: {said}" for said in sentences or [usual]]


def allowed(info: FieldInfo) -> str:
    """What a field takes, in words: `a whole number ≥ 1`, `one of auto, nsys`."""
    flag = next((extra for extra in info.metadata if isinstance(extra, Flag)), None)
    choices = (flag.takes if flag else ()) or choices_of(info.annotation)
    if choices:
        return "one of " + ", ".join(map(str, choices))
    kinds = {*_leaves(info.annotation)}
    noun = "a whole number" if int in kinds else "a number" if float in kinds else "some text"
    bounds = {"≥": _bound(info, "ge"), ">": _bound(info, "gt"), "≤": _bound(info, "le")}
    limits = [f"{sign} {bound}" for sign, bound in bounds.items() if bound is not None]
    return " ".join([noun, " and ".join(limits)]).strip()


def _hint(info: FieldInfo, word: object) -> str:
    choices = [str(c) for c in choices_of(info.annotation)]
    near = nearest(str(word), choices)
    if near:
        return f": did you mean {near}?"
    low, high = _bound(info, "ge"), _bound(info, "le")
    try:
        number = float(str(word))
    except ValueError:
        return ""
    if low is not None and number < low:
        return f"; the nearest is {low}"
    return f"; the nearest is {high}" if high is not None and number > high else ""


def _bound(info: FieldInfo, name: str) -> Any:
    return next((m for c in _constraints(info) if (m := getattr(c, name, None)) is not None), None)


def _constraints(info: FieldInfo) -> Iterator[Any]:
    yield from info.metadata
    for part in (info.annotation, *get_args(info.annotation)):
        for extra in getattr(part, "__metadata__", ()):
            yield from extra.metadata if isinstance(extra, FieldInfo) else (extra,)


def _leaves(annotation: Any) -> Iterator[Any]:
    inner = get_args(annotation)
    if not inner:
        yield annotation
    for part in inner:
        yield from _leaves(part) if not isinstance(part, str | int | FieldInfo) else ()


def choices_of(annotation: Any) -> tuple[Any, ...]:
    """The texts that a field takes, where it takes no others; whether it may be unset is another matter."""
    if get_origin(annotation) in (Union, UnionType):
        inner = [part for part in get_args(annotation) if part is not NoneType]
        return choices_of(inner[0]) if len(inner) == 1 else ()
    return get_args(annotation) if get_origin(annotation) is Literal else ()

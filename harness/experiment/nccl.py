"""What NCCL does on the wire, as options: NCCL's own variables, and its log into the run's directory. Names and values:
NVIDIA's NCCL user guide, "Environment Variables". Knows no exercise and no cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel

from harness.common.run_folder.run_files import NCCL_LOGS
from harness.experiment.options import BrokenRule, Flag, InRun, options_of, switch

PREFIX = "NCCL_"
PLACE: Mapping[str, Any] = {"gpus_only": True, "rare": True, "group": "where"}  # of its options among the others
_LONGEST = 1000  # characters of a value: real ones, such as a list of network cards, have some 100
_OUR_OWN = {"DEBUG_FILE"}
_KEY = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
LOG_MEANING = "keep NCCL's log; the report then shows the transport of the messages"


def _setting(text: str) -> str:
    """`KEY=VALUE` without NCCL's prefix. Raises ValueError: it is none, or the variable is the harness's."""
    key, equals, given = text.partition("=")
    name = key.removeprefix(PREFIX)
    if not equals:
        raise ValueError(f"{text!r} has no value: write KEY=VALUE, such as ALGO=Ring for {PREFIX}ALGO")
    if not _KEY.fullmatch(name):
        capitals = name.upper().replace("-", "_").removeprefix(PREFIX)
        near = f": did you mean {capitals}?" if _KEY.fullmatch(capitals) else ""
        raise ValueError(
            f"{key!r} is not the name of a variable: it takes A to Z, 0 to 9 and _, begins with a letter and has at "
            f"most 64 characters, such as ALGO or {PREFIX}ALGO{near}"
        )
    if name in _OUR_OWN:
        raise ValueError(f"the harness itself sets {PREFIX}{name}: --nccl-debug keeps NCCL's log in the run")
    if not given.isprintable() or not 0 < len(given) <= _LONGEST:
        raise ValueError(f"{name} takes text on one line, of 1 to {_LONGEST} characters")
    return f"{name}={given}"


def _once(settings: tuple[str, ...]) -> tuple[str, ...]:
    """Each of them once. Raises ValueError: one variable gets two values."""
    found: dict[str, str] = {}
    for each in settings:
        key, _, given = each.partition("=")
        if found.setdefault(key, given) != given:
            raise ValueError(f"{key}={found[key]} and {each} set the same variable: drop one")
    return tuple(dict.fromkeys(settings))


Settings = Annotated[tuple[Annotated[str, AfterValidator(_setting)], ...], AfterValidator(_once)]


def log_flag(*more: str) -> Flag:
    """The flag that keeps NCCL's log in the run, a file for each process. more: subsystems that it tells of besides."""
    return switch(
        "--nccl-debug",
        env={
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": ",".join(("INIT", "GRAPH", "NET", "ENV", *more)),
            "NCCL_DEBUG_FILE": InRun(NCCL_LOGS.name.replace("*", "%h.%p")),  # NCCL fills in the host and the process
        },
        free=True,
        compared=False,
        **PLACE,
    )


def contradictions(base_model: BaseModel) -> Iterator[BrokenRule]:
    """The variables that a request sets twice and not alike. base_model: an experiment with these options."""
    seen: dict[str, tuple[str, str, object]] = {}
    for option in options_of(type(base_model)):
        given = getattr(base_model, option.field)
        for name, text in option.environment(given).items():
            written = f"{option.written(given)} {name.removeprefix(PREFIX)}={text}" if option.flag.repeats else ""
            field, first, other = seen.setdefault(name, (option.field, option.written(given), text))
            if other != text:
                yield BrokenRule(
                    {field, option.field},
                    f"{first} sets {name} to {other}, and {written or option.written(given)} to {text}: drop one",
                )

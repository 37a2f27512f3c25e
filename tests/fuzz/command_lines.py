"""Command lines made from the product's own tables of options: valid, nearly valid and hostile ones.

A line comes from numbers: the head draws the command, each part one piece of it. Without a part, the others stay: so a
line that fails can be made shorter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from random import Random
from typing import Any, NamedTuple, get_args

from harness.cli.command import Command, command_of
from harness.cli.commands import COMMANDS, LAUNCH, CommandEntry
from harness.common.faults.declared import FAULTS
from harness.experiment.exercises import EXERCISES
from harness.experiment.options import VALUE, options_of
from tests.fuzz.fence import Case
from tests.fuzz.hostile import NUMBERS, PATHS, TEXTS, nearly, odd_number, odd_text


class Choice(NamedTuple):
    """One option: its spellings, whether it takes a value, and values that it accepts as far as its table says."""

    names: tuple[str, ...]
    takes_value: bool
    good: tuple[str, ...] = ()


class Table(NamedTuple):
    """A command: the words that choose it, its options, how many arguments it takes, and good ones."""

    words: tuple[str, ...]
    options: tuple[Choice, ...]
    arguments: int = 0
    good: tuple[str, ...] = ()
    launches: bool = False


RUNS = ("last", "local-1", "local-2", "slurm-run", "torch", "traces/rank0.json.gz", "traces/one.sqlite", "traces")
SETTINGS = ("traces/site.yaml", "traces/sweep.yaml", "traces/model.yaml", "traces/data.json")
_WORDS = {
    "status": RUNS, "watch": RUNS, "logs": RUNS, "cancel": RUNS, "report": RUNS, "compare": RUNS,
    "check": (*RUNS, "-e 1 -n 1", "-e 1 --seed 2", "-e 0", "-e 3 --tp 2"), "whatif": RUNS,
    "lesson": ("1a", "1b", "2a", "3c"), "sites": ("local", "slurm", "leonardo", "traces/site.yaml"),
    "paraver": RUNS, "perfetto": RUNS, "export": ("csv", *RUNS), "sweep": ("traces/sweep.yaml", "gas", "hpz"),
    "answer": RUNS, "reveal": RUNS, "show": ("a",),
}  # fmt: skip
_VALUES = {
    "--site": ("local", "slurm", "leonardo", "marenostrum5", "traces/site.yaml"),
    "--model": ("tiny-llama", "mistral-7b", "llama-3.2-1b", "traces/model.yaml"),
    "--fault": tuple(FAULTS), "--time": ("00:10:00", "1-00:00:00", "00:00:01"), "--data": ("traces/data.json",),
    "--script": ("train.py", "traces/data.json"), "--list": ("workshop", "miniatures", "traces/sweep.yaml"),
    "--fail-above": ("5%", "0%", "100%"), "--fail-if": ("step_time > 5%", "mfu < 0.3", "idle >= 1e9 and mfu < 1"),
    "--nodes": ("1", "2"), "--level": ("1", "2"),
    "--python-trace": ("pytorch", "traces/trace-list.json", "traces/data.json"), "--capture-delay": ("1", "200"),
    "--capture-duration": ("1", "30"),
    "--cause": ("data", "straggler"), "--out": ("traces/out",),
    "--mixed-precision": ("fp32", "tf32", "bf16", "fp8"), "--nccl-p2p-level": ("LOC", "NVL", "SYS"),
    "--nccl": ("ALGO=Ring", "NCCL_IB_HCA=mlx5_0", "IB_DISABLE=0", "NET=IB", "DEBUG=INFO", "X=$(touch evil)", "ALGO"),
    "--reference": ("a",), "--metric": ("step_time", "mfu"),
}  # fmt: skip


@cache
def tables() -> tuple[Table, ...]:
    """Every command and part of a command, with all of its options."""
    launch = _table_of((), LAUNCH, COMMANDS[LAUNCH])
    return (launch, launch._replace(words=("-e", "1", "--plan")), *_tables_of(COMMANDS))


def _tables_of(entries: Mapping[str, CommandEntry], before: tuple[str, ...] = ()) -> Iterator[Table]:
    for name, entry in entries.items():
        words = (*before, name)
        if entry.function and name not in (LAUNCH, "observe"):
            yield _table_of(words, name, entry)
        yield from _tables_of(entry.parts, words)


def _table_of(words: tuple[str, ...], name: str, entry: CommandEntry) -> Table:
    command = command_of(name, entry)
    options: dict[tuple[str, ...], Choice] = {}
    params: list[Any] = [each for each in command.params if each.param_type_name == "option"]
    for param in params:
        names = (*param.opts, *param.secondary_opts)
        options[names] = Choice(names, not param.is_flag, _listed(command, param.name) or _good(names))
    arguments = sum(3 if each.nargs == -1 else 1 for each in command.params if each.param_type_name == "argument")
    return Table(words, tuple(options.values()), arguments, _WORDS.get(name, ()), bool(command.details.launch))


def _listed(command: Command, name: str) -> tuple[str, ...]:
    own = command.details.parameters
    return tuple(command.details.takes(name)[1]) if name in own else ()


def _good(names: Sequence[str]) -> tuple[str, ...]:
    known = next((_VALUES[name] for name in names if name in _VALUES), ())
    return known or _from_fields().get(names[-1], ()) or ("1", "2", "4")


@cache
def _from_fields() -> dict[str, tuple[str, ...]]:
    """Spelling → the words that its field lists."""
    found: dict[str, tuple[str, ...]] = {}
    for cls in EXERCISES.values():
        for option in options_of(cls):
            words = get_args(option.info.annotation)
            if words and all(isinstance(word, str) for word in words):
                found |= {name: words for name, meaning in option.flag.names.items() if meaning is VALUE}
    return found


HEADS = (0.6, 0.1, 0.25)  # how often a launch, a plan, a command that measures nothing; else one that does
MEASURING = frozenset({"report", "compare", "check", "whatif", "export", "doctor", "lesson", "reference"})


def command_line(head: int, parts: Sequence[int]) -> Case:
    """The command line of these numbers."""
    chance = Random(head)
    table = _table(chance)
    words = [*table.words]
    for _ in range(chance.choice((0, 1, 1, 1, 2)) if table.arguments else 0):
        words.append(_argument(chance, table))
    launch = table.launches and chance.random() < 0.9
    if launch:
        words += chance.choice((["-e", str(chance.choice(tuple(EXERCISES)))], ["-e1"], ["--exercise=3"]))
        words += ["--site", chance.choice(_VALUES["--site"])] if chance.random() < 0.5 else []
    for part in parts:
        words += _piece(Random(part), table)
    if launch and chance.random() < 0.9:
        words.insert(chance.randrange(len(table.words), len(words) + 1), "--dry-run")
    if words[:1] == ["watch"]:
        words.append("--once")  # it would wait for the run's end
    if chance.random() < 0.05 and words:
        words[0] = nearly(chance, words[0])
    return Case([words])


def _table(chance: Random) -> Table:
    share = chance.random()
    if share < sum(HEADS[:2]):
        return tables()[0 if share < HEADS[0] else 1]
    measures = share >= sum(HEADS)
    return chance.choice([t for t in tables()[2:] if (t.words[0] in MEASURING) == measures])


def _argument(chance: Random, table: Table) -> str:
    if table.good and chance.random() < 0.7:
        return chance.choice(table.good)
    return chance.choice(PATHS) if chance.random() < 0.5 else odd_text(chance)


def _piece(chance: Random, table: Table) -> list[str]:
    """One option with its value, or something that stands where an option may."""
    share = chance.random()
    if share < 0.05 or not table.options:
        return [odd_text(chance)]
    if share < 0.08:
        return [chance.choice(("--", "-", "---", "--=", "-=1", "--help", "-h", "="))]
    option = chance.choice(table.options)
    name = chance.choice(option.names)
    if share < 0.13:
        name = chance.choice((nearly(chance, name), name[: max(3, len(name) // 2)], name.upper()))
    if not option.takes_value:
        return [f"{name}={chance.choice(TEXTS)}"] if chance.random() < 0.05 else [name]
    if chance.random() < 0.03:
        return [name]
    value = _value(chance, option, name)
    if len(name) == 2 and chance.random() < 0.3:
        return [name + value]
    return [f"{name}={value}"] if chance.random() < 0.4 else [name, value]


def _value(chance: Random, option: Choice, name: str) -> str:
    share = chance.random()
    if name == "--fault" and share < 0.6:
        return _fault(chance)
    if share < 0.55:
        return chance.choice(option.good)
    if share < 0.7:
        return chance.choice(NUMBERS)
    if share < 0.8:
        return odd_number(chance)
    if share < 0.87:
        return chance.choice(PATHS)
    return nearly(chance, chance.choice(option.good)) if share < 0.93 else odd_text(chance)


def _fault(chance: Random) -> str:
    name = chance.choice(tuple(FAULTS))
    keys = [key.name for key in FAULTS[name].keys]
    parts = [f"{chance.choice(keys or ['ms'])}={_key_value(chance)}" for _ in range(chance.randrange(4))]
    return ",".join([name, *parts])


def _key_value(chance: Random) -> str:
    return chance.choice((chance.choice(NUMBERS), odd_number(chance), "1", "20", "0-1", "0;1", chance.choice(TEXTS)))

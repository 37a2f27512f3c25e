"""What the run asked for and measured, the lines of its code, and the commands that make a change. Knows no rule."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import PurePath
from typing import Any

from harness.analysis.labels import are_cpus
from harness.analysis.process.phases import Phase
from harness.analysis.summary import CodeLocation, LineShare, Summary, WhatIf
from harness.common.errors import RequestError
from harness.common.faults.fault import parse_fault
from harness.common.model.model_config import Sharding
from harness.common.paths import COMMAND, ROOT
from harness.common.run_folder.job_folder import WORD
from harness.experiment.base import AdviceNumbers, Experiment, Fields
from harness.experiment.exercises import experiment_of, resolved_experiment
from harness.experiment.options import options_of
from harness.experiment.own import OwnTraining
from harness.experiment.parse import asked_text, command_of, validate
from harness.replay.attribute.causes import CAUSES
from harness.replay.attribute.suspect import Cause
from harness.site.site import Site, load_site
from harness.theory.memory import state_bytes

_UNKNOWN = Experiment(exercise=-1)
_ROOM = 0.9  # of a device's memory that may be filled
MOST_SHOWN = 0.2  # of a loss, from which a line after the first one is shown with its source
COMPILED: Fields = {"compile": True}
FieldsOf = Callable[[Summary], Fields | None]


def resolved(s: Summary) -> Experiment | None:
    """The experiment with the values that site, machine and model added; None: not a run of the harness."""
    return resolved_experiment(s.experiment, s.run)


def asked_of(s: Summary) -> Experiment:
    """The experiment as it was resolved; for traces from elsewhere an experiment without options."""
    return resolved(s) or _UNKNOWN


def micro_batch(s: Summary) -> int | None:
    return next((t.micro_batch_size for t in s.training if t.micro_batch_size), None)


def measured(s: Summary) -> AdviceNumbers:
    """What an exercise's advice needs of the run's numbers."""
    return AdviceNumbers(are_cpus(s.devices), micro_batch(s), partial(_has_room, s))


def _has_room(s: Summary, sharding: Sharding) -> bool:
    """Whether the measured peak and the states that another sharding holds more fit into memory. False: not known."""
    asked, first = asked_of(s), s.training[0] if s.training else None
    room = min((m.memory_total_bytes for m in s.monitor if m.memory_total_bytes), default=0)
    peak = max((t.peak_memory_bytes or 0 for t in s.training), default=0)
    if asked.sharding is None or first is None or not (first.parameters and peak and room):
        return False
    parameters, ranks = first.parameters, first.world_size or len(s.training)
    held, holds = (
        state_bytes(parameters, ranks, sharding=one, bf16=asked.in_bf16 and one.startswith("zero")).total
        for one in (sharding, asked.sharding)
    )
    return peak + held - holds < _ROOM * room


def global_batch(s: Summary) -> int | None:
    """Samples per iteration over all ranks: as asked for, else the product of a pipeline's micro-batches."""
    asked, p = asked_of(s), s.pipeline
    if asked.batch_per_iteration:
        return asked.batch_per_iteration
    batch, size = micro_batch(s), s.world_size
    if p is None or p.stages is None or batch is None or size is None:
        return None
    return p.microbatches * batch * max(size // (p.stages * asked.stage_ranks), 1)


def lines_sentence(s: Summary, line_shares: Sequence[LineShare]) -> str:
    """The lines with their shares: "62 % of it is at train.py:42 in `train`, 20 % at data.py:7 in `load`."."""
    first, *others = line_shares
    more = "".join(f", {share_words(line)} at {line_words(s, line)}" for line in others)
    return f"{share_words(first)} of it is at {line_words(s, first)}{_way_words(s, first)}{more}."


def _way_words(s: Summary, line_share: LineShare) -> str:
    """What a line calls, and where it is called itself, as " (mostly in data.py:7 in `load`; called at …)"."""
    inside = [] if line_share.inside is None else [f"mostly at {place_words(s, line_share.inside)}"]
    called = [] if line_share.called_at is None else [f"called at {place_words(s, line_share.called_at)}"]
    return f" ({'; '.join([*inside, *called])})" if inside or called else ""


def line_words(s: Summary, line_share: LineShare, sign: str = "`") -> str:
    """The line as it is in a sentence: "train.py:42 in `train`". sign: around the function's name."""
    return place_words(s, line_share.where, sign)


def place_words(s: Summary, where: CodeLocation, sign: str = "`") -> str:
    inside = "" if where.function == "<module>" else f" in {sign}{_unquoted(where.function)}{sign}"
    return f"{_unquoted(short_file(s, where.file))}:{where.line}{inside}"


def _unquoted(name: str) -> str:
    """A name without the sign that begins and ends a command in a sentence."""
    return name.replace("`", "'")


def share_words(line_share: LineShare) -> str:
    """
    >>> from harness.analysis.summary import CodeLocation
    >>> share_words(LineShare(where=CodeLocation(file="a.py", line=1, function="f"), share=0.618))
    '62 %'
    """
    return f"{100 * line_share.share:.0f} %"


def short_file(s: Summary, file: str) -> str:
    """The path from the folder in which the training was started, or from this checkout; others as they are."""
    asked = asked_of(s)
    folders = [asked.start_in] if isinstance(asked, OwnTraining) and asked.start_in else []
    for folder in (*folders, str(ROOT)):
        if PurePath(file).is_relative_to(folder) and file != folder:
            return str(PurePath(file).relative_to(folder))
    return file


def shown_lines(line_shares: Sequence[LineShare]) -> list[LineShare]:
    return [line for i, line in enumerate(line_shares) if line.source and (i == 0 or line.share >= MOST_SHOWN)]


def is_ours(summary: Summary) -> bool:
    return _asked(summary) is not None


def changed_command(summary: Summary, fields: Fields) -> str | None:
    """The command of the run with these fields. None: as changed_experiment, or no flag asks for it at its site."""
    changed = changed_experiment(summary, fields)
    return None if changed is None else _command(summary, changed)


def same_command(summary: Summary) -> str | None:
    """The command for the summary's run again. None: the run is not one of ours, or no flag asks for it at its site."""
    asked = _asked(summary)
    return None if asked is None else _command(summary, asked)


def asked_words(summary: Summary) -> str:
    """What the run asked for, as its flags that differ from the default; empty for traces from elsewhere."""
    asked, run = experiment_of(summary.experiment), summary.run or {}
    if asked is None:
        return ""
    return asked_text(asked, list(run.get("command") or [])[1:], defaults=(run.get("site") or {}).get("defaults"))


def _command(summary: Summary, experiment: Experiment) -> str | None:
    if (place := _place(summary.run or {})) is None:
        return None
    words = command_of(experiment, defaults=((summary.run or {}).get("site") or {}).get("defaults"))
    if words is None:
        return None
    at = words.index("--") if "--" in words else len(words)
    return f"{COMMAND} {shlex.join([*words[:at], *place, *words[at:]])}"


def changed_experiment(summary: Summary, fields: Fields) -> Experiment | None:
    """The run's experiment with these fields. None: not one of ours, a broken rule, or no change."""
    asked = _asked(summary)
    if asked is None or not set(fields) <= set(type(asked).model_fields):
        return None
    changed, _ = validate(type(asked), asked.model_dump() | dict(fields))
    if changed is None or changed == asked or not _fits(summary, changed, fields):
        return None
    return changed


def in_lines(text: str, width: int) -> list[str]:
    """A command as lines to paste: broken between words, indented by two."""
    lines: list[str] = []
    for word in map(shlex.quote, shlex.split(text)):
        if lines and len(lines[-1]) + len(word) + 3 <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(f"  {'  ' * bool(lines)}{word}")
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def _asked(summary: Summary) -> Experiment | None:
    asked = experiment_of(summary.experiment)
    if asked is None or not summary.run or any(asked.broken_rules()):
        return None
    return None if list(summary.run.get("command") or [])[1:2] == [WORD] else asked


def _fits(summary: Summary, changed: Experiment, fields: Fields) -> bool:
    """Whether the changed experiment also keeps the rules with the recorded defaults, which follow other fields."""
    whole, recorded = changed.model_dump(), resolved(summary)
    filled = recorded.model_dump() if recorded else {}
    defaults = {n: v for n, v in filled.items() if whole[n] is None and n not in fields}
    defaults.pop("global_batch_size", None)  # its default follows the changed fields
    return validate(type(changed), whole | defaults)[0] is not None


def _place(run: Mapping[str, Any]) -> list[str] | None:
    """The typed flags of the site; for `run RUN`, which has no flags, those of its record. None: no flags give it."""
    typed = [str(word) for word in run.get("command") or []]
    if typed[1:2] == ["run"] and "--" not in typed:
        return _recorded_place(run.get("site") or {})
    flags = {"--site", *(name for option in options_of(Site) for name in option.flag.names)}
    argv: list[str] = []
    for word, following in pairwise([*typed, ""]):
        name, equals, _ = word.partition("=")
        if name in flags:
            argv += [word] if equals else [word, following]
    return argv


def _recorded_place(site: Mapping[str, Any]) -> list[str] | None:
    try:
        usual = load_site(str(site.get("name")))
    except RequestError:
        return None  # a user's own site file: its path was not recorded
    argv = ["--site", usual.name]
    for option in options_of(Site):
        value = site.get(option.field)
        if value is not None and value != getattr(usual, option.field):
            argv += [next(iter(option.flag.names)), str(value)]
    return argv


def without_faults(
    s: Summary, names: Collection[str], phase: str | None = None, ranks: Collection[int | None] | None = None
) -> Fields | None:
    """The field without the faults of these names that happen in the phase and on the ranks; None if none does."""
    asked: tuple[str, ...] = getattr(asked_of(s), "faults", ())
    kept = tuple(text for text in asked if not _is_meant(text, names, phase, ranks))
    return {"faults": kept} if len(kept) < len(asked) else None


def _is_meant(text: str, names: Collection[str], phase: str | None, ranks: Collection[int | None] | None) -> bool:
    try:
        fault = parse_fault(text)
    except RequestError:
        return False  # of another version of the harness
    elsewhere = phase is not None and fault.values.get("in", phase) != phase
    others = ranks is not None and fault.rank is not None and fault.rank not in ranks
    return fault.name in names and not elsewhere and not others


def _prompt_data(s: Summary) -> Fields | None:
    """Without its fault, else as its exercise advises for slow data."""
    advice = asked_of(s).on_purpose("data", measured(s))
    return without_faults(s, (Cause.DATA_STALL,)) or (advice.changes[0].fields if advice else None)


def _without(*causes: Cause, phase: Phase | None = None) -> FieldsOf:
    return lambda s: without_faults(s, causes, None if phase is None else phase.label)


def _bf16(s: Summary) -> Fields | None:
    """On GPUs only: few CPUs multiply faster in bf16."""
    return None if are_cpus(s.devices) or asked_of(s).in_bf16 else {"mixed_precision": True}


def _accumulated(times: int) -> FieldsOf:
    def fields(s: Summary) -> Fields | None:
        now: int | None = getattr(asked_of(s), "gradient_accumulation_steps", None)
        return {"gradient_accumulation_steps": times * now} if now else None

    return fields


def larger_micro_batch(s: Summary) -> Fields | None:
    """Twice the micro-batch; None where the micro-batch is not known."""
    batch = micro_batch(s)
    return asked_of(s).more_work(batch, global_batch(s)) if batch is not None else None


def more_micro_batches(s: Summary) -> Fields | None:
    """Twice the global batch at the same micro-batch; None where it is not known."""
    batch = global_batch(s)
    return {"global_batch_size": 2 * batch} if batch else None


FIELDS: dict[str, FieldsOf] = {
    "no-data-stall": _prompt_data,
    # the fault `gc` collects in forward
    "no-host-stall-forward": _without(Cause.HOST_STALL, Cause.GARBAGE, phase=Phase.FORWARD),
    "no-host-stall-backward": _without(Cause.HOST_STALL, phase=Phase.BACKWARD),
    "no-host-stall-optimizer": _without(Cause.HOST_STALL, phase=Phase.OPTIMIZER),
    "no-checkpoint": _without(Cause.CHECKPOINT),
    **{
        f"no-{name}": _without(*(other.cause for other in CAUSES.values() if other.find is entry.find))
        for name, entry in CAUSES.items()
        if entry.without
    },
    "no-extra-compute": _without(Cause.EXTRA_COMPUTE),
    "rank-like-others": _without(
        Cause.EXTRA_COMPUTE, Cause.LONG_SEQUENCES, Cause.NOISY_NEIGHBOUR, Cause.SLOW_DEVICE, Cause.UNEVEN_STAGES
    ),
    "gas-x2": _accumulated(2),
    "gas-x4": _accumulated(4),
    "micro-batch-x2": larger_micro_batch,
    "micro-batches-x2": more_micro_batches,
    "one-bucket": _without(Cause.SMALL_BUCKETS),
    "products-x2": _bf16,
    "fused": lambda s: COMPILED,
    **dict.fromkeys(("no-tiny-kernels", "no-communication"), lambda s: None),
}


def fields_of(s: Summary, what_if: WhatIf) -> Fields | None:
    """What to change in the summary's experiment; None: no option does it."""
    known = FIELDS.get(what_if.name)
    return known(s) if known else None


def command_of_what_if(s: Summary, what_if: WhatIf) -> str | None:
    """The command of the run with this change. None: no option of the run does it."""
    fields = fields_of(s, what_if)
    return None if fields is None else changed_command(s, fields)

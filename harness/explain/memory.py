"""Growth of memory in sentences: by how much, on which ranks, until when there is room, what keeps it, and what to
change."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.memory_fit import fit
from harness.analysis.memory_growth import FEWEST
from harness.analysis.summary import MemoryGrowth, MemoryKeeper, Summary
from harness.common.display.format import amount
from harness.common.display.text import ranks_named
from harness.common.paths import COMMAND
from harness.common.run_folder.job_folder import WORD
from harness.explain.commands import asked_words, changed_command, place_words

_WHAT = {
    "device": "GPU memory",
    "host": "memory of the host",
    "workers": "memory of the processes that load data",
    "files": "the number of open files",
    "threads": "the number of threads",
}
_KINDS = {
    "graph": "tensors with their autograd graphs",
    "tensor": "tensors",
    "array": "arrays",
    "text": "text or bytes",
    "objects": "objects",
}
_DETACH = "keep the number (loss.item()) or the tensor without its graph (.detach())"
_LIMIT = "empty it, or limit what it keeps, as deque(maxlen=…) and lru_cache(maxsize=…) do"
_FREED = (
    "The program has freed it, and the C library keeps it in pieces: MALLOC_TRIM_THRESHOLD_=134217728 in the "
    "environment gives it back to the system, and a step may take longer."
)
_ASK_WORKERS = "Whether they keep it, or the C library keeps what they have freed, is seen with --memory."
_PEAK = 1.3  # times what is held after a step, from which a peak is told
_FULL = {"device": "the GPU is full", "host": "the host's memory is full", "workers": "the host's memory is full"}


def leaks(s: Summary) -> list[MemoryGrowth]:
    """What grows and is kept, the one first that is full first. Of processes that load data that is known by a line
    only: what they have freed, the C library says in the process itself."""
    kept = [growth for growth in s.memory_growth if growth.of != "workers" or growth.keepers]
    found = [growth for growth in kept if not growth.by_batch and not growth.is_free]
    return sorted(found, key=lambda growth: (growth.steps_left is None, growth.steps_left))


def growth_sentence(growth: MemoryGrowth) -> str:
    """
    >>> growth_sentence(MemoryGrowth(of="device", ranks=[0], per_step=5.9e6, low=5.6e6, high=6.2e6, since_step=12,
    ...     limit_bytes=64 * 10**9, steps_left=4100))
    'GPU memory grows by 5.90 MB a step (5.60 to 6.20 MB) on rank 0 since step 12; at this rate the GPU is full after about 4,100 more steps.'
    """  # noqa: E501 - the sentence
    size = amount if growth.of in _FULL else lambda count: f"{count:.2g}"
    low, high = (size(max(each, 0)) for each in (growth.low, growth.high))
    unit = f" {high.rpartition(' ')[2]}"
    interval = f"{low.removesuffix(unit) if low.endswith(unit) else low} to {high}"
    said = f"{_WHAT[growth.of]} grows by {size(growth.per_step)} a step ({interval}) on {ranks_named(growth.ranks)}"
    said += f" since step {growth.since_step}"
    if growth.steps_left is not None:
        said += f"; at this rate {_FULL[growth.of]} after about {float(f'{growth.steps_left:.2g}'):,.0f} more steps"
    return f"{said[0].upper()}{said[1:]}."


def steady_sentences(s: Summary) -> list[str]:
    """Of a run with `--memory`, if no growth is kept."""
    ranks = [one for one in s.training if one.typical_memory_bytes and one.sampled_peak_bytes]
    if not ranks or "--memory" not in asked_words(s).split():
        return []
    if s.memory_growth:
        return no_leak_sentences(s)
    steps = min(one.steps_total for one in ranks)
    if steps < FEWEST:
        return [f"Whether memory grows is not known: it takes {FEWEST} steps to tell, and there are {steps}."]
    most = max(ranks, key=lambda one: one.sampled_peak_bytes or 0)
    return [
        f"No memory grows over the {steps} steps: rank {most.rank} has {amount(most.typical_memory_bytes or 0)} after "
        f"a step, and {amount(most.sampled_peak_bytes or 0)} at most."
    ]


def no_leak_sentences(s: Summary) -> list[str]:
    """Of what grows and is not kept by the program."""
    by_batch = [
        f"{_WHAT[growth.of][0].upper()}{_WHAT[growth.of][1:]} grows by {amount(growth.per_step)} a step on "
        f"{ranks_named(growth.ranks)}, as the largest batch so far grows: that is no leak."
        for growth in s.memory_growth
        if growth.by_batch
    ]
    looked = "--memory" in asked_words(s).split()
    of_workers = "No object there keeps it, but the C library or another one." if looked else _ASK_WORKERS
    return by_batch + [
        f"{growth_sentence(growth)} {_FREED if growth.is_free else of_workers}"
        for growth in s.memory_growth
        if growth.is_free or (growth.of == "workers" and not growth.keepers)
    ]


def fit_sentences(summaries: Sequence[Summary]) -> list[str]:
    """What a larger batch would need, from runs of one model with different batches on devices of one size."""
    ranks = [max(s.training, key=lambda one: one.peak_memory_bytes or 0) for s in summaries if s.training]
    if len(ranks) < 2 or len({(one.parameters, one.dtype, one.device, one.world_size) for one in ranks}) > 1:
        return []
    points = [(round(one.samples / one.steps_counted), one) for one in ranks if one.samples and one.steps_counted]
    found = fit([(batch, one.peak_memory_bytes) for batch, one in points if batch and one.peak_memory_bytes])
    limits = [one.device_limit_bytes if one.device == "cuda" else one.host_limit_bytes for one in ranks]
    if found is None or None in limits:
        return []
    limit = min(limit for limit in limits if limit is not None)
    batch = found.largest + found.largest // 2
    return [
        f"A rank's peak is {amount(found.fixed)} and {amount(found.per_sample)} a sample: batch {batch} would need "
        f"{amount(found.needs(batch))} of {amount(limit)}, and the largest that fits is {found.most(limit):,}."
    ]


def peak_sentences(s: Summary) -> list[str]:
    """The line of the highest peak, where it is far above what is held after a step. Of what grows, that is its end."""
    if s.memory_growth:
        return []
    seen = [(one.sampled_peak_bytes or 0, one) for one in s.training if one.sampled_peak_line is not None]
    size, rank = max(seen, key=lambda pair: pair[0], default=(0, None))
    usual = rank.typical_memory_bytes if rank is not None else None
    if rank is None or rank.sampled_peak_line is None or not usual or size < _PEAK * usual:
        return []
    kind = _WHAT["device" if rank.device == "cuda" else "host"]
    return [
        f"The most {kind} was seen at {place_words(s, rank.sampled_peak_line)}, on rank {rank.rank}: {amount(size)}, "
        f"after a step {amount(usual)}."
    ]


def keeper_words(s: Summary, keeper: MemoryKeeper) -> str:
    """As "2.5 MB a step at train.py:21 in `main`: `history` keeps tensors with their autograd graphs"."""
    at = f" at {place_words(s, keeper.where)}" if keeper.where else ""
    name = f"`{keeper.name}`" if keeper.name else "a container"
    if keeper.is_allocation:
        return f"{amount(keeper.bytes_per_step)} a step of {_KINDS[keeper.kind]} are allocated{at} and not freed"
    return f"{amount(keeper.bytes_per_step)} a step{at}: {name} keeps {_KINDS[keeper.kind]}"


def what_to_change(s: Summary, growth: MemoryGrowth) -> tuple[str, str | None]:
    """A change, and a command if one helps to find it."""
    if growth.keepers:
        first = growth.keepers[0]
        return (_DETACH if first.kind == "graph" else _LIMIT), None
    asked = asked_words(s)
    if growth.of not in _FULL or "--memory" in asked:
        return "look for what each step opens or keeps, in libraries that it calls, too", None
    observed = f"{COMMAND} {WORD} --memory {asked.removeprefix(WORD).strip()}" if asked.startswith(f"{WORD} ") else None
    command = observed or changed_command(s, {"memory": True})
    return "record which line keeps it (--memory)", command

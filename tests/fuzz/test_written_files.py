"""Every file that a person writes, with one thing in it changed: the command works, or refuses it in one sentence with
status 2, and never by a traceback. In this process; tests/fuzz/test_fuzz.py starts commands in a sandbox."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.common.errors import RequestError
from harness.experiment.exercises import DDP
from harness.launch.before.check import check
from harness.launch.job import Machine, resolve
from harness.launch.render import script_of
from harness.site.site import load_site
from harness.study.lessons import load_lesson
from harness.study.sweeps.axes import exercise_of, read_sweep, varying
from tests.launch.launch_shared import ROOT

Part = tuple[Any, ...]
MACHINE = Machine(gpus=0, cores=4, has_nsys=True, python="/usr/bin/python3", runs_dir="/runs")
VALUES: list[Any] = [
    None, True, -1, 0, 1e308, float("nan"), 2**62, "", " ", "-", "a\nb", "\0", "\x1b[31m", "é" * 300, "$HOME", "..", [],
    {}, [[]], [None], [{"a": [1, [2]]}], {"": {}}, {"a": None}, [["a", "b"]], "x" * 5000, "2026-02-31",
]  # fmt: skip


class Written(NamedTuple):
    """A file that people write: one of ours to begin with, and what a command does with a path to it."""

    begins: str
    use: Callable[[str], object]


def script_with(site: str, **fields: Any) -> str:
    job = resolve(DDP(**fields), load_site(site), MACHINE)
    check(job, {})
    return script_of(job)


def points_of(file: str) -> object:
    sweep = read_sweep(file)
    return varying(sweep.here(cpu=True), exercise_of(sweep))


FILES = {
    "site": Written("configs/sites/leonardo.yaml", lambda file: script_with(file, random_weights=True)),
    "model": Written("configs/models/tiny-llama.yaml", lambda file: script_with("local", model=file)),
    "sweep": Written("configs/sweeps/buckets.yaml", points_of),
    "lesson": Written("configs/lessons/1d.yaml", load_lesson),
    "option set": Written(
        "configs/nsys/cpu.json", lambda file: script_with("local", profiler="nsys", nsys_options=file)
    ),
    "trace list": Written(
        "configs/nsys/python-trace/pytorch.json", lambda file: script_with("local", profiler="nsys", python_trace=file)
    ),
}


def parts_of(content: Any, above: Part = ()) -> Iterator[Part]:
    """The path of each value in it, and of the whole."""
    yield above
    pairs = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in pairs:
        yield from parts_of(value, (*above, key))


def changed(content: Any, part: Part, how: int, value: Any) -> Any:
    """The content with a value at this part: in its place, or under a new name beside it, or it is taken away."""
    if not part:
        return value
    found = copy.deepcopy(content)
    holder = found
    for key in part[:-1]:
        holder = holder[key]
    if how == 0:
        holder[part[-1]] = value
    elif how == 1 and isinstance(holder, dict):
        del holder[part[-1]]
    elif isinstance(holder, dict):
        holder[f"{part[-1]}x"] = value
    else:
        holder.append(value)
    return found


@pytest.mark.parametrize("kind", FILES)
def test_one_change_is_read_or_refused_in_one_sentence(kind: str, tmp_path: Path) -> None:
    source = ROOT / FILES[kind].begins
    content = yaml.safe_load(source.read_text())
    file = tmp_path / f"mine{source.suffix}"
    write = json.dumps if source.suffix == ".json" else yaml.safe_dump

    @settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(list(parts_of(content))), st.integers(0, 2), st.sampled_from(VALUES))
    def holds(part: Part, how: int, value: Any) -> None:
        file.write_text(write(changed(content, part, how, value)))
        try:
            FILES[kind].use(str(file))
        except RequestError as error:
            assert str(error).strip()

    holds()

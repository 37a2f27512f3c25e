"""Small anonymous traces of exercise 1's runs, with their truth beside them, for the repository's own tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any, NamedTuple

import pytest

from tests.gpu.claims import is_the_truth
from tests.gpu.scrub import LEFT_OUT, LIMIT_BYTES, Scrubbed, leaks, scrubbed, secrets
from tests.gpu.truth import read, truth
from tests.gpu.work import EXERCISE_1, Work

pytestmark = pytest.mark.gpu


class Small(NamedTuple):
    """The small trace of a run, and what is known of it."""

    name: str
    made: Scrubbed
    known: dict[str, Any]


@pytest.fixture(scope="session")
def scrubbing(work: Work) -> Iterator[dict[str, Future[Scrubbed]]]:
    """The traces of the runs that are there, all at once: a large trace takes a core for many seconds."""
    with ProcessPoolExecutor() as pool:
        yield {run.name: pool.submit(scrubbed, run.trace) for run in work.all_runs() if run.name in EXERCISE_1}


@pytest.fixture(scope="session", params=EXERCISE_1)
def small(request: pytest.FixtureRequest, work: Work, scrubbing: dict[str, Future[Scrubbed]]) -> Small:
    run = work.exercise_1(request.param)
    folder, name = work.out / "traces", f"{run.name}.json.gz"
    folder.mkdir(exist_ok=True)
    made = scrubbing[run.name].result() if run.name in scrubbing else scrubbed(run.trace)
    (folder / name).write_bytes(made.packed)
    rank = run.summary["training"][0]
    recorded_with = {key: rank[key] for key in ("device_name", "dtype", "seq_length", "micro_batch_size", "versions")}
    about = {"recorded_with": recorded_with, "left_out": LEFT_OUT, "steps": made.steps}
    known = about | truth(read(folder / name))
    file = folder / "truth.json"
    others = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    file.write_text(json.dumps({**others, name: known}, indent=1) + "\n", encoding="utf-8")
    return Small(name, made, known)


def test_it_is_small_and_names_no_path_host_or_user(small: Small) -> None:
    assert len(small.made.packed) <= LIMIT_BYTES
    assert leaks(small.made.packed, secrets()) == []


@pytest.mark.usefixtures("gpu")  # a CPU's trace has no kernels to count
def test_its_report_is_the_truth(small: Small, work: Work) -> None:
    assert small.known["devices"]
    is_the_truth(work.report(work.out / "traces" / small.name, "--window", "gpu"), small.known)

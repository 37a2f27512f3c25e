"""The files `environment/*.json` of a run as parts of its Summary. A file is input from others: bounded, and validated
before anything is taken from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from harness.analysis.summary import Problem, RankTraining, RunEnvironment, problem_texts
from harness.analysis.summary.base import why_invalid
from harness.common.display.printable import printable, printable_value
from harness.common.run_folder.run_files import ENVIRONMENT
from harness.common.run_folder.run_store import UnreadFileError, as_object
from harness.common.system.bounded_read import BoundedReadError

# What a page names of an environment.
_VERSIONS = (
    *("python", "torch", "accelerate", "transformers", "tokenizers", "deepspeed", "lightning", "megatron-core"),
    *("cuda", "nccl", "nvidia driver"),
)
_MOST_FILES = 1 << 16


def _environment(text: str) -> RunEnvironment:
    content = printable_value(as_object(text))
    known = {name: content[name] for name in RunEnvironment.__struct_fields__ if name in content}
    try:
        return RunEnvironment.model_validate({**known, "nodes": [content.get("host")]})
    except msgspec.ValidationError as error:
        raise BoundedReadError(why_invalid(error)) from None


ENVIRONMENT_FILE = ENVIRONMENT.holding(_environment)


def read_environments(files: Sequence[Path]) -> tuple[list[RunEnvironment], list[Problem]]:
    """One entry for nodes with an equal environment, and a problem for each file that cannot be read."""
    hosts: dict[str, set[str]] = {}
    environments: dict[str, RunEnvironment] = {}
    problems = []
    for path in files[:_MOST_FILES]:
        try:
            found = ENVIRONMENT_FILE.read(path)
        except UnreadFileError as error:
            why = f"{printable(path.name)}: {printable(error.reason)}"
            problems.append(Problem.remark(problem_texts.ENVIRONMENT_UNREADABLE, why))
            continue
        content = found.model_copy(update={"nodes": []}).model_dump_json()
        hosts.setdefault(content, set()).update(found.nodes)
        environments[content] = found
    return [
        found.model_copy(update={"nodes": sorted(hosts[content])}) for content, found in environments.items()
    ], problems


def with_versions(training: Sequence[RankTraining], environments: Sequence[RunEnvironment]) -> list[RankTraining]:
    """The ranks with the versions of their host's environment; one that wrote versions itself keeps them."""
    of_host = {host: _versions(environment) for environment in environments for host in environment.nodes}
    return [
        rank if rank.versions else rank.model_copy(update={"versions": of_host.get(rank.host or "", {})})
        for rank in training
    ]


def _versions(environment: RunEnvironment) -> dict[str, str]:
    found = environment.packages | environment.system
    return {name: found[name] for name in _VERSIONS if name in found}

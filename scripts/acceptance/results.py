"""The result of a step, and the JSON file of all results. Knows no GPU and no harness."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

SCHEMA = 1
# `pass`, `fail`: a check holds or not; `lacks`: this machine cannot show it; `seen`: a number without an expectation.
StepVerdict = Literal["pass", "fail", "lacks", "seen"]
# `partial`: the time ended inside the step; `waiting`: it never began.
State = Literal["done", "lacks", "failed", "partial", "waiting"]


@dataclass(frozen=True)
class Check:
    """One claim with the numbers that it rests on."""

    name: str
    verdict: StepVerdict
    said: str


@dataclass
class Result:
    """The result of one step so far. `numbers`: values for later computations."""

    step: str
    state: State = "waiting"
    reason: str = ""  # why it is not done
    seconds: float = 0.0
    checks: list[Check] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)

    def check(self, name: str, holds: bool, said: str) -> None:
        """Add a claim that holds or does not."""
        self.checks.append(Check(name, "pass" if holds else "fail", said))

    def lacks(self, name: str, said: str) -> None:
        """Add a claim that this machine cannot show."""
        self.checks.append(Check(name, "lacks", said))

    def seen(self, name: str, said: str) -> None:
        """Add an observation."""
        self.checks.append(Check(name, "seen", said))

    def broke(self, name: str, error: object) -> None:
        """Add a failure of something that this step started; the step goes on."""
        self.check(name, False, str(error))
        self.state, self.reason = "failed", f"{name}: {error}"

    def is_partial(self, why: str) -> None:
        """Some of the step's work is left for another start."""
        if self.state != "failed":
            self.state, self.reason = "partial", why

    def count(self, verdict: StepVerdict) -> int:
        """How many checks have this verdict."""
        return sum(check.verdict == verdict for check in self.checks)


def result_from(data: Mapping[str, Any]) -> Result:
    """A result from its JSON object."""
    return Result(**{**data, "checks": [Check(**check) for check in data["checks"]]})


def write_json(path: Path, content: object) -> None:
    """Write whole or not at all: a killed step must not leave half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(path)


def read_json(path: Path) -> Any:
    """The content of a JSON file; None if it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write_result(path: Path, result: Result) -> None:
    """Write the result of a step so far."""
    write_json(path, asdict(result))


def read_results(path: Path) -> dict[str, Result]:
    """The results in an acceptance.json; empty if it is absent or of another schema."""
    content = read_json(path)
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        return {}
    return {data["step"]: result_from(data) for data in content["steps"]}


def write_results(path: Path, results: Iterable[Result]) -> None:
    """All steps as one document."""
    write_json(path, {"schema": SCHEMA, "steps": [asdict(result) for result in results]})

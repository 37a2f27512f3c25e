"""Which of 16 commits made a small training slow: `git bisect run … slurm.sh check --bisect`, on histories with one
guilty commit (+5 to +30 % of a step, by real work) and on innocent ones, of which none is to be blamed.

    python benchmarks/bench_bisect.py --keep FOLDER --histories 20   # 20 guilty and 20 innocent ones, about two hours
    python benchmarks/bench_bisect.py --keep FOLDER                  # what was found so far
    python benchmarks/bench_bisect.py --simulate                     # the same decisions on simulated runs, in minutes

A later start with the same folder goes on where the earlier one stopped: a history that was judged is not judged again,
and runs that were made are used. Anything else that runs on the machine is in these numbers, too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from math import exp, log1p
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))
from bisect_histories import COMMITS, History, made

from harness.analysis.bisect import Regression, has_it, looks, next_runs, runs_to_tell, size, wrong_step
from harness.analysis.statistics import MeasuredEffect, Sample, effect
from harness.study.check.bisect import USUAL_MOST
from harness.study.check.series import slots

ROOT = Path(__file__).parents[1]
LAUNCH = "run -g 1 --no-profile --skip-steps 5 --wait-steps 0 --warmup-steps 0 --active-steps 35 -- train.py"
FAIL_ABOVE = 0.02
DEVIATIONS, SHARES, SIMULATED = (0.005, 0.01, 0.02, 0.03), (0.0, 0.05, 0.1, 0.2, 0.3), 400
ODD, ODD_BY = 0.05, 0.2  # share of simulated runs that something disturbed, and by how much
FOUND, WRONG, OPEN = "found", "another commit blamed", "not told"


class Judged(NamedTuple):
    """How git bisect ended. blamed: the commit; None: it blames none. share: that the guilty commit adds to a step."""

    seed: int
    number: int
    guilty: str | None
    share: float
    blamed: str | None
    runs: int
    minutes: float
    said: str

    @property
    def outcome(self) -> str:
        return OPEN if self.blamed is None else FOUND if self.blamed == self.guilty else WRONG


def judged(history: History, seed: int, number: int, metric: str) -> Judged:
    """Let git bisect judge the history by this metric."""
    begin = time.monotonic()
    _git(history.folder, "bisect", "reset")
    _git(history.folder, "bisect", "start", history.commits[-1], history.commits[0])
    environ = os.environ | {"HARNESS_SITE": "local"}
    environ.pop("HARNESS_RUNS", None)
    check = ["bash", str(ROOT / "slurm.sh"), "check", "--bisect", LAUNCH, "--metric", metric]
    check += ["--fail-above", f"{100 * FAIL_ABOVE:g}%"]
    done = subprocess.run(
        ["git", "bisect", "run", *check], cwd=history.folder, env=environ, capture_output=True, text=True, check=False
    )
    _git(history.folder, "bisect", "reset")
    blamed = re.search(r"^([0-9a-f]{40}) is the first bad commit", done.stdout, re.MULTILINE)
    if blamed is None and "only 'skip'ped commits left" not in done.stdout:
        raise SystemExit(
            f"{history.folder}: git bisect ended in another way:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    runs = len(list((history.folder / "runs" / "own" / "profiler").glob("*/run.json")))
    said = re.findall(r"^(?:good|bad|cannot tell): .*", done.stdout, re.MULTILINE)
    return Judged(
        seed,
        number,
        history.guilty,
        history.share,
        blamed[1] if blamed else None,
        runs,
        (time.monotonic() - begin) / 60,
        "\n".join(said),
    )


def _git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, capture_output=True, check=True)


def kept(keep: Path) -> list[Judged]:
    file = keep / "judged.jsonl"
    return [Judged(**json.loads(line)) for line in file.read_text().splitlines()] if file.is_file() else []


def judge_all(keep: Path, seed: int, histories: int, metric: str) -> None:
    """Guilty and innocent histories in turns; a line for each as it is judged."""
    known = {(each.seed, each.number, each.guilty is not None) for each in kept(keep)}
    for number in range(histories):
        for is_guilty in (True, False):
            if (seed, number, is_guilty) in known:
                continue
            folder = keep / f"{'guilty' if is_guilty else 'innocent'}-{seed}-{number}"
            found = judged(made(folder, seed, number, is_guilty), seed, number, metric)
            with (keep / "judged.jsonl").open("a") as file:
                file.write(json.dumps(found._asdict()) + "\n")
            what = f"+{100 * found.share:.0f} % in {found.guilty[:9]}" if found.guilty else "innocent"
            blamed = found.blamed[:9] if found.blamed else "none"
            print(f"{number} {what}: blamed {blamed}; {found.runs} runs, {found.minutes:.1f} min", flush=True)


def result(found: list[Judged]) -> Iterator[str]:
    """How many guilty commits were found, and how many innocent histories had one blamed."""
    guilty = [each for each in found if each.guilty is not None]
    innocent = [each for each in found if each.guilty is None]
    outcomes = Counter(each.outcome for each in guilty)
    yield (
        f"{len(guilty)} histories of {COMMITS} commits with a guilty one: found {outcomes[FOUND]}, another blamed "
        f"{outcomes[WRONG]}, not told {outcomes[OPEN]}"
    )
    yield f"{len(innocent)} innocent histories: a commit blamed in {sum(each.blamed is not None for each in innocent)}"
    yield f"{sum(each.runs for each in found)} runs, {sum(each.minutes for each in found):.0f} minutes"


class Arms:
    """Simulated runs of two commits, of which there are always as many as asked."""

    def __init__(self, run: Callable[[], float], log_ratio: float) -> None:
        self.run, self.log_ratio = run, log_ratio
        self.runs: dict[str, list[Sample]] = {"a": [], "b": []}

    def effect(self, each: int) -> MeasuredEffect:
        for slot in slots(each):
            mine = self.runs[slot.key]
            if slot.repeat == len(mine):
                mine.append(Sample(exp(self.run() + self.log_ratio * (slot.key == "b")), slot.repeat // 2))
        found = effect(self.runs["a"][:each], self.runs["b"][:each])
        if found is None:
            raise AssertionError("two runs of each have an effect")
        return found


def simulated(chance: random.Random, deviation: float, share: float, odd: float) -> tuple[str, int]:
    """How a bisect over simulated runs ends, and with how many runs. The machine drifts by a tenth of the deviation
    from run to run. As git does, it takes another commit if one cannot be told."""
    drift = [0.0]

    def run() -> float:
        drift[0] += chance.gauss(0, deviation / 10)
        return drift[0] + chance.gauss(0, deviation) + abs(chance.gauss(0, ODD_BY)) * (chance.random() < odd)

    guilty = chance.randint(1, COMMITS)
    ends, at, error = Arms(run, log1p(share)), looks(USUAL_MOST), wrong_step(COMMITS)
    for each in at:
        told = size(ends.effect(each), FAIL_ABOVE, len(at))
        if told == "none" or (
            isinstance(told, Regression) and runs_to_tell(told, error, USUAL_MOST) <= USUAL_MOST // 2
        ):
            break
    runs = 2 * each
    if not isinstance(told, Regression):
        return OPEN, runs
    good, bad, skipped = 0, COMMITS, set[int]()
    while left := [commit for commit in range(good + 1, bad) if commit not in skipped]:
        commit = left[(len(left) - 1) // 2]
        arms, each = Arms(run, log1p(share) * (commit >= guilty)), runs_to_tell(told, error, USUAL_MOST)
        while (answer := has_it(arms.effect(each), told, error)) is None and each < USUAL_MOST:
            each = next_runs(each, USUAL_MOST)
        runs += 2 * each
        if answer is None:
            skipped.add(commit)
        good, bad = (commit, bad) if answer is False else (good, commit if answer else bad)
    if bad - good > 1:
        return OPEN, runs
    return FOUND if bad == guilty and share else WRONG, runs


def simulation() -> Iterator[str]:
    yield "| runs differ by | disturbed | the guilty commit adds | found | another blamed | not told | runs |"
    yield "|---|---|---|---|---|---|---|"
    for deviation in DEVIATIONS:
        for odd in (0.0, ODD):
            for share in SHARES:
                chance = random.Random(f"{deviation} {odd} {share}")
                ends = [simulated(chance, deviation, share, odd) for _ in range(SIMULATED)]
                outcomes = Counter(outcome for outcome, _ in ends)
                shares = " | ".join(f"{100 * outcomes[each] / SIMULATED:.1f} %" for each in (FOUND, WRONG, OPEN))
                runs = sum(each for _, each in ends) / SIMULATED
                yield f"| {100 * deviation:g} % | {100 * odd:g} % | {100 * share:g} % | {shares} | {runs:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where histories, runs and results are kept")
    parser.add_argument("--histories", type=int, default=0, metavar="N", help="judge N guilty and N innocent histories")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--metric", default="step_time", help="[step_time]; on a machine that others use: step_on_core_ns"
    )
    parser.add_argument("--simulate", action="store_true", help="no trainings: numbers drawn at random")
    asked = parser.parse_args()
    if asked.simulate:
        for line in simulation():
            print(line, flush=True)
    elif asked.keep is None:
        parser.error("give --keep FOLDER or --simulate")
    else:
        keep = asked.keep.absolute()
        keep.mkdir(parents=True, exist_ok=True)
        judge_all(keep, asked.seed, asked.histories, asked.metric)
        print("\n".join(result(kept(keep))))


if __name__ == "__main__":
    main()

"""Hangs, deaths and slow but living runs of one small training: what is said of each, and how soon.

    .venv/bin/python benchmarks/bench_hang.py OUT --hangs 80 --deaths 40 --slow 200
    .venv/bin/python benchmarks/bench_hang.py OUT --exercises 30    # exercises 1 and 2 with --fault hang
    .venv/bin/python benchmarks/bench_hang.py OUT            # the tables of what OUT has

Else each run is `slurm.sh run -g RANKS --on-hang stop -- tests/own/scripts/hangs.py`, with kind, rank, step and number
of ranks drawn from the seed. A run that OUT has already is not made again. `--at-once` runs share the machine's cores,
and `--busy` adds that many programs that compute.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from hang_kinds import DEATHS, HANGS, OF_EXERCISES, SLOW, WITHOUT_STACK, line_of, line_of_fault, lines_of

from harness.heartbeats.dead import first_death
from harness.heartbeats.hang import read_hang
from harness.run import Run

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "tests" / "own" / "scripts" / "hangs.py"
EXERCISES = {1: "exercise_1_DDP", 2: "exercise_2_DeepSpeed"}
LEAST_S, LOADER_S, COMPUTING_S = 10.0, 30.0, 60.0  # after which a run counts as stuck: docs/watch.md
NO_LINE = ("kill", "left-early")  # nobody knows where a process is that is killed, or whose script has ended
IN_WHICH_NOBODY_FAILED = ("early",)


def drawn(group: str, count: int, seed: int) -> Iterator[dict[str, Any]]:
    """The runs of a group: every kind in turn, the rest by chance."""
    chance = random.Random(f"{group} {seed}")
    kinds = {
        "hang": list(HANGS),
        "death": list(DEATHS),
        "slow": [*SLOW, "slow-suspended"],
        "exercise": list(OF_EXERCISES),
    }[group]
    for number in range(count):
        ranks = chance.choice((2, 2, 3, 4))
        kind = kinds[number % len(kinds)]
        yield {
            "group": group,
            "name": f"{group}-{seed}-{number}-{kind}",
            "kind": kind,
            "ranks": ranks,
            "rank": chance.randrange(ranks),
            "step": 0 if group == "slow" and chance.random() < 0.15 else chance.randint(25, 80),
            "seconds": round(chance.uniform(11, 24), 1),
            "exercise": 1 + number % 2,
        }


def made(asked: dict[str, Any], out: Path) -> dict[str, Any]:
    """Make the run, and judge what was said of it."""
    runs = str(out / "runs" / asked["name"])
    environment = {**os.environ, "HARNESS_RUNS": runs, "OMP_NUM_THREADS": "1"}
    command = ["bash", str(ROOT / "slurm.sh"), *_words(asked)]
    begin_s = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as program:
        if asked["kind"] == "slow-suspended":
            _suspend(asked)
        said, _ = program.communicate(timeout=400)
    run = Run(Path(json.loads(said)["path"]))
    time.sleep(1)
    mark = runs if asked["group"] == "exercise" else f"tag {asked['name']} "
    left = subprocess.run(["pgrep", "-f", mark], capture_output=True, text=True, check=False)
    status = run.status()
    found = {
        **asked,
        "state": status.state if status else None,
        "why": status.why if status else "",
        "run": str(run.path),
    }
    found |= {"left": left.stdout.split(), "wall_s": round(time.monotonic() - begin_s, 1)}
    return found | _JUDGES[asked["group"]](asked, run)


def _words(asked: dict[str, Any]) -> list[str]:
    """What is typed after slurm.sh."""
    options = ["-g", str(asked["ranks"]), "--no-profile", "--on-hang", "stop", "--json", "--site", "local"]
    if asked["group"] == "exercise":
        fault = f"hang,kind={asked['kind']},rank={asked['rank']},step={asked['step']}"
        return ["-e", str(asked["exercise"]), *options, "--steps", "200", "--fault", fault]
    steps = () if asked["group"] != "slow" else ("--steps", str(asked["step"] + 40))
    script = [str(SCRIPT), "--kind", asked["kind"], "--rank", str(asked["rank"]), "--step", str(asked["step"])]
    script += ["--tag", asked["name"], "--seconds", str(asked["seconds"]), *steps]
    return ["run", *options, "--", *script]


def _suspend(asked: dict[str, Any]) -> None:
    """Stop all of the job for a while, its monitor too, as a batch system does it."""
    time.sleep(9)
    with_tag = [
        p for p in psutil.process_iter(["cmdline"]) if f"tag {asked['name']}" in " ".join(p.info["cmdline"] or [])
    ]
    ranks = [
        p
        for p in with_tag
        if "hangs.py" in " ".join(p.info["cmdline"] or []) and "slurm.sh" not in str(p.info["cmdline"])
    ]
    scripts = [parent for p in ranks[:1] for parent in p.parents() if "job.sbatch" in " ".join(parent.cmdline())]
    job = {process for script in scripts[-1:] for process in [script, *script.children(recursive=True)]}
    for process in job:
        process.send_signal(signal.SIGSTOP)
    time.sleep(asked["seconds"])
    for process in job:
        process.send_signal(signal.SIGCONT)


def _hang(asked: dict[str, Any], run: Run) -> dict[str, Any]:
    hang = read_hang(run.path)
    if hang is None:
        return {"cause": False, "rank_right": False, "line": False, "delay_s": None}
    kind, of_exercise = asked["kind"], asked["group"] == "exercise"
    wanted = OF_EXERCISES[kind] if of_exercise else HANGS[kind]
    least_s = {"worker": LOADER_S, "computes": COMPUTING_S}.get(wanted, LEAST_S)
    least_s = LEAST_S if kind == "worker-stopped" else least_s
    file = ROOT / "exercises" / EXERCISES[asked["exercise"]] / "train.py" if of_exercise else SCRIPT
    numbers = (line_of_fault(file, kind),) if of_exercise else lines_of(file, kind)
    line = re.compile(rf"{re.escape(file.name)}:({'|'.join(map(str, numbers))})\b")
    # Where two groups are used in opposite order, or two ranks are in different collectives, nobody knows who is wrong.
    both = wanted == "order" or (wanted == "other collective" and asked["ranks"] == 2)
    return {
        "cause": hang.kind == wanted,
        "rank_right": asked["rank"] in hang.ranks if both else hang.ranks == (asked["rank"],),
        "line": bool(line.search(hang.sentence)) if kind not in (*NO_LINE, *WITHOUT_STACK) else None,
        "delay_s": round((hang.found_ns - hang.since_ns) / 1e9 - least_s, 1),
        "sentence": hang.sentence,
    }


def _death(asked: dict[str, Any], run: Run) -> dict[str, Any]:
    death = first_death(run.path, run.err)
    if death is None:
        return {"rank_right": False, "line": False, "sentence": ""}
    line = f"{SCRIPT.name}:{line_of(SCRIPT, asked['kind'])}"
    known = asked["kind"] not in (*NO_LINE, *IN_WHICH_NOBODY_FAILED)
    right = death.rank == asked["rank"] and death.left == (asked["kind"] in IN_WHICH_NOBODY_FAILED)
    return {"rank_right": right, "line": line in death.sentence if known else None, "sentence": death.sentence}


def _slow(_: dict[str, Any], run: Run) -> dict[str, Any]:
    hang = read_hang(run.path)
    return {"false": hang is not None, "sentence": hang.sentence if hang else ""}


_JUDGES = {"hang": _hang, "exercise": _hang, "death": _death, "slow": _slow}


@contextmanager
def busy(programs: int) -> Iterator[None]:
    """So many programs compute meanwhile."""
    text = "while True: pass"
    started = [subprocess.Popen([sys.executable, "-S", "-c", text]) for _ in range(programs)]
    try:
        yield
    finally:
        for program in started:
            program.kill()


def tables(found: list[dict[str, Any]]) -> None:
    """Print what was right."""
    hangs = [each for each in found if each["group"] in ("hang", "exercise")]
    deaths = [each for each in found if each["group"] == "death"]
    slow = [each for each in found if each["group"] == "slow"]
    if hangs:
        delays = sorted(each["delay_s"] for each in hangs if each["delay_s"] is not None)
        right = {key: sum(bool(each[key]) for each in hangs) for key in ("cause", "rank_right", "line")}
        stuck = sum(each["state"] == "stuck" for each in hangs)
        print(
            f"{len(hangs)} hangs: state stuck {stuck}, cause {right['cause']}, ranks {right['rank_right']}, "
            f"line {right['line']} of {sum(each['line'] is not None for each in hangs)}"
        )
        if delays:
            print(f"  after the threshold: median {median(delays):.1f} s, longest {delays[-1]:.1f} s")
        print(f"  runs with a process left: {sum(bool(each['left']) for each in hangs)}")
    if deaths:
        with_line = [each for each in deaths if each["line"] is not None]
        ranks, lines = sum(each["rank_right"] for each in deaths), sum(each["line"] for each in with_line)
        print(f"{len(deaths)} deaths: first rank {ranks}, line {lines} of {len(with_line)}")
    if slow:
        completed = sum(each["state"] == "completed" for each in slow)
        print(f"{len(slow)} slow but living: false alarms {sum(each['false'] for each in slow)}, completed {completed}")
    for each in found:
        wrong = [key for key in ("cause", "rank_right", "line") if each.get(key) is False] + ["false"] * bool(
            each.get("false")
        )
        if wrong or each["left"] or (each["group"] == "slow" and each["state"] != "completed"):
            print(
                f"  {each['name']} rank {each['rank']} of {each['ranks']}: {each['state']}, wrong: {wrong}; "
                f"{each.get('sentence')}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    for group in ("hangs", "exercises", "deaths", "slow"):
        parser.add_argument(f"--{group}", type=int, default=0, help="how many runs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="programs that compute meanwhile")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    path = asked.out / "runs.jsonl"
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    there = {each["name"] for each in found}
    groups = (("hang", asked.hangs), ("exercise", asked.exercises), ("death", asked.deaths), ("slow", asked.slow))
    missing = [each for group, count in groups for each in drawn(group, count, asked.seed) if each["name"] not in there]
    with busy(asked.busy), ThreadPoolExecutor(asked.at_once) as pool, path.open("a") as file:
        for each in pool.map(lambda one: made(one, asked.out.absolute()), missing):
            file.write(json.dumps(each) + "\n")
            file.flush()
            found.append(each)
            print(each["name"], each["state"], each.get("sentence", ""), file=sys.stderr)
    tables(found)


if __name__ == "__main__":
    main()

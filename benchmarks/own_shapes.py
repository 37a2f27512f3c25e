"""Trainings of many shapes, each with and without something slow in its code: what a report says of its cause, ranks,
line and time.

    python benchmarks/own_shapes.py OUT [--only NAME…] [--healthy] [--times 1] [--busy] [--again]

`slurm.sh run -- …`, then `slurm.sh report --json`. Runs are kept in OUT, so that `--again` judges the kept recordings
anew. --busy: one core is used by another program. The scripts are in benchmarks/shapes; lines with `# plant` are right.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SHAPES = ROOT / "benchmarks/shapes"
sys.path.insert(0, str(ROOT))

from harness.common.run_files import METRICS  # noqa: E402

STEPS, ACTIVE, TIMEOUT_S = 40, 13, 180
CLOSE = 0.25  # of the planted time
MARK = "# plant"
PLAIN = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}
PYTHON = ("host-stall", "extra-compute")  # Python code of one rank, also with small operators
CROWDED = ("noisy-neighbour", "pinned-together", "interrupted")  # true of a busy machine
Said = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """One training. causes, ranks: what is right."""

    name: str
    causes: tuple[str, ...]
    ranks: tuple[int, ...]
    launcher: str = "torchrun"


SHAPES_OF_CODE = (
    Shape("fsdp2_log", ("host-stall", "checkpoint", "extra-compute"), (1,)),
    Shape("reinforcement", PYTHON, (1,), launcher="python"),
    Shape("two_stages", (*PYTHON, "uneven-stages"), (1,)),
    Shape("parameter_server", PYTHON, (0,)),
    Shape("compiled", PYTHON, (1,)),
    Shape("slow_collate", ("data-stall",), (0, 1)),
    Shape("growing_history", ("growing-work",), (0, 1)),
)
NAMES = {shape.name: shape for shape in SHAPES_OF_CODE}


@dataclass(frozen=True)
class ShapeVerdict:
    """What was right of the first finding."""

    cause: bool
    ranks: bool
    line: bool
    ms: bool
    told: str

    @property
    def marks(self) -> str:
        """A letter for each thing that is right."""
        kinds = (("C", self.cause), ("R", self.ranks), ("L", self.line), ("T", self.ms))
        return "".join(letter if right else "-" for letter, right in kinds)


def run(shape: Shape, folder: Path, planted: bool) -> Path:
    """Start it; returns the run's folder."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(SHAPES, folder / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, **PLAIN, "PLANT": str(int(planted)), "STEPS": str(STEPS)}
    environment |= {"RECORDS": str(folder / "planted")}
    for name in ("PYTHONPATH", "HARNESS_RUNS"):
        environment.pop(name, None)
    flags = ["-n", "1", "-g", "1" if shape.launcher == "python" else "2", "--profiler", "torch"]
    flags += [
        "--active-steps",
        str(ACTIVE),
        "--site",
        "local",
        "--launcher",
        shape.launcher,
        "--python",
        sys.executable,
    ]
    argv = ["bash", str(ROOT / "slurm.sh"), "run", *flags, "--", f"{shape.name}.py"]
    done = subprocess.run(
        argv, cwd=folder / "scripts", env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    (folder / "log").write_text(done.stdout + done.stderr, encoding="utf-8")
    assert done.returncode == 0, f"{shape.name}: {done.returncode}\n{done.stdout[-1500:]}{done.stderr[-1500:]}"
    return run_in(folder)


def run_in(folder: Path) -> Path:
    """The run that a folder keeps."""
    (found,) = (folder / "scripts/runs/own/profiler").iterdir()
    return found


def report(run_dir: Path) -> Said:
    """What the report says."""
    argv = ["bash", str(ROOT / "slurm.sh"), "report", str(run_dir), "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
    return dict(json.loads(done.stdout))


def planted_ns(run_dir: Path, records: Path, ranks: Sequence[int]) -> float | None:
    """What the planted code took per profiled step but the first, on the rank that it took most of."""
    spent = []
    for rank in ranks:
        file = records.with_name(f"{records.name}.rank{rank}")
        if not file.exists():
            return None
        lines = map(json.loads, METRICS.path(run_dir, rank).read_text(encoding="utf-8").splitlines())
        steps = [line for line in lines if line["event"] == "step" and line["phase"] == "active"][1:]
        begin, end = steps[0]["unix_ns"], steps[-1]["unix_ns"] + steps[-1]["step_ns"]
        stalls = [tuple(map(int, line.split())) for line in file.read_text(encoding="utf-8").splitlines()]
        spent.append(sum(ns for at, ns in stalls if begin <= at <= end) / len(steps))
    return max(spent)


def right_lines(folder: Path) -> set[tuple[str, int]]:
    """The marked lines: end of the path, and number."""
    found = set()
    for file in folder.rglob("*.py"):
        for number, text in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if text.rstrip().endswith((MARK, "with planted():")):
                found.add((str(file.relative_to(folder)), number))
    return found


def verdict(shape: Shape, folder: Path, said: Said) -> ShapeVerdict:
    """Of the first finding about the program that is a departure, or a steady loss where that is right."""
    about = (found for found in said["findings"] if found["cause"] not in CROWDED)
    findings = [found for found in about if not found["standing"] or found["cause"] in shape.causes]
    if not findings:
        return ShapeVerdict(False, False, False, False, "nothing")
    first = findings[0]
    where = first["lines"][0]["where"] if first["lines"] else first["where"]
    inside = first["lines"][0]["inside"] if first["lines"] else None  # "at a line, mostly at another one inside of it"
    line = any(
        str(told["file"]).endswith(f"/{file}") and told["line"] == number
        for file, number in right_lines(folder / "scripts")
        for told in (where, inside)
        if told is not None
    )
    truth = planted_ns(run_in(folder), folder / "planted", shape.ranks)
    part = first["lost_ns"] / truth if truth else None
    place = f"{Path(where['file']).name}:{where['line']} {where['function']}" if where else "no line"
    step_ms = said["replay"]["step_ns"] / 1e6 if said.get("replay") else 0
    told = f"{first['cause']} {first['ranks']} {place} {first['lost_ns'] / 1e6:.1f} ms of {step_ms:.0f}"
    told += f", planted {truth / 1e6:.1f}" if truth else ""
    right_time = part is None or abs(part - 1) <= CLOSE
    return ShapeVerdict(first["cause"] in shape.causes, first["ranks"] == list(shape.ranks), line, right_time, told)


@contextmanager
def neighbour(wanted: bool) -> Iterator[None]:
    """Another program on core 1 meanwhile."""
    if not wanted:
        yield
        return
    other = subprocess.Popen(["taskset", "-c", "1", sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        other.kill()
        other.wait()


def judged(shape: Shape, folder: Path, asked: argparse.Namespace) -> str:
    """One line: what was right, and what was said."""
    try:
        if not asked.again:
            with neighbour(asked.busy):
                run(shape, folder, not asked.healthy)
        said = report(run_in(folder))
    except (AssertionError, OSError, ValueError, subprocess.TimeoutExpired) as error:
        return f"{shape.name}: FAILED {str(error)[-1200:]}"
    (folder / "said.json").write_text(
        json.dumps({"findings": said["findings"], "replay": said.get("replay")}, indent=1)
    )
    steps = sum('"event": "step"' in line or '"event":"step"' in line for line in open(METRICS.path(run_in(folder), 0)))  # noqa: PTH123, SIM115
    counted = "" if steps == STEPS else f"  [{steps} steps for {STEPS}]"
    if asked.healthy:
        wrong = [f"{f['cause']} {f['ranks']} {f['share']:.0%}" for f in said["findings"] if f["cause"] not in CROWDED]
        return f"{shape.name}: {'; '.join(wrong) or 'nothing'}{counted}"
    own = verdict(shape, folder, said)
    return f"{shape.name}: {own.marks} {own.told}{counted}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="*", default=list(NAMES), choices=list(NAMES))
    parser.add_argument("--healthy", action="store_true")
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--times", type=int, default=1)
    asked = parser.parse_args()
    told = []
    for number in range(asked.times):
        for name in asked.only:
            kind = ("healthy" if asked.healthy else "planted") + "-busy" * asked.busy
            told.append(judged(NAMES[name], asked.out.resolve() / f"{name}-{kind}{number}", asked))
            print(told[-1], flush=True)
    if not asked.healthy:
        marks = [line.split(": ", 1)[1][:4] for line in told]
        for letter, what in zip("CRLT", ("cause", "ranks", "line", "time within 25 %"), strict=True):
            print(f"{what}: {sum(letter in each for each in marks)} of {len(marks)}")
        print(f"cause, ranks and line: {fmean(each[:3] == 'CRL' for each in marks):.0%}")


if __name__ == "__main__":
    main()

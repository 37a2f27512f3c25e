"""Trainings of many shapes, each with and without something slow in its code: what a report says of its cause, ranks,
line and time.

    python benchmarks/own_shapes.py OUT [--only NAME…] [--healthy] [--times 1] [--busy] [--again]

`slurm.sh run -- …`, then `slurm.sh report --json`. Runs are kept in OUT, so that `--again` judges the kept recordings
anew. --busy: another program computes meanwhile. The scripts are in benchmarks/shapes; lines with `# plant` are right.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).resolve().parents[1]
SHAPES = ROOT / "benchmarks/shapes"
SLURM = ("bash", str(ROOT / "slurm.sh"))
sys.path.insert(0, str(ROOT))

from bench_hang import busy  # noqa: E402
from own_runs import Said, output_of, stalls_ns, steps_of  # noqa: E402

from harness.common.run_folder.run_files import METRICS  # noqa: E402

STEPS, ACTIVE = 40, 13
CLOSE = 0.25  # of the planted time
MARK = "# plant"
PYTHON = ("host-stall", "extra-compute")  # Python code of one rank, also with small operators
CROWDED = ("noisy-neighbour", "pinned-together", "interrupted")  # true of a busy machine


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
    variables = {"PLANT": str(int(planted)), "STEPS": str(STEPS), "RECORDS": str(folder / "planted")}
    flags = ["-n", "1", "-g", "1" if shape.launcher == "python" else "2", "--profiler", "torch", "--site", "local"]
    flags += ["--active-steps", str(ACTIVE), "--launcher", shape.launcher, "--python", sys.executable]
    output_of([*SLURM, "run", *flags, "--", f"{shape.name}.py"], folder / "scripts", variables.items())
    return run_in(folder)


def run_in(folder: Path) -> Path:
    """The run that a folder keeps."""
    (found,) = (folder / "scripts/runs/own/profiler").iterdir()
    return found


def planted_ns(run_dir: Path, records: Path, ranks: Sequence[int]) -> float | None:
    """What the planted code took per profiled step but the first, on the rank that it took most of."""
    spent = []
    for rank in ranks:
        file = records.with_name(f"{records.name}.rank{rank}")
        if not file.exists():
            return None
        steps = [line for line in steps_of(METRICS.path(run_dir, rank)) if line["phase"] == "active"][1:]
        spent.append(sum(stalls_ns(file, steps)) / len(steps))
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


def judged(shape: Shape, folder: Path, asked: argparse.Namespace) -> str:
    """One line: what was right, and what was said."""
    try:
        if not asked.again:
            with busy(int(asked.busy)):
                run(shape, folder, not asked.healthy)
        said: Said = json.loads(output_of([*SLURM, "report", str(run_in(folder)), "--json"], folder, ()))
    except (AssertionError, OSError, ValueError, subprocess.TimeoutExpired) as error:
        return f"{shape.name}: FAILED {str(error)[-1200:]}"
    (folder / "said.json").write_text(
        json.dumps({"findings": said["findings"], "replay": said.get("replay")}, indent=1)
    )
    steps = len(steps_of(METRICS.path(run_in(folder), 0)))
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

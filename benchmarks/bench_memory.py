"""Are the plan's bytes right, and what is said of a training whose memory grows?

    python benchmarks/bench_memory.py [--only tiny|real]
    python benchmarks/bench_memory.py --only own [--scripts NAME…] [--truth] [--out FILE]
    python benchmarks/bench_memory.py --only kills [--out FILE]

`tiny` and `real` build a rank's training as the exercises do (memory_of_training.py): tiny models with real memory,
Mistral-7B with storages that have no memory. Prints the tables of docs/theory.md.

`own` runs the trainings of memory_shapes, with and without `--memory`: the line that keeps, the bytes per step, false
alarms, and what it costs. With --truth they run without the harness, and the kernel's count stands beside
memory_shapes/truth.yaml. `kills` runs some of them in a cgroup that allows less than they need (root).
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import fmean, linear_regression
from typing import Any, NamedTuple

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness.cli.command import read_launch
from harness.cli.launch.launch import request_of
from harness.common.run_folder.run_files import METRICS
from harness.launch.submit import prepare
from harness.plan.memory import Workload, of_stage, peak_memory, workload_of
from harness.theory.peak import Peak
from tests.common.cgroups import V1, V2, Cgroup, cgroup

ROOT = Path(__file__).parents[1]
TINY = "--model tiny-mistral --micro-batch-size 2 --seq-length 256"
REAL = "--model mistral-7b --random-weights --micro-batch-size 1 --seq-length 2048"
MODELS = {"tiny": TINY, "real": REAL}
MIXED, AGAIN = "--mixed-precision", "--mixed-precision --activation-checkpointing"
CASES = {
    TINY: [
        *(f"-e 1 -g 4 {more}" for more in ("", MIXED, AGAIN, "--gradient-accumulation-steps 2")),
        *(f"-e 2 -g 4 --ds-stage1 {more}" for more in ("", MIXED)),
        *(f"-e 2 -g 4 --ds-stage2 {more}" for more in ("", MIXED, AGAIN, f"--ds-no-overlap {MIXED}")),
        *(f"-e 2 -g 4 {more}" for more in ("", MIXED, AGAIN, f"--ds-hpz-partition 2 {MIXED}")),
        *(f"-e 3 -g 4 {more}" for more in ("--tp 1", f"--tp 2 {MIXED}", f"--tp 4 {AGAIN}", "--tp 1 --cp 2")),
        *(f"-e 3 -g 4 {more}" for more in ("--tp 2 --pp 2", "--tp 1 --pp 4", "--tp 1 --pp 2 --vpp 2")),
    ],
    REAL: [
        *(f"-e 1 -g 4 {more}" for more in ("", MIXED, AGAIN)),
        *(f"-e 2 -g 8 --ds-stage2 {more}" for more in ("", MIXED, AGAIN)),
        *(f"-e 2 -g 8 {more}" for more in ("", MIXED, AGAIN, f"--ds-hpz-partition 4 {MIXED}")),
        *(f"-e 3 -g 8 --global-batch-size 8 {more} {MIXED}" for more in ("--tp 8", "--tp 4", "--tp 4 --pp 2")),
        *(f"-e 3 -g 8 --global-batch-size 8 {more}" for more in (f"--tp 2 --pp 4 {AGAIN}", f"--tp 4 --cp 2 {MIXED}")),
    ],
}  # fmt: skip


class Row(NamedTuple):
    """One case: what was estimated and what was allocated, in bytes."""

    case: str
    estimated: Peak
    measured: dict[str, Any]

    def errors(self) -> dict[str, float]:
        """Estimate over measurement: of each part of the state, and of the peak."""
        owned = self.measured["owned"]
        step = self.estimated.step
        weights = owned["weights"] + owned.get("secondary", 0)
        return {
            "weights": step.weights / weights,
            "gradients": step.gradients / owned["gradients"],
            "optimizer": step.optimizer / owned["optimizer"],
            "peak": self.estimated.highest.total / self.peak,
        }

    @property
    def peak(self) -> int:
        return int(max(self.measured["peaks"].values()))


def workload(words: str) -> Workload:
    """The training that the words of a launch on this machine give."""
    line = read_launch([*words.split(), "--site", "local"])
    experiment, choice = request_of(line)
    found = workload_of(prepare(experiment, choice.site).job)
    assert found is not None, words
    return found


def estimate(words: str, rank: int) -> Peak:
    """The peak of a rank, without what the process needs itself, which is not allocated as tensors."""
    w = workload(words)
    if w.sharding is not None:
        return peak_memory(w, framework=0.0)
    return of_stage(w, rank * w.layout.pp // w.ranks, w.checkpointing, 0.0)


def measure(words: str, rank: int, fake: bool) -> dict[str, Any]:
    """What a rank of that training allocates."""
    argv = [sys.executable, str(ROOT / "benchmarks/memory_of_training.py"), "--rank", str(rank)]
    argv += [*["--fake"] * fake, "--", *words.split()]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise SystemExit(f"{words}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def rows(model: str) -> Iterator[Row]:
    """Every case of a model, on the first rank and, of a pipeline, on the last one too."""
    for case in CASES[model]:
        words = f"{case} {model}"
        w = workload(words)
        for rank in dict.fromkeys([0, w.ranks - 1] if w.layout.pp > 1 else [0]):
            place = f", rank {rank}" if w.layout.pp > 1 else ""
            yield Row(f"`{' '.join(case.split())}`{place}", estimate(words, rank), measure(words, rank, model == REAL))


def table_of(model: str) -> None:
    """One line per case: the peak, and each estimate over what was allocated."""
    unit, size = ("MB", 1e6) if model == TINY else ("GB", 1e9)
    heads = ("peak, estimated", "allocated", "ratio", "weights", "gradients", "optimizer")
    print(f"| {model.partition(' --random')[0]} | {' | '.join(heads)} |")
    print("|---|---|---|---|---|---|---|")
    worst = 0.0
    for row in rows(model):
        errors = row.errors()
        worst = max(worst, abs(errors["peak"] - 1))
        parts = " | ".join(f"{errors[name]:.3f}" for name in ("weights", "gradients", "optimizer"))
        print(
            f"| {row.case} | {row.estimated.highest.total / size:.2f} {unit} | {row.peak / size:.2f} {unit} "
            f"| {errors['peak']:.3f} | {parts} |",
            flush=True,
        )
    print(f"\nThe largest error of a peak: {worst:.1%}\n")


# ---- Trainings that keep memory

SHAPES = ROOT / "benchmarks/memory_shapes"
SLURM = ("bash", str(ROOT / "slurm.sh"))
MARKS = ("# keeps", "# peak")
CLOSE = 0.05
TIMEOUT_S = 300
PLAIN = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}
EXACT = {"MALLOC_MMAP_THRESHOLD_": "32768"}  # glibc leaves holes between kept blocks; with this the kernel frees each
Said = dict[str, Any]


class Shape(NamedTuple):
    """A training of memory_shapes, with its entry of truth.yaml. bytes: per step, of a peak those of its block."""

    name: str
    kind: str
    of: str
    bytes: int
    processes: int
    ranks: list[int]

    @property
    def script(self) -> Path:
        """What is started."""
        return SHAPES / self.name

    def is_at(self, where: Mapping[str, Any] | None) -> bool:
        """Whether this is the marked line, or another one of its statement."""
        files = self.script.parent.glob("*.py") if "/" in self.name else [self.script]
        return where is not None and any(
            Path(where["file"]).name == file.name and where["line"] in marked(file.read_text(encoding="utf-8"))
            for file in files
        )


def shapes() -> Iterator[Shape]:
    """All of truth.yaml."""
    for name, said in yaml.safe_load((SHAPES / "truth.yaml").read_text(encoding="utf-8")).items():
        processes = said.get("processes", 1)
        size = said.get("bytes_per_step", said.get("bytes", 0))
        ranks = said.get("ranks", list(range(processes)))
        yield Shape(name, said["kind"], said.get("of", "none"), size, processes, ranks)


def marked(text: str) -> range:
    """The lines of the marked statement; of a decorator's those of its function. Empty: none is marked."""
    lines = [number for number, line in enumerate(text.splitlines(), 1) if line.endswith(MARKS)]
    for node in ast.walk(ast.parse(text)):
        for line in lines:
            starts = [each.lineno for each in getattr(node, "decorator_list", [])]
            if isinstance(node, ast.stmt) and (line in starts or not hasattr(node, "body")):
                first, last = min([node.lineno, *starts]), node.end_lineno or node.lineno
                if first <= line <= last:
                    return range(first, last + 1)
    return range(0)


def told(argv: Sequence[str], folder: Path, variables: Mapping[str, str], status: int | None = 0) -> str:
    """Standard output of a program. Raises AssertionError: its status is another one (None: any is right)."""
    environment = {**os.environ, **PLAIN, **variables}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    words = f"{' '.join(argv)}: {done.returncode}\n{done.stdout[-1000:]}{done.stderr[-1000:]}"
    assert status is None or done.returncode == status, words
    return done.stdout


def run_argv(shape: Shape, *flags: str) -> list[str]:
    """The launch of a training under the harness."""
    argv = [*SLURM, "run", "-n", "1", "-g", str(shape.processes), "--site", "local", "--python", sys.executable]
    return [*argv, *flags, "--", str(shape.script)]


def observed(shape: Shape, *flags: str) -> Said:
    """What the report says of a run, and the seconds from its first step's end to the last one's."""
    with tempfile.TemporaryDirectory() as name:
        runs = {"HARNESS_RUNS": name}
        told(run_argv(shape, *flags), Path(name), runs)
        (run,) = run_folders(Path(name))
        said: Said = json.loads(told([*SLURM, "report", str(run), "--json"], Path(name), runs))
        lines = map(json.loads, METRICS.path(run, 0).read_text(encoding="utf-8").splitlines())
        ends = [line["unix_ns"] for line in lines if line["event"] == "step"]
        ranks = said["training"]
        peak = max(ranks, key=lambda rank: rank.get("sampled_peak_bytes") or 0)["sampled_peak_line"] if ranks else None
        return {"growth": said["memory_growth"], "peak": peak, "seconds": (ends[-1] - ends[0]) / 1e9}


def run_folders(runs: Path) -> list[Path]:
    """The runs that a folder holds."""
    return sorted(file.parent for file in runs.rglob("run.json"))


# -- what the kernel counts --------------------------------------------------------------------------------------------


def sample(out: Path, script: Path) -> None:
    """Run a script, and write after each optimizer step the anonymous bytes of its process and of those below it."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    with out.with_name(f"{out.name}.rank{os.environ.get('RANK', '0')}").open("w", encoding="utf-8") as file:

        def write(*_: object) -> None:
            print(time.monotonic_ns(), anonymous(os.getpid()), sum(map(anonymous, below(os.getpid()))), file=file)

        register_optimizer_step_post_hook(write)
        sys.argv, sys.path[0] = [str(script)], str(script.parent)
        runpy.run_path(str(script), run_name="__main__")
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        highest, now = (int(re.findall(rf"{name}:\s+(\d+)", status)[0]) << 10 for name in ("VmHWM", "VmRSS"))
        print("peak", highest, now, file=file)


def anonymous(pid: int) -> int:
    """Resident bytes of a process that belong to no file and no shared memory; 0: it has ended."""
    with suppress(OSError):
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()
        return (int(resident) - int(shared)) * os.sysconf("SC_PAGESIZE")
    return 0


def below(pid: int) -> list[int]:
    """The processes that a process has started."""
    found = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(each) for each in (task / "children").read_text(encoding="utf-8").split()]
    return found + [each for child in found for each in below(child)]


def measured(shape: Shape, variables: Mapping[str, str]) -> tuple[float, float]:
    """Bytes per step of the first rank that keeps, after the first quarter of its steps, by least squares; of a peak
    the bytes between the highest count and the last. And the milliseconds of a step."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "samples"
        argv = [sys.executable]
        if shape.processes > 1:
            argv += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(shape.processes)]
        told([*argv, __file__, "--sample", str(out), str(shape.script)], Path(name), variables)
        text = out.with_name(f"samples.rank{shape.ranks[0]}").read_text(encoding="utf-8").splitlines()
    *lines, peak = (line.split() for line in text)
    rows = [[int(value) for value in line] for line in lines]
    ms = (rows[-1][0] - rows[0][0]) / (len(rows) - 1) / 1e6
    if shape.of == "peak":
        return float(int(peak[1]) - int(peak[2])), ms
    sizes = [row[2 if shape.of == "workers" else 1] for row in rows[len(rows) // 4 :]]
    return linear_regression(range(len(sizes)), sizes).slope, ms


def truth_row(shape: Shape) -> Said:
    """The truth beside what the kernel counts: where each block is freed at once, and as glibc keeps them."""
    (exact, ms), (usual, _) = measured(shape, EXACT), measured(shape, {})
    ratio = f"{exact / shape.bytes:.3f}" if shape.bytes else "–"
    cells = (shape.kind, mb(shape.bytes), mb(exact), ratio, mb(usual), f"{ms:.1f}")
    print(f"| {shape.name} | {' | '.join(cells)} |", flush=True)
    return {"name": shape.name, "truth": shape.bytes, "measured": exact, "with_holes": usual, "step_ms": ms}


# -- what is said of them ----------------------------------------------------------------------------------------------


def leaks(said: Said) -> list[Said]:
    """What leads the answer: what grows, and neither with the batch nor by memory that the program has freed; in a
    worker with a line only."""
    kept = [each for each in said["growth"] if not each["by_batch"] and not each["is_free"]]
    return [each for each in kept if each["of"] != "workers" or each["keepers"]]


def close(value: float | None, truth: float) -> bool:
    """Whether a rate is near the truth."""
    return value is not None and abs(value / truth - 1) <= CLOSE


def judged(shape: Shape) -> Said:
    """One training, with and without `--memory`: what was right, where something is to be said."""
    said, alone = observed(shape, "--memory"), observed(shape)
    row: Said = {"name": shape.name, "of": shape.of, "kind": shape.kind, "truth": shape.bytes}
    row |= {"cost_s": said["seconds"] - alone["seconds"], "said": said, "alone": alone}
    if shape.of in ("host", "workers"):
        own = [each for each in leaks(said) if each["of"] == shape.of]
        keeper = next((each["keepers"][0] for each in own if each["keepers"]), None)
        row["line"] = keeper is not None and shape.is_at(keeper["where"])
        row["rate"] = close(keeper["bytes_per_step"] if keeper else None, shape.bytes)
        process = own[0]["per_step"] if own else None
        row["process_rate"] = close(process, shape.bytes)
        if shape.of == "host":
            row["found"] = any(each["of"] == "host" and each["ranks"] == shape.ranks for each in leaks(alone))
    elif shape.of == "peak":
        row["line"] = shape.is_at(said["peak"])
    elif shape.of == "batch":
        row["batch"] = bool(said["growth"]) and not leaks(said)
    if shape.of in ("none", "batch", "peak"):
        row["quiet"] = not leaks(said)
        row["quiet_alone"] = not leaks(alone)
    return row


VERDICTS = {
    "line": "the right line first",
    "rate": "its bytes per step within 5 %",
    "process_rate": "the process's bytes per step within 5 %",
    "found": "growth and ranks right without --memory",
    "batch": "growth with the batch called so",
    "quiet": "healthy, no false alarm",
    "quiet_alone": "healthy, no false alarm without --memory",
}


def own(names: Sequence[str]) -> list[Said]:
    """The table of the trainings and its totals."""
    print("| script | truth | " + " | ".join(VERDICTS) + " | said | cost |\n|" + "---|" * (len(VERDICTS) + 4))
    rows = []
    for shape in chosen(names):
        try:
            row = judged(shape)
        except (AssertionError, LookupError, OSError, ValueError, subprocess.TimeoutExpired) as error:
            row = {"name": shape.name, "of": shape.of, "failed": f"{type(error).__name__}: {error}"[-2000:]}
            print(f"{shape.name}: FAILED {row['failed']}", flush=True)
        else:
            marks = (yes_or_no(row.get(name)) for name in VERDICTS)
            cells = (mb(shape.bytes), *marks, sentence(row["said"]), f"{row['cost_s']:.1f} s")
            print(f"| {shape.name} | {' | '.join(cells)} |", flush=True)
        rows.append(row)
    print()
    for name, what in VERDICTS.items():
        total([row[name] for row in rows if name in row], what)
    costs = sorted(row["cost_s"] for row in rows if "cost_s" in row)
    if costs:
        print(f"--memory adds {costs[0]:.1f} to {costs[-1]:.1f} s, mean {fmean(costs):.1f} s")
    return rows


def chosen(names: Sequence[str]) -> Iterator[Shape]:
    """The trainings with these names; all without names."""
    return (shape for shape in shapes() if not names or shape.name in names)


def sentence(said: Said) -> str:
    """What grows, and the first keeper of each."""
    found = []
    for each in said["growth"]:
        keepers = [f" {Path(one['where']['file']).name}:{one['where']['line']}" for one in each["keepers"][:1]]
        by_batch = " by batch" if each["by_batch"] else ""
        found.append(f"{each['of']} {each['ranks']} {each['per_step'] / 1e6:.2f}{by_batch}{''.join(keepers)}")
    return "; ".join(found) or "nothing"


def yes_or_no(right: bool | None) -> str:
    """A cell: empty where nothing is to be said."""
    return {None: "", True: "yes", False: "no"}[right]


def mb(size: float) -> str:
    """Bytes as MB."""
    return f"{size / 1e6:.3f}"


def total(right: Iterable[bool], what: str) -> None:
    """A line: how many of how many."""
    each = list(right)
    if each:
        print(f"{what}: {sum(each)} of {len(each)} ({fmean(each):.0%})")


# -- kills -------------------------------------------------------------------------------------------------------------


class Kill(NamedTuple):
    """A training in a cgroup that allows fewer bytes than it needs. cause: a word of the sentence that is right."""

    script: str
    cause: str
    limit_mb: int


GREW, PEAK, OTHERS = "grew", "peak", "other processes"
KILLS = (
    Kill("deque_outputs.py", GREW, 1000),
    Kill("total_loss.py", GREW, 650),
    Kill("ema_copies.py", GREW, 650),
    Kill("optimizers.py", GREW, 650),
    Kill("tracebacks.py", GREW, 600),
    Kill("peak_scores.py", PEAK, 600),
    Kill("peak_distances.py", PEAK, 600),
    Kill("scalar_logs.py", OTHERS, 800),
    Kill("ema_in_place.py", OTHERS, 800),
    Kill("lazy_buffers.py", OTHERS, 800),
)
FIRST_STEPS = 30  # before another process begins to take memory
PIECE_BYTES = 4 << 20
INSIDE = ("bash", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"')  # then the cgroup's folder, and the words
# The kernel ends the largest process of those with this score, which is the rank, and not who takes the memory.
CHOSEN_FIRST = ("bash", "-c", 'echo 1000 >/proc/self/oom_score_adj && exec "$0" "$@"')


def killed(kill: Kill, shape: Shape) -> Said:
    """Run it in a cgroup, and read what `status` says."""
    with tempfile.TemporaryDirectory() as name, some_cgroup() as group:
        group.limit(kill.limit_mb * 1_000_000)
        inside = [*INSIDE, str(group.path)]
        runs = {"HARNESS_RUNS": name}
        taker = None
        if kill.cause == OTHERS:
            argv = [*inside, sys.executable, __file__, "--take", name, str(group.path)]
            taker = subprocess.Popen(argv, env={**os.environ, **PLAIN})
        try:
            told([*CHOSEN_FIRST, *inside, *run_argv(shape, "--no-profile")], Path(name), runs, status=None)
        finally:
            if taker is not None:
                taker.kill()
                taker.wait()
        (run,) = run_folders(Path(name))
        said = told([*SLURM, "status", str(run)], Path(name), runs, status=None)
        ranks = bool(re.search(r"\brank 0\b", said))
        row = {"name": kill.script, "cause": kill.cause, "kills": kills_of(group), "said": said}
        limit = "cgroup" in said or "limit" in said
        causes = [cause for cause in (GREW, PEAK, OTHERS) if re.search(rf"\b{cause}\b", said)]  # not of a script's name
        return {**row, "rank": ranks, "limit": limit, "right": ranks and limit and causes == [kill.cause]}


@contextmanager
def some_cgroup() -> Iterator[Cgroup]:
    """A cgroup of the hierarchy that this machine has. Raises SystemExit: none can be made."""
    for version in (V1, V2):
        try:
            with cgroup(version) as group:
                yield group
                return
        except pytest.skip.Exception as skipped:
            print(f"cgroup {version}: {skipped}")
    raise SystemExit("`kills` needs a cgroup whose memory can be limited; this machine allows none.")


def kills_of(group: Cgroup) -> int:
    """How many processes the kernel has killed in it."""
    file = group.path / ("memory.oom_control" if group.version == V1 else "memory.events")
    return int(re.findall(r"^oom_kill (\d+)", file.read_text(encoding="utf-8"), re.MULTILINE)[0])


def take(runs: Path, path: Path) -> None:
    """Once the training in `runs` has done its first steps: take memory until the kernel kills in the cgroup."""
    group, taken = Cgroup(path, V1 if (path / "memory.oom_control").exists() else V2), []
    while steps_in(runs) < FIRST_STEPS:
        time.sleep(0.02)
    while not kills_of(group):
        taken.append(b"x" * PIECE_BYTES)
    time.sleep(TIMEOUT_S)  # until it is ended


def steps_in(runs: Path) -> int:
    """The steps that rank 0 of the run in a folder has written."""
    for run in run_folders(runs):
        with suppress(OSError):
            return METRICS.path(run, 0).read_text(encoding="utf-8").count('"step"')
    return 0


def kills(names: Sequence[str]) -> list[Said]:
    """The table of the kills and its total."""
    known = {shape.name: shape for shape in shapes()}
    print("| script | cause | kills | rank | limit | right |\n|---|---|---|---|---|---|")
    rows = []
    for kill in KILLS:
        if names and kill.script not in names:
            continue
        row = killed(kill, known[kill.script])
        marks = (str(row["kills"]), *(yes_or_no(row[name]) for name in ("rank", "limit", "right")))
        print(f"| {kill.script} | {kill.cause} | {' | '.join(marks)} |", flush=True)
        rows.append(row)
    print()
    total((row["right"] for row in rows), "kills named")
    return rows


def truths(names: Sequence[str]) -> list[Said]:
    """The table of --truth."""
    print(
        "| script | kind | truth, MB | counted | ratio | with glibc's holes | step, ms |\n|---|---|---|---|---|---|---|"
    )
    return [truth_row(shape) for shape in chosen(names)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[*MODELS, "own", "kills"])
    parser.add_argument("--scripts", nargs="+", default=[], choices=[shape.name for shape in shapes()])
    parser.add_argument("--truth", action="store_true", help="of own: what the kernel counts, without the harness")
    parser.add_argument("--out", type=Path, help="own, kills: also write the numbers to this JSON file")
    parser.add_argument("--sample", nargs=2, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--take", nargs=2, type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.sample:
        sample(*asked.sample)
    elif asked.take:
        take(*asked.take)
    elif asked.only in ("own", "kills"):
        table: Callable[[Sequence[str]], list[Said]] = (
            (truths if asked.truth else own) if asked.only == "own" else kills
        )
        rows = table(asked.scripts)
        if asked.out:
            asked.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    else:
        for name, model in MODELS.items():
            if asked.only in (None, name):
                table_of(model)


if __name__ == "__main__":
    main()

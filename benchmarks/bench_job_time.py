"""Does the job's time name the right part, time and line? Delays of 14 kinds are planted into trainings of
tests/own/scripts, each as its author could have written it. The numbers are compared with those of the same training
without them.

    .venv/bin/python benchmarks/bench_job_time.py [--scripts plain_ddp,fsdp2] [--seconds 2]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from own_trainings import SCRIPTS, TRAININGS

from harness.analysis.summary import CodeLocation, JobTime
from harness.common.job_parts import CHECKPOINTS, DATA, EVALUATION, FIRST_STEP, IMPORTS, MEETING, MODEL, OTHER, TAIL
from harness.measure.job_time.records import rank_record, read_job_time
from harness.measure.job_time.time_lines import RankRecord, RankTimeLine, rank_line
from harness.run import Run, all_runs

ROOT = Path(__file__).resolve().parents[1]
PARTS = {
    "installed_package": IMPORTS,
    "own_module": IMPORTS,
    "late_rank": MEETING,
    "other_code": OTHER,
    "model": MODEL,
    "weights": MODEL,
    "dataset": DATA,
    "first_batch": DATA,
    "first_step": FIRST_STEP,
    "evaluation": EVALUATION,
    "checkpoint": CHECKPOINTS,
    "save_function": CHECKPOINTS,
    "tail": TAIL,
    "late_end": TAIL,
}
IN_FIRST_STEP = ("first_batch", "first_step")
LATE_NS = 1 << 62
# Of each part one in a run: the part's own number is then the planted time.
TOGETHER = (
    ("installed_package", "late_rank", "model", "dataset", "first_step", "evaluation", "checkpoint", "tail"),
    ("own_module", "other_code", "weights", "first_batch", "save_function", "late_end"),
)
DELAY = '''"""Spends time where the variable PLANTED names the place; an installed package of the trainings."""
import multiprocessing
import os
import time

_PLACES = dict(text.split("=") for text in os.environ.get("PLANTED", "").split(",") if text)


def spend(place, rank=None):
    """Half of the time asleep, half of it at work. rank: the only one that does."""
    if rank is not None and os.environ.get("RANK", "0") != str(rank):
        return
    seconds = float(_PLACES.pop(place, 0))
    is_loader = multiprocessing.parent_process() is not None
    if seconds and (place == "first_batch" or not is_loader):
        begin = time.time_ns()
        time.sleep(seconds / 2)
        end = time.monotonic() + seconds / 2
        while time.monotonic() < end:
            sum(range(1000))
        with open(f"{os.environ['SPENT']}/{place}.{os.environ.get('RANK', '0')}", "w") as file:
            file.write(f"{begin} {time.time_ns()}")


class Slow:
    """Takes its time when it is written into a checkpoint, or read from one."""

    def __init__(self, write="", read=""):
        self.write, self.read = write, read

    def __getstate__(self):
        spend(self.write)
        return {"write": self.write, "read": self.read}

    def __setstate__(self, state):
        self.__dict__.update(state)
        spend(self.read)
'''
HELPERS = """
def restore(model):
    path = f"weights{os.environ.get('RANK', '0')}.pt"
    torch.save([model.state_dict(), delay.Slow(read="weights")], path)
    torch.load(path, weights_only=False)  # at weights


def measure_accuracy(model, batch):
    model.eval()
    with torch.no_grad():
        for number in range(6):
            model(**batch) if isinstance(batch, dict) else model(batch)
            if number == 2:
                delay.spend("evaluation")  # at evaluation
    model.train()


def keep(model):
    path = "kept.pt" + os.environ.get("RANK", "")
    torch.save([model.state_dict(), delay.Slow(write="checkpoint")], path)  # at checkpoint


def save_snapshot(model):
    delay.spend("save_function")  # at save_function
    torch.save(model.state_dict(), "snapshot.pt" + os.environ.get("RANK", ""))

"""


@dataclass(frozen=True)
class Base:
    """A training and what is put into it: after each text the lines, indented as the text's line plus `more` spaces."""

    name: str
    edits: tuple[tuple[str, tuple[str, ...]], ...]
    before: tuple[tuple[str, tuple[str, ...]], ...] = ()
    places: tuple[str, ...] = tuple(PARTS)
    without: tuple[str, ...] = ()  # lines
    helpers_before: str = "class "


def _spend(place: str, rank: int | None = None) -> str:
    more = "" if rank is None else f", rank={rank}"
    return f'delay.spend("{place}"{more})  # at {place}'


_ENDS = (_spend("tail"), _spend("late_end", 1))


def _in_loop(model: str, batch: str, number: str) -> tuple[str, ...]:
    return (
        f"if {number} == 10:",
        f"    measure_accuracy({model}, {batch})",
        f"    keep({model})",
        f"    save_snapshot({model})",
    )


BASES = (
    Base(
        "plain_ddp",
        (
            ("        super().__init__()", (_spend("model"),)),
            ("        self.count = count", (_spend("dataset"),)),
            (
                "    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, int]]:",
                ('    delay.spend("first_batch")',),
            ),
            ("    def forward(self, images: Tensor) -> Tensor:", ("    " + _spend("first_step"),)),
            ("    model = DistributedDataParallel(Classifier())", ("restore(model)",)),
            ("        watch.step_done()", _in_loop("model", "images", "len(watch._losses)")),
            ("    train(args, dist.get_rank(), dist.get_world_size())", _ENDS),
        ),
        before=(
            ('    dist.init_process_group("gloo")', (_spend("other_code"), _spend("late_rank", 1))),
            ("            images, labels = next(batches)", ("pass  # at first_batch is the next line",)),
        ),
    ),
    Base(
        "fsdp2",
        (
            ("        self.embed = nn.Embedding(VOCABULARY, WIDTH)", (_spend("model"),)),
            ("        self.count, self.rank = count, rank", (_spend("dataset"),)),
            ("    def __getitem__(self, index: int) -> Tensor:", ("    " + _spend("first_batch"),)),
            ("    def forward(self, tokens: Tensor) -> Tensor:", ("    " + _spend("first_step"),)),
            ("        self.model = Decoder()", ("restore(self.model)",)),
            ("            self.watch.step_done()", _in_loop("self.model", "tokens[:, :-1]", "len(self.watch._losses)")),
            ("        Trainer(options.steps, options.truth).fit()", _ENDS),
        ),
        before=(
            ('    dist.init_process_group(backend="gloo")', (_spend("other_code"), _spend("late_rank", 1))),
        ),
        # A worker of its own imports PyTorch, which takes 5 to 9 s: as long as what is planted.
        without=(
            "            num_workers=1,",
            '            multiprocessing_context="spawn",',
            "            persistent_workers=True,",
        ),
    ),
    Base(
        "accelerate_loop",
        (
            ("        self.classifier = nn.Linear(width, 4)", (_spend("model"),)),
            ("    def forward(self, tokens: Tensor) -> Tensor:", ("    " + _spend("first_step"),)),
            ("    tokens = torch.stack([tokens for tokens, _ in samples])", (_spend("first_batch"),)),
            ("    model = TextClassifier()", ("restore(model)",)),
            ("            watch.step_done()", _in_loop("model", "tokens", "len(watch._losses) // 2")),
            ('    accelerator.print("done")', _ENDS),
            ("    set_seed(3)", ("read_dataset()",)),
        ),
        before=(
            (
                "    accelerator = Accelerator(gradient_accumulation_steps=ACCUMULATION, cpu=True)",
                (_spend("other_code"), _spend("late_rank", 1)),
            ),
            ("def main() -> None:", ("def read_dataset():", "    " + _spend("dataset"), "")),
        ),
    ),
    Base(
        "one_process",
        (
            ("def build() -> nn.Sequential:", ("    " + _spend("model"),)),
            ("    images = torch.stack([image for image, _ in samples])", (_spend("first_batch"),)),
            ("    model = build()", ("restore(model)",)),
            ("            watch.step_done()", _in_loop("model", "images", "done")),
            ('    print(f"{done} steps, scale {scaler.get_scale():g}")', (_spend("tail"),)),
            ("            with watch.part(\"forward\"):", ("    " + _spend("first_step"),)),
        ),
        before=(
            (
                "    data = TensorDataset(torch.randn(1024, 3, 32, 32), torch.randint(10, (1024,)))",
                (_spend("other_code"), "load_images()"),
            ),
            ("def build() -> nn.Sequential:", ("def load_images():", "    " + _spend("dataset"), "")),
        ),
        places=tuple(place for place in PARTS if place not in ("late_rank", "late_end")),
        helpers_before="def ",
    ),
    Base(
        "transformers_trainer",
        (
            (
                "        self.tokens = torch.randint(vocabulary, (count, length), "
                "generator=torch.Generator().manual_seed(5))",
                (_spend("dataset"),),
            ),
            ('    """A batch whose first tokens are no labels, as a prompt\'s are not."""', (_spend("first_batch"),)),
            ("        with self.watch.part(\"forward\"):", ("    " + _spend("first_step"),)),
            ("        self.watch.step_done()", _in_loop("trainer_of[0].model", "batch_of[0]", "state.global_step")),
            ("        trainer.train()", tuple(_ENDS)),
        ),
        before=(
            ("        arguments = TrainingArguments(", (_spend("other_code"), _spend("late_rank", 1))),
            ("        trainer = TimedTrainer(", ("made = make_model(config)",)),
            (
                "        trainer.train()",
                (
                    "restore(made)",
                    "trainer_of.append(trainer)",
                    'batch_of.append({"input_ids": torch.zeros(2, 8, dtype=torch.int64)})',
                ),
            ),
            (
                "def main() -> None:",
                (
                    *("trainer_of, batch_of = [], []", "", "", "def make_model(config):"),
                    *("    " + _spend("model"), "    return LlamaForCausalLM(config)", "", ""),
                ),
            ),
        ),
    ),
)  # fmt: skip


def planted(base: Base, source: str) -> str:
    """The training's source with all places, none of which spends time before PLANTED names it. Raises LookupError."""
    lines = [line for line in source.splitlines() if line not in base.without]
    for text, added in base.before:
        at = _line(lines, text, base)
        lines[at:at] = _indented(text, added)
    for text, added in base.edits:
        at = _line(lines, text, base)
        lines[at + 1 : at + 1] = _indented(text, added)
    first = next(i for i, line in enumerate(lines) if line.startswith("import torch"))
    lines[first + 1 : first + 1] = [
        "import os",
        "import delay",
        "import slow_installed  # at installed_package",
        "import own_module",
    ]
    where = next(i for i, line in enumerate(lines) if line.startswith(("class ", "def ", "@", base.helpers_before)))
    lines[where:where] = HELPERS.splitlines()
    return "\n".join(lines) + "\n"


def _line(lines: Sequence[str], text: str, base: Base) -> int:
    if text not in lines:
        raise LookupError(f"{base.name} has no line {text!r}")
    return lines.index(text)


def _indented(text: str, added: Sequence[str]) -> list[str]:
    indent = text[: len(text) - len(text.lstrip())]
    return [f"{indent}{line}" if line else "" for line in added]


def prepare(base: Base, folder: Path) -> None:
    """A folder with the planted training, its module, and an installed package beside it."""
    shutil.copytree(SCRIPTS, folder, dirs_exist_ok=True)
    script = folder / f"{base.name}.py"
    script.write_text(planted(base, script.read_text(encoding="utf-8")), encoding="utf-8")
    (folder / "own_module.py").write_text('import delay\n\ndelay.spend("own_module")  # at own_module\n')
    (folder / "spent").mkdir()
    packages = folder / "env/site-packages"
    packages.mkdir(parents=True)
    (packages / "delay.py").write_text(DELAY, encoding="utf-8")
    (packages / "slow_installed.py").write_text('import delay\n\ndelay.spend("installed_package")\n')


def run(base: Base, folder: Path, places: Sequence[str], seconds: float) -> tuple[Run, JobTime]:
    """One run with some places active, and its job's time. Raises RuntimeError: it failed."""
    training = TRAININGS[base.name]
    spent = ",".join(f"{place}={seconds}" for place in places)
    environment = {
        **os.environ,
        **dict(training.environment),
        "PYTHONPATH": str(folder / "env/site-packages"),
        "HARNESS_RUNS": str(folder / "runs"),
        "PLANTED": spent,
        "SPENT": str(folder / "spent"),
        "OMP_NUM_THREADS": "1",
    }
    launcher = ["--launcher", training.launcher] if training.launcher != "torchrun" else []
    words = ["run", "-g", str(training.ranks), *launcher, "--profiler", "none", "--", *training.words]
    done = subprocess.run(
        ["bash", str(ROOT / "slurm.sh"), *words, "--steps", "24"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    os.environ["HARNESS_RUNS"] = str(folder / "runs")
    last = all_runs()[-1]
    found = read_job_time(last)
    if found is None or done.returncode:
        raise RuntimeError(f"{base.name}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return last, found


@dataclass(frozen=True)
class Answer:
    """What the job's time says of a planted delay."""

    script: str
    place: str
    part: str  # empty: less than half of it is in the right one
    seconds: float  # in the part
    spent: float  # there, which a busy machine makes longer than asked
    line: bool

    def right_part(self) -> bool:
        return self.part == PARTS[self.place]


def answers(base: Base, folder: Path, places: Sequence[str], seconds: float, before: JobTime) -> Iterator[Answer]:
    """Each place's answer: how much of the time that was spent there its rank's time line has in the right part. What
    the first step takes longer has no place in it: there the part's growth counts. The part is right from half on."""
    made, found = run(base, folder, places, seconds)
    parts = sum(part.duration_ns for part in found.parts)
    assert abs(parts - found.elapsed_ns) < 1e9, "the parts do not add up"
    lines = {record.rank: rank_line(record, record.begun_ns, LATE_NS) for record in _records(made)}
    for place in places:
        part, files = PARTS[place], list((folder / "spent").glob(f"{place}.*"))
        if place in IN_FIRST_STEP:
            grown = _ns(found, part) - _ns(before, part)
        else:
            grown = min(_inside(file, lines) for file in files)
        where = next((each.where for each in found.parts if each.part == part), None)
        if part == IMPORTS:
            package = "slow_installed" if place == "installed_package" else "own_module"
            where = next((each.where for each in found.imports if each.package == package), None)
        right = part if grown > seconds / 2 * 1e9 and _ns(found, part) > seconds / 2 * 1e9 else ""
        spent = min(end - begin for begin, end in map(_times, files))
        yield Answer(base.name, place, right, grown / 1e9, spent / 1e9, _is_at(folder, place, where))


def _records(made: Run) -> Iterator[RankRecord]:
    for path in made.path.glob("job-time/*.jsonl"):
        record = rank_record(made.path, path)
        if record is not None:
            yield record


def _times(spent: Path) -> tuple[int, int]:
    begin, end = map(int, spent.read_text(encoding="utf-8").split())
    return begin, end


def _inside(spent: Path, lines: dict[int, RankTimeLine]) -> int:
    """How much of a stretch that a rank has spent at a place is in the place's part. spent: its file, PLACE.RANK."""
    begin, end = _times(spent)
    part = OTHER if PARTS[spent.stem] == MEETING else PARTS[spent.stem]
    stretches = [each for each in lines[int(spent.suffix[1:])].stretches if each.part == part]
    return sum(max(min(each.end_ns, end) - max(each.begin_ns, begin), 0) for each in stretches)


def _ns(found: JobTime, part: str) -> int:
    return sum(each.duration_ns for each in found.parts if each.part == part)


def _is_at(folder: Path, place: str, where: CodeLocation | None) -> bool:
    """Whether a line has the remark of the place; `is the next line`: the one before has it."""
    if where is None or where.line is None or not Path(where.file).is_relative_to(folder):
        return False
    lines = ["", *Path(where.file).read_text(encoding="utf-8").splitlines()]
    line = lines[where.line]
    return line.endswith(f"# at {place}") or lines[where.line - 1].endswith(f"# at {place} is the next line")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scripts", default=",".join(base.name for base in BASES))
    parser.add_argument("--seconds", type=float, default=2.0, help="of each planted delay")
    asked = parser.parse_args()
    every: list[Answer] = []
    for base in [base for base in BASES if base.name in asked.scripts.split(",")]:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name).resolve()
            prepare(base, folder)
            _, before = run(base, folder, (), 0)
            for group in TOGETHER:
                places = [place for place in group if place in base.places]
                for answer in answers(base, folder, places, asked.seconds, before):
                    every.append(answer)
                    print(
                        f"{answer.script:22} {answer.place:18} part {'right' if answer.right_part() else 'WRONG':6}"
                        f"{answer.seconds:6.2f} of {answer.spent:.2f} s  line {'right' if answer.line else 'WRONG'}",
                        flush=True,
                    )
    near = [abs(answer.seconds - answer.spent) <= 0.1 * answer.spent for answer in every]
    count = len(every)
    print(
        f"{count} delays of {len({a.place for a in every})} kinds: part right {sum(a.right_part() for a in every)}, "
        f"seconds within 10 % {sum(near)}, line right {sum(a.line for a in every)}"
    )
    sys.exit(0 if count else 1)


if __name__ == "__main__":
    main()

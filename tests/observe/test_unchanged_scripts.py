"""Scripts that know nothing of the observer: it never changes what they do, and says the truth about how they ended."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.observe.unchanged import MODEL, start

pytest.importorskip("torch", reason="the scripts train")
pytestmark = pytest.mark.train


def test_the_observer_changes_no_result_and_shows_the_steps(tmp_path: Path) -> None:
    text = MODEL + "print([step(i) for i in range(12)])"
    plain, seen = start(tmp_path, text, observed=False), start(tmp_path, text)
    assert seen.out == plain.out
    assert [step["loss"].hex() for step in seen.steps()] == json.loads(seen.out.replace("'", '"'))
    assert {step["phase"] for step in seen.steps()[3:7]} == {"active"}
    with gzip.open(seen.run / "torch" / "rank0.json.gz") as file:
        names = [event.get("name") for event in json.load(file)["traceEvents"]]
    assert [names.count(f"batch_{i}") for i in range(2, 8)] == [0, 1, 1, 1, 1, 0]
    assert names.count("forward") == names.count("backward") == names.count("optimizer_step") == 4


EVALUATING = """
from torch.utils.data import DataLoader
held = DataLoader(torch.randn(96, 64), batch_size=32)
teacher = torch.nn.Linear(64, 8).eval()

def evaluate(model):
    model.eval()
    with torch.no_grad():
        for batch in held: model(batch)
    model.train()

for i, batch in enumerate(DataLoader(torch.randn(128, 64), batch_size=16)):
    with torch.no_grad(): teacher(batch)
    (model(batch) ** 2).mean().backward()
    optimizer.step()
    if i % 3 == 2: evaluate(WHAT)
"""


@pytest.mark.parametrize("what", ["model", pytest.param("wrapped", marks=pytest.mark.long)])
def test_an_evaluation_is_a_phase_of_its_own_and_its_data_is_not_trained_on(tmp_path: Path, what: str) -> None:
    """Also where what is trained is inside of a wrapper; a teacher's forward passes are none."""
    wrap = "class Wrapper(torch.nn.Module):\n def __init__(self, module):\n  super().__init__(); self.module = module\n"
    wrap += " def forward(self, x): return self.module(x)\nwrapped = model; model = Wrapper(model)\n"
    text = MODEL + (wrap if what == "wrapped" else "") + EVALUATING.replace("WHAT", what)
    run = start(tmp_path, text)
    assert run.said == []
    assert [step["samples"] for step in run.steps()] == [16] * 8
    assert [step["step"] for step in run.steps() if step["evaluation_ns"]] == [3, 6]


LIGHTNING = """
import lightning as L, torch
from torch.utils.data import DataLoader

class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(64, 8)
    def training_step(self, batch, _): return (self.body(batch) ** 2).mean()
    def validation_step(self, batch, _): self.log("held", (self.body(batch) ** 2).mean())
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), lr=0.1)

trainer = L.Trainer(accelerator="cpu", max_steps=8, val_check_interval=3, logger=False, enable_checkpointing=False,
                    enable_model_summary=False, enable_progress_bar=False)
trainer.fit(Net(), DataLoader(torch.randn(160, 64), batch_size=16), DataLoader(torch.randn(96, 64), batch_size=32))
"""


def test_a_validation_of_lightning_is_an_evaluation_also_the_one_before_the_first_step(tmp_path: Path) -> None:
    """Its loop calls parts of the model, and before the first step nothing has been trained yet."""
    pytest.importorskip("lightning")
    run = start(tmp_path, LIGHTNING)
    assert [step["samples"] for step in run.steps()] == [16] * 8
    assert [step["step"] for step in run.steps() if step["evaluation_ns"]] == [0, 3, 6]


@pytest.mark.parametrize(
    ("ending", "code", "status", "reason"),
    [
        ("raise ValueError('no more')", 1, "failed", "ValueError: no more"),
        pytest.param("sys.exit(3)", 3, "completed", None, marks=pytest.mark.long),  # in test_last_words.py too
        ("os.kill(os.getpid(), 15)", -15, "stopped", "SIGTERM"),
    ],
)
def test_how_a_script_ended(tmp_path: Path, ending: str, code: int, status: str, reason: str | None) -> None:
    """Its exit is its own; the steps so far and the recording that had begun are kept."""
    run = start(tmp_path, MODEL + f"for i in range(5): step(i)\n{ending}")
    assert (run.code, len(run.steps())) == (code, 5)
    assert (run.last("end")["status"], run.last("end")["reason"]) == (status, reason)
    assert (run.run / "torch" / "rank0.json.gz").is_file()


KINDS = {  # of scripts, with their exit status
    "a closure": (
        MODEL + "closing = torch.optim.LBFGS(model.parameters(), max_iter=2)\ndef closure():\n closing.zero_grad()\n"
        " loss = (model(torch.ones(16, 64)) ** 2).mean(); loss.backward(); return loss\n"
        "for _ in range(4): closing.step(closure)",
        0,
    ),
    "two optimizers": (
        MODEL + "other = torch.nn.Linear(64, 8); second = torch.optim.SGD(other.parameters(), 0.1)\n"
        "for i in range(4):\n step(i); (other(torch.randn(16, 64)) ** 2).mean().backward(); second.step()",
        0,
    ),
    "no optimizer": (
        MODEL.replace("optimizer = torch.optim.AdamW(model.parameters())", "")
        + "with torch.no_grad():\n for batch in torch.utils.data.DataLoader(torch.randn(64, 64), 16): model(batch)",
        0,
    ),
}


@pytest.mark.parametrize(("text", "code"), KINDS.values(), ids=KINDS)
def test_four_steps_of_any_kind_are_four(tmp_path: Path, text: str, code: int) -> None:
    run = start(tmp_path, text, profiler="none")
    assert (run.code, len(run.steps()), run.said) == (code, 4, []), run.err


@pytest.mark.long  # PyTorch's own ways to look at a model, which change with its version only
def test_models_are_saved_copied_and_compiled_as_without(tmp_path: Path) -> None:
    text = MODEL + (
        "import copy, io\nfor i in range(3): step(i)\n"
        "for each in (model, optimizer, optimizer.state_dict(), copy.deepcopy(model)):\n"
        "    file = io.BytesIO(); torch.save(each, file); assert b'observe' not in file.getvalue()\n"
        "torch.jit.script(model)\n"
        "compiled = torch.compile(model, backend='eager', fullgraph=True)\n"
        "for i in range(3): compiled(torch.randn(16, 64)).sum().backward(); optimizer.step()\n"
        "print(len(torch._dynamo.utils.counters['graph_break']))"
    )
    run = start(tmp_path, text)
    assert (run.code, run.out.strip(), len(run.steps())) == (0, "0", 6), run.err


def test_packages_and_a_sitecustomize_of_the_users_are_found(tmp_path: Path) -> None:
    """Also a package that is called as ours."""
    (tmp_path / "harness.py").write_text("WHOSE = 'the script'", encoding="utf-8")
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("print('as before')", encoding="utf-8")
    text = "import harness\n" + MODEL + "import harness as again\nstep(0)\nprint(harness.WHOSE, again.WHOSE)"
    run = start(tmp_path, text, path=str(other))
    assert run.out.split("\n")[:2] == ["as before", "the script the script"]
    assert (len(run.steps()), run.said) == (1, [])


@pytest.mark.long  # it changes with the version of PyTorch only
def test_a_profiler_of_the_scripts_own_is_left_alone(tmp_path: Path) -> None:
    text = MODEL + (
        "with torch.profiler.profile(schedule=torch.profiler.schedule(wait=3, warmup=1, active=2),\n"
        "    on_trace_ready=lambda own: own.export_chrome_trace('theirs.json')) as own:\n"
        "    for i in range(9): step(i); own.step()\n"
    )
    run = start(tmp_path, text)
    with gzip.open(run.run / "torch" / "rank0.json.gz") as kept:
        assert kept.read() == (tmp_path / "theirs.json").read_bytes()
    [said] = run.said
    assert said.startswith("observer: the script records with torch.profiler itself")
    assert run.last("observed")["notes"] == [said.removeprefix("observer: ")]


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_processes_that_load_data_are_no_ranks(tmp_path: Path, method: str) -> None:
    text = (
        MODEL
        + "from torch.utils.data import DataLoader, TensorDataset\n"
        + "data = TensorDataset(torch.randn(64, 64), torch.zeros(64))\n"
        + "if __name__ == '__main__':\n"
        + f"    for x, y in DataLoader(data, 8, num_workers=2, multiprocessing_context='{method}'):\n"
        + "        step(0)\n"
    )
    run = start(tmp_path, text)
    assert (run.code, len(run.steps()), run.said) == (0, 8, [])
    assert [file.name for file in (run.run / "metrics").iterdir()] == ["rank0.jsonl"]
    assert {step["samples"] for step in run.steps()} == {8}


@pytest.mark.long  # five processes; ranks of other launchers are in tests/own
def test_ranks_that_the_script_spawns_itself(tmp_path: Path) -> None:
    text = (
        "import torch, torch.distributed as dist, torch.multiprocessing as mp\n"
        "def train(rank):\n"
        "    dist.init_process_group('gloo', init_method='file://' + __file__ + '.store', rank=rank, world_size=2)\n"
        "    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 32))\n"
        "    optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "    for _ in range(8): model(torch.randn(4, 32)).sum().backward(); optimizer.step()\n"
        "    dist.destroy_process_group()\n"
        "if __name__ == '__main__':\n"
        "    mp.spawn(train, nprocs=2)\n"
        "    model = torch.nn.Linear(32, 32)\n"  # what the parent does after it is no part of it, and no mistake
        "    optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "    for _ in range(3): model(torch.randn(4, 32)).sum().backward(); optimizer.step()\n"
    )
    run = start(tmp_path, text)
    assert (run.code, run.said) == (0, []), run.err
    for rank in (0, 1):
        assert len(run.steps(rank)) == 8
        assert run.last("end", rank)["status"] == "completed"
        assert (run.run / "torch" / f"rank{rank}.json.gz").is_file()


def test_an_error_of_the_observer_switches_it_off_and_the_training_goes_on(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics").write_text("no folder", encoding="utf-8")
    run = start(tmp_path, MODEL + "for i in range(5): step(i)\nprint('done')")
    assert (run.code, run.out) == (0, "done\n")
    assert len(run.said) == 1 and run.said[0].startswith("observer: off from here on")


def test_a_broken_request_switches_it_off(tmp_path: Path) -> None:
    run = start(tmp_path, MODEL + "step(0)\nprint('done')", window={"skip": 1})
    assert (run.code, run.out, len(run.said)) == (0, "done\n", 1)

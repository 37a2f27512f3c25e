"""A model that a user brings is judged when it is asked for, names its run, and is trained as it was judged."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from harness.experiment.exercises import DDP, DeepSpeed
from harness.experiment.model import find_model
from harness.launch.job import Job, Machine, resolve
from harness.site.site import load_site
from tests.launch.launch_shared import ROOT, Harness

TINY = (ROOT / "configs/models/tiny-llama.yaml").read_text()


def the_model(machine: Machine, path: Path) -> Job:
    return resolve(DDP(model=str(path)), load_site("local"), machine)


def test_a_users_model_file_is_trained_as_it_was_judged(machine: Machine, tmp_path: Path) -> None:
    """A field that it omits gets its default; 1e-5, which YAML reads as text, is a number."""
    lines = [line for line in TINY.splitlines() if not line.startswith(("tiny_twin", "num_local", "num_exp"))]
    mine = tmp_path / "mine.yaml"
    mine.write_text("\n".join(lines).replace("1.0e-5", "1e-5"))
    job = the_model(machine, mine)
    assert yaml.safe_load(job.files["model.yaml"]) == yaml.safe_load(TINY)
    assert str(mine) not in job.commands[0].argv


@pytest.mark.parametrize(("name", "run"), [("meta-llama/Llama-3.2-1B", "Llama-3.2-1B"), ("mine", "mine")])
def test_the_hubs_name_of_a_model_names_the_run(machine: Machine, tmp_path: Path, name: str, run: str) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(TINY.replace("hub_name: tiny-llama", f"hub_name: {name}"))
    assert the_model(machine, mine).name_for("7").startswith(f"{run}-7-")


@pytest.mark.parametrize("name", ["../../../escaped", "../escaped", "a/b/c", "..", ".a", "a b", "'$HOME'", "''"])
def test_a_name_that_leads_elsewhere_is_one_sentence(tmp_path: Path, harness: Harness, name: str) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(TINY.replace("hub_name: tiny-llama", f"hub_name: {name}"))
    done = harness("-e", "1", "--model", str(mine))
    assert done.returncode == 2
    assert f"mine.yaml: field hub_name: got {yaml.safe_load(name)!r}, takes NAME or OWNER/NAME" in done.stderr
    assert len(done.stderr.splitlines()) == 2, "the site and one sentence"
    assert [p.name for p in tmp_path.iterdir()] == ["mine.yaml"]


@pytest.mark.parametrize(
    ("folder", "run"), [(".ckpt", "ckpt"), ("step 100: best", "step-100-best"), ("…", "checkpoint")]
)
def test_a_checkpoints_folder_names_a_run_that_ls_can_show(tmp_path: Path, folder: str, run: str) -> None:
    sizes = yaml.safe_load(TINY) | {"model_type": "llama"}
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "config.json").write_text(json.dumps(sizes))
    assert find_model(str(tmp_path / folder))[0].hub_name == run


SEVEN_BILLION = (ROOT / "configs/models/mistral-7b.yaml").read_text()


def seven_billion(folder: Path, kind: str) -> Path:
    """A user's own model of 7B sizes: a file that names no miniature, or a checkpoint's folder."""
    if kind == "file":
        path = folder / "mine.yaml"
        path.write_text(re.sub("tiny_twin:.*\n", "", SEVEN_BILLION))
        return path
    path = folder / "checkpoint"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(yaml.safe_load(SEVEN_BILLION) | {"model_type": "mistral"}))
    return path


@pytest.mark.parametrize("kind", ["file", "checkpoint"])
def test_the_training_scripts_know_a_users_large_model_as_large(machine: Machine, tmp_path: Path, kind: str) -> None:
    """Exercise 2 writes random weights only of a miniature; exercise 3 scales buckets only of a miniature."""
    models = pytest.importorskip("exercises.utils.models")
    job = resolve(DeepSpeed(model=str(seven_billion(tmp_path, kind))), load_site("local"), machine)
    (tmp_path / "model.yaml").write_text(job.files["model.yaml"])
    assert models.load_model_config(tmp_path / "model.yaml").tiny is False
    for path in (ROOT / "configs/models").glob("*.yaml"):
        assert models.load_model_config(path).tiny is path.stem.startswith("tiny-")


def test_a_users_model_file_trains_no_weights_of_the_site(machine: Machine, tmp_path: Path) -> None:
    """The checkpoint of a site has sizes of its own: the sizes of the file would be ignored."""
    site = load_site("local").model_copy(update={"models_dir": "/models"})
    ours = resolve(DDP(model="mistral-7b"), site, machine)
    mine = resolve(DDP(model=str(seven_billion(tmp_path, "file"))), site, machine)
    assert (ours.checkpoint is None, mine.checkpoint) == (False, None)


def test_megatron_refuses_a_checkpoint_before_the_queue(harness: Harness, tmp_path: Path) -> None:
    folder = seven_billion(tmp_path, "checkpoint")
    done = harness("-e", "3", "--model", str(folder))
    assert done.returncode == 2
    assert f"--model {folder} is a checkpoint, and exercise 3 trains from random weights only" in done.stderr
    assert not (tmp_path / "runs").exists()
    sizes = harness("-e", "3", "--site", "leonardo", "--dry-run", "--", "--model", str(folder), "--random-weights")
    assert sizes.returncode == 0 and "--checkpoint" not in sizes.stdout, sizes.stderr

"""A missing file is named before the job is queued; a path belongs to the folder where it was typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from harness.common.errors import RequestError
from harness.experiment.exercises import DDP, Experiment, Megatron
from harness.launch.before.check import check, forewarnings
from harness.launch.job import Job, Machine, resolve
from harness.site.site import Site, load_site
from tests.launch.launch_shared import ROOT, Harness, site_file, with_whole_paths

MISTRAL = "Mistral-7B-v0.1"


def at(machine: Machine, tmp_path: Path, asked: Experiment, **fields: object) -> Job:
    """The job at a cluster whose container exists."""
    image = tmp_path / "training.sif"
    image.write_bytes(b"hsqs")
    container = {"image": str(image)}
    site = Site.model_validate({"name": "x", "description": "x", "container": container, "modules": ["nsys"]} | fields)
    return resolve(asked, site, machine)


def complaint(job: Job, **environ: str) -> str:
    with pytest.raises(RequestError) as caught:
        check(job, environ)
    return str(caught.value)


@pytest.mark.parametrize(
    ("asked", "fields", "sentence"),
    [
        (DDP(), {"data": "/no/data.json"}, "site x: its data file: /no/data.json does not exist"),
        (DDP(data="/no/data.json"), {}, "--data: /no/data.json does not exist"),
        (DDP(), {"nsys": "nosuch"}, "site x: nsys options"),
        (DDP(), {"nsys": "my/own.json"}, "site x: nsys 'my/own.json' must be a name or an absolute path"),
        (DDP(), {"data": "data.json"}, "'data.json' must be an absolute path"),
        (DDP(), {"models_dir": "/no"}, "site x: the checkpoint /no/Llama-3.2-1B does not exist: add --random-weights"),
        (DDP(model="llama-3.2-3b"), {"models_dir": "/no"}, "the checkpoint /no/Llama-3.2-3B does not exist"),
        (DDP(), {"models_dir": "$M/x"}, "$M/x/Llama-3.2-1B cannot be found, because $M is not set here"),
        (DDP(), {"container": {"image": "$NOPE/x.sif"}}, "$NOPE/x.sif cannot be found, because $NOPE is not set here"),
        (Megatron(tp=4), {"megatron_data": "/no/text"}, "its megatron_data: /no/text does not exist as PREFIX.bin"),
        (Megatron(tp=4, data_path="/no/text"), {}, "--data-path: /no/text does not exist as PREFIX.bin"),
    ],
)
def test_what_is_missing_is_named(
    machine: Machine, tmp_path: Path, asked: Experiment, fields: dict[str, object], sentence: str
) -> None:
    assert sentence in complaint(at(machine, tmp_path, asked, **fields))


def test_without_a_cpp_compiler_no_run_on_this_machines_cpus_begins_to_compile(
    tmp_path: Path, harness: Harness
) -> None:
    words = ("-e", "1", "-g", "1", "--site", "local", "--random-weights")
    done = harness(*words, "--compile", CXX="no-such-compiler")
    assert (done.returncode, (tmp_path / "runs").exists()) == (2, False)
    assert "slurm.sh: --compile: on CPUs torch.compile writes C++ and needs a compiler, and there is no" in done.stderr
    assert "compile" not in harness(*words, "--dry-run", CXX="no-such-compiler").stderr
    elsewhere = harness("-e", "1", "--site", "leonardo", "--compile", "--dry-run", CXX="no-such-compiler")
    assert "no-such-compiler" not in elsewhere.stderr


def test_a_file_where_a_folder_is_needed_is_called_that(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "Llama-3.2-1B").touch()
    said = complaint(at(machine, tmp_path, DDP(), models_dir=str(tmp_path)))
    assert f"the checkpoint {tmp_path}/Llama-3.2-1B exists but is not a folder" in said


def test_a_dry_run_warns_of_what_a_launch_would_stop_at(tmp_path: Path, harness: Harness) -> None:
    container, data = {"image": "/no/training.sif"}, "$NO_PLACE/data.json"
    site = site_file(tmp_path, gpus={"per_node": 4}, container=container, models_dir="/no", data=data)
    done = harness("-e", "1", "--site", site, "--dry-run", NO_PLACE="")
    warned = [line for line in done.stderr.splitlines() if line.startswith("warning: a launch would stop here: ")]
    assert done.returncode == 0 and done.stdout.startswith("#!/bin/bash")
    for sentence in (
        "its container image /no/training.sif does not exist",
        "the checkpoint /no/Llama-3.2-1B does not exist",
        "its data file: $NO_PLACE/data.json cannot be found, because $NO_PLACE is not set here",
    ):
        assert sum(sentence in line for line in warned) == 1
    assert len(warned) == 3 and not (tmp_path / "runs").exists()
    own = harness("-e", "1", "--data", "/no/mine.json", "--dry-run")
    assert "warning: a launch would stop here: --data: /no/mine.json does not exist" in own.stderr
    assert "would" not in harness("-e", "1", "--dry-run").stderr


def test_with_a_stand_in_for_a_missing_torch_a_dry_run_says_that_a_launch_would_first_install_it(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.launch.before.check.importlib.util.find_spec", lambda _: None)
    here = resolve(DDP(data="/no/a"), load_site("local"), machine)
    assert forewarnings(here, {}) == [
        "the training packages are not in .venv: bash slurm.sh would first install them, about a gigabyte",
        "a launch would stop here: --data: /no/a does not exist",
    ]
    (on_a_cluster,) = forewarnings(resolve(DDP(gpus_per_node=1), load_site("slurm"), machine), {})
    assert on_a_cluster.startswith("a launch would stop here: site slurm names no container")


def test_what_the_job_does_not_read_need_not_be_there(machine: Machine, tmp_path: Path) -> None:
    for end in ("bin", "idx"):
        (tmp_path / f"text.{end}").touch()
    missing = {"models_dir": "/no", "nsys": "nosuch"}
    check(at(machine, tmp_path, DDP(random_weights=True, profiler="torch"), **missing), {})
    there = {"megatron_data": "$D/text", "data": "/no/data.json"}
    check(at(machine, tmp_path, Megatron(tp=4), **there), {"D": str(tmp_path)})


def test_paths_are_where_they_were_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").touch()
    asked = with_whole_paths(Megatron(model="mine.yaml", data_path="d/text"))
    assert isinstance(asked, Megatron)
    assert (asked.model, asked.data_path) == (f"{tmp_path}/mine.yaml", f"{tmp_path}/d/text")
    named = with_whole_paths(DDP(model="tiny-llama", data="x.json"))
    assert isinstance(named, DDP)
    assert (named.model, named.data) == ("tiny-llama", f"{tmp_path}/x.json")


@pytest.mark.parametrize("name", ["a,b.json", "a:b.json"])
def test_a_name_that_cannot_be_a_bind_is_refused(machine: Machine, tmp_path: Path, name: str) -> None:
    with pytest.raises(RequestError, match="cannot bind a path with a comma or a colon"):
        at(machine, tmp_path, DDP(data=f"/data/{name}"))


def test_megatron_lm_runs_in_its_own_image(machine: Machine, tmp_path: Path) -> None:
    asked = Megatron(tp=4, engine="megatron-lm", random_weights=True)
    container = {"image": "/training.sif", "nemo_image": "/no/nemo.sif"}
    job = at(machine, tmp_path, asked, container=container, profiler="torch")
    assert job.profiler == "nsys" and "/no/nemo.sif does not exist" in complaint(job)
    with pytest.raises(RequestError, match="needs NeMo's container, and site x names none"):
        at(machine, tmp_path, asked)
    with pytest.raises(RequestError, match="recorded by nsys only"):
        at(machine, tmp_path, asked.model_copy(update={"profiler": "torch"}), container=container)


def test_a_checkpoint_without_weights_is_refused_before_the_queue(machine: Machine, tmp_path: Path) -> None:
    """Its config.json is enough for random weights."""
    sizes = yaml.safe_load((ROOT / "configs/models/tiny-llama.yaml").read_text()) | {"model_type": "llama"}
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(sizes))
    said = complaint(at(machine, tmp_path, DDP(model=str(folder))))
    assert f"the checkpoint {folder} holds no weights (*.safetensors): add --random-weights" in said
    check(at(machine, tmp_path, DDP(model=str(folder), random_weights=True)), {})
    (folder / "model-00001-of-00002.safetensors").touch()
    check(at(machine, tmp_path, DDP(model=str(folder))), {})

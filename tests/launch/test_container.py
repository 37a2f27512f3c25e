"""Each runtime starts a program in its own way; pyxis is srun's, so nsys and what a step inherits are other things."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from harness.experiment.exercises import DDP
from harness.launch.before.check import missing
from harness.launch.job import Job, Machine, resolve, warnings_of
from harness.launch.render import render
from harness.site.site import load_site
from tests.launch.launch_shared import ROOT, site_file

IMAGE = {"image": "/images/training.sqsh"}


def job_with(folder: Path, container: dict[str, object] | None, **fields: object) -> Job:
    """Exercise 1 on two nodes of a Slurm site with this container."""
    site = load_site(site_file(folder, **({"container": container} if container else {}), **fields))
    machine = Machine(0, 2, True, "/venv/bin/python", str(folder / "runs"))
    return resolve(DDP(nodes=2, gpus_per_node=4, random_weights=True), site, machine)


def container_of(folder: Path, **fields: object) -> list[str]:
    """The words before a program that need no variable of the job."""
    return [word for word in job_with(folder, fields).container if isinstance(word, str)]


@pytest.mark.parametrize("runtime", ["singularity", "apptainer"])
def test_the_runtime_is_the_program_unless_another_is_named(tmp_path: Path, runtime: str) -> None:
    words = container_of(tmp_path, runtime=runtime, image="/x.sif")
    assert words[:3] == [runtime, "exec", "--nv"] and words[-1] == "/x.sif"
    named = container_of(tmp_path, runtime=runtime, image="/x.sif", command="/opt/wrapper")
    assert named == ["/opt/wrapper", *words[1:]]


@pytest.mark.parametrize("rest", [{}, {"image": "/x.sif"}])
def test_none_is_as_without_a_container(tmp_path: Path, rest: dict[str, object]) -> None:
    assert render(job_with(tmp_path, {"runtime": "none", **rest})) == render(job_with(tmp_path, None))


def test_a_bind_inside_another_is_left_out_and_one_by_another_name_is_not(tmp_path: Path) -> None:
    binds = ["/data", "/data/x", "/data/y:/opt/y", "/data/../z", "/dataset"]
    words = list(map(str, container_of(tmp_path, runtime="apptainer", binds=binds, **IMAGE)))
    bound = [after for word, after in pairwise(words) if word == "--bind"]
    assert [each for each in bound if each.startswith("/data")] == ["/data", "/data/y:/opt/y", "/data/../z", "/dataset"]


def test_pyxis_takes_options_of_srun_in_place_of_its_own(tmp_path: Path) -> None:
    assert "--container-mount-home" in container_of(tmp_path, runtime="pyxis", **IMAGE)
    words = container_of(tmp_path, runtime="pyxis", arguments=["--no-container-mount-home"], **IMAGE)
    assert "--no-container-mount-home" in words and "--container-mount-home" not in words


def test_an_image_of_a_registry_is_not_looked_for_on_this_machine(tmp_path: Path) -> None:
    of_registry = job_with(tmp_path, {"runtime": "pyxis", "image": "nvcr.io#nvidia/nemo:25.07"})
    assert missing(of_registry, {}) == []
    (said,) = missing(job_with(tmp_path, {"runtime": "pyxis", **IMAGE}), {})
    assert "/images/training.sqsh does not exist" in said


def test_under_pyxis_nsys_is_asked_for_as_it_cannot_be_seen(tmp_path: Path) -> None:
    unasked = job_with(tmp_path, {"runtime": "pyxis", **IMAGE})
    assert unasked.profiler == "torch"
    assert any("write profiler: nsys in the site file" in said for said in warnings_of(unasked, {}))
    asked = render(job_with(tmp_path, {"runtime": "pyxis", **IMAGE}, profiler="nsys"))
    assert '\n  "${CONTAINER[@]}" :: "${NSYS[@]}" :: "${TRAINING[@]}"\n' in asked
    assert f"\nNSYS=(python3 {ROOT}/harness/launch/profilers/nsys.py nsys profile # " in asked

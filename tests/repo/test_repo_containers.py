"""The images are built elsewhere, so here their definitions are compared with the pins, the sites and the docs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.waiting import limit_s

ROOT = Path(__file__).parents[2]
CONTAINERS = ROOT / "containers"
DEFINITIONS = sorted(CONTAINERS.glob("*.def"))
README = (CONTAINERS / "README.md").read_text(encoding="utf-8")


def requirements(name: str) -> list[Requirement]:
    """A list of pyproject.toml, as the training image reads it."""
    (asked,) = re.findall(r"^ +(sed -n .*)$", (CONTAINERS / "training.def").read_text(encoding="utf-8"), re.M)
    command = ["sh", "-c", f"list={name}; {asked}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=limit_s())
    return [Requirement(line) for line in done.stdout.splitlines()]


def section(definition: Path, name: str) -> list[str]:
    """The lines of one section, without comments."""
    found = re.search(rf"^%{name}\n(.*?)(?=^%|\Z)", definition.read_text(encoding="utf-8"), re.M | re.S)
    lines = [line.strip() for line in (found[1] if found else "").splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def arguments(definition: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in section(definition, "arguments"))


def imports(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CONTAINERS / "imports.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit_s())


@pytest.mark.parametrize("name", ["dependencies", "train", "fp8"])
def test_the_training_image_reads_the_pins_as_a_parser_does(name: str) -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no TOML parser to compare with")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["dependencies"] if name == "dependencies" else project["optional-dependencies"][name]
    assert requirements(name) == [Requirement(each) for each in wanted]


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda path: path.stem)
def test_a_definition_is_of_pinned_versions_and_of_files_that_are_there(definition: Path) -> None:
    text, given = definition.read_text(encoding="utf-8"), arguments(definition)
    base = re.search(r"^From: (\S+:(?:\{\{ \w+ \}\}|\d).*)$", text, re.M)
    assert base and "latest" not in base[1], "an image without a version changes under our feet"
    assert set(re.findall(r"\{\{ (\w+) \}\}", text)) == set(given)
    sources = [line.split()[0] for line in section(definition, "files")]
    assert sources and all((ROOT / source).is_file() for source in sources)
    installs = [line for line in section(definition, "post") if "pip install" in line]
    assert all("==" in line or "--constraint constraints.txt" in line for line in installs)
    assert any("imports.py" in line for line in section(definition, "test"))
    row = next(line for line in README.splitlines() if line.startswith(f"| `{definition.name}`"))
    versions = [value for value in given.values() if re.fullmatch(r"[\d.]+", value)]
    assert versions and all(version in row for version in versions)


def test_the_constraints_are_what_pyproject_asks_for() -> None:
    lines = (CONTAINERS / "constraints.txt").read_text(encoding="utf-8").splitlines()
    fixed = dict(line.split("==") for line in lines if not line.startswith("#"))
    asked = [*requirements("dependencies"), *requirements("train")]
    missing = [str(r) for r in asked if not r.specifier.contains(fixed.get(canonicalize_name(r.name), "0"))]
    assert missing == []
    (torch,) = (r for r in requirements("train") if r.name == "torch")
    assert f"PyTorch {str(torch.specifier).removeprefix('==')}" in README


def test_every_site_s_image_is_one_that_can_be_built() -> None:
    images = {
        found[1]
        for path in (ROOT / "configs" / "sites").glob("*.yaml")
        if (found := re.search(r"^\s+image: \S*?([\w-]+\.sif)", path.read_text(encoding="utf-8"), re.M))
    }
    assert images
    assert [image for image in images if image not in README] == []


ASKED = {"msgspec>=0.18 pyyaml>=6": 0, "msgspec==0.0.1": 1, "no-such-package": 1, "no-such-package==1.0": 1}


@pytest.mark.parametrize("asked", ASKED)
def test_the_import_test_passes_for_what_is_here_and_names_what_is_not(asked: str) -> None:
    done = imports(*asked.split())
    assert (done.returncode, "Traceback" in done.stderr) == (ASKED[asked], False)
    assert asked.split(">", maxsplit=1)[0] in (done.stderr if ASKED[asked] else done.stdout)


@pytest.mark.train
@pytest.mark.long
def test_the_training_image_s_test_passes_with_the_pins(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the training extra is not installed")
    listed = tmp_path / "requirements.txt"
    asked = [*requirements("dependencies"), *requirements("train")]
    listed.write_text("\n".join(map(str, asked)))
    done = imports("--requirements", str(listed))
    assert done.returncode == 0, done.stderr
    assert len([line for line in done.stdout.splitlines() if ": " in line]) >= len(asked)


@pytest.mark.parametrize("gpus", [0, 2])
def test_open_ondemands_job_starts_jupyterlab_in_the_folder_of_the_runs_with_the_notebook(
    tmp_path: Path, gpus: int
) -> None:
    """Its submit file, with values of the form in the place of Ruby's tags, and with stand-ins of what it starts."""
    form, submit = ((CONTAINERS / "ondemand" / name).read_text("utf-8") for name in ("form.yml", "submit.yml.erb"))
    asked = yaml.safe_load(form)
    assert {*asked["attributes"]} <= {*asked["form"]}
    assert {*re.findall(r"<%(?:=|- if) (\w+)", submit)} == {name for name in asked["form"] if name[:3] != "bc_"}
    course = (ROOT / "configs" / "course.env.example").read_text("utf-8")
    assert {*re.findall(r"HARNESS_\w+", form + submit)} <= {*re.findall(r"HARNESS_\w+", course)}
    values = {
        "checkout": str(ROOT),
        "environment": str(tmp_path),
        "runs": "$HOME/my runs",
        "cores": "8",
        "gpus": str(gpus),
    }
    submit = re.sub(r"^ *<%- if gpus.to_i > 0 -%>\n(.*)^ *<%- end -%>\n", r"\1" * (gpus > 0), submit, flags=re.M | re.S)
    job = yaml.safe_load(re.sub(r"<%= (\w+)(?:\.to_i)? %>", lambda tag: values[tag[1]], submit))
    assert job["script"]["native"][2:] == ["--cpus-per-task=8", f"--gres=gpu:{gpus}"][: 1 + (gpus > 0)]
    (tmp_path / "harness-python").symlink_to("/bin/echo")
    ondemand = "host=node7; find_port() { echo 4711; }; create_passwd() { echo secret; }"
    words = "\n".join([ondemand, job["batch_connect"]["before_script"], "env", job["batch_connect"]["run_script"]])
    command = ["env", f"HOME={tmp_path}", "bash", "-euc", words]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=limit_s()).stdout
    runs = tmp_path / "my runs"
    assert {f"HARNESS_RUNS={runs}", "JUPYTER_TOKEN=secret"} <= {*said.splitlines()}
    assert "\n-m jupyterlab --no-browser --ip=0.0.0.0 --port=4711 " in said and f"root_dir={runs} " in said
    assert "--ServerApp.base_url=/node/node7/4711/ " in said and said.endswith(
        "--LabApp.default_url=/lab/tree/report.ipynb\n"
    )
    assert (runs / "report.ipynb").read_text("utf-8") == (ROOT / "configs" / "report.ipynb").read_text("utf-8")

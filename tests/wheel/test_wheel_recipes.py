"""The recipes of containers/: what they install is what pyproject.toml asks for."""

from __future__ import annotations

import ast
import re
from typing import Any

import yaml
from packaging.requirements import Requirement

from tests.wheel.wheel_shared import ROOT

CONDA, EASYBUILD = ROOT / "containers" / "conda" / "recipe.yaml", ROOT / "containers" / "easybuild"
CALLED_THERE = {"matplotlib": "matplotlib-base", "isal": "python-isal"}  # names of conda-forge's packages
MANDATORY = {"easyblock", "name", "version", "homepage", "description", "toolchain", "sources", "moduleclass"}


def project(field: str) -> str:
    found = re.search(rf'^{field} = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert found
    return found[1]


def dependencies() -> dict[str, str]:
    text = (ROOT / "pyproject.toml").read_text().partition("\ndependencies = [")[2].partition("\n]")[0]
    found = [Requirement(each) for each in re.findall(r'^  "(.*)",$', text, re.M)]
    return {each.name: str(each.specifier) for each in found}


def recipe() -> dict[str, Any]:
    found = yaml.safe_load(CONDA.read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def specifiers(text: str) -> set[str]:
    return set(text.split(","))


def test_condas_recipe_needs_what_the_project_needs() -> None:
    python, *needed = recipe()["requirements"]["run"]
    assert python == "python >=${{ python_min }}"
    assert f">={recipe()['context']['python_min']}" == project("requires-python")
    theirs = {name: specifiers(versions) for name, versions in (each.split() for each in needed)}
    ours = {CALLED_THERE.get(name, name): specifiers(versions) for name, versions in dependencies().items()}
    assert theirs == ours


def test_condas_recipe_has_the_projects_version_program_and_license() -> None:
    found = recipe()
    assert found["context"]["version"] == project("version")
    assert found["package"] == {"name": project("name"), "version": "${{ version }}"}
    assert found["about"]["summary"] == project("description")
    assert found["about"]["license"] == project("license")
    (program,) = found["build"]["python"]["entry_points"]
    assert program == f"{project('name')} = {project('training-traces')}"
    assert (CONDA.parent / found["source"]["path"]).resolve() == ROOT
    assert "setuptools >=77" in found["requirements"]["host"]
    assert 'requires = ["setuptools>=77"]' in (ROOT / "pyproject.toml").read_text()


def test_easybuilds_file_installs_the_wheel_of_the_projects_version() -> None:
    (file,) = EASYBUILD.glob("*.eb")
    assert file.name == f"{project('name')}-{project('version')}.eb"
    tree = ast.parse(file.read_text(encoding="utf-8"))
    assigned = {target.id: node.value for node in tree.body if isinstance(node, ast.Assign) for target in node.targets}  # type: ignore[attr-defined]
    assert assigned.keys() >= MANDATORY
    told = {name: ast.literal_eval(value) for name, value in assigned.items() if isinstance(value, ast.Constant)}
    assert (told["name"], told["version"]) == (project("name"), project("version"))
    assert told["description"] == project("description")
    assert ast.literal_eval(assigned["sources"]) == ["training_traces-%(version)s-py3-none-any.whl"]


def test_the_citation_names_the_projects_version_and_the_license_of_its_code() -> None:
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    told = (found["cff-version"], found["type"], found["version"], f"{found['license']} AND CC-BY-4.0")
    assert told == ("1.2.0", "software", project("version"), project("license"))
    assert found["title"].startswith(f"{project('name')}: ") and found["authors"] and found["message"]

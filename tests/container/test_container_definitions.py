"""containers/training.def, built by Apptainer on a Debian in the place of NVIDIA's base image, and trained in."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from harness.run import all_runs
from tests.container.images import SUITES, apptainer, build
from tests.launch.launch_shared import ROOT
from tests.waiting import limit_s

pytestmark = [pytest.mark.train, pytest.mark.long]

BASE = Path(__file__).with_name("base_folder.sh")
WINDOW = ("--skip-steps", "0", "--wait-steps", "0", "--warmup-steps", "1", "--active-steps", "9")
HEADER = re.compile(r"^Bootstrap: docker\nFrom: .*$", re.MULTILINE)


class Namespace:
    """A user namespace with the machine's own users, in which root may do all that an image's packages ask for."""

    def __enter__(self) -> tuple[str, ...]:
        self._holder = subprocess.Popen(["unshare", "--user", "sleep", "infinity"])
        folder = Path(f"/proc/{self._holder.pid}")
        outside = Path("/proc/self/ns/user").readlink()
        while (folder / "ns/user").readlink() == outside:
            assert self._holder.poll() is None
        for name in ("uid_map", "gid_map"):
            (folder / name).write_text("0 0 65536")
        return ("nsenter", f"--target={self._holder.pid}", "--user", "--setuid=0", "--setgid=0")

    def __exit__(self, *_: object) -> None:
        self._holder.kill()
        self._holder.wait(timeout=limit_s())


def pip_settings(base: Path) -> list[Path]:
    """Give the base this machine's settings of pip; returns the folders that they name, for a build to see."""
    said = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        capture_output=True,
        text=True,
        check=True,
        timeout=limit_s(1200),
    )
    settings: dict[str, list[str]] = {}
    for name, value in re.findall(r"^[^=]*\.([\w-]+)='(.*)'$", said.stdout, re.MULTILINE):
        settings.setdefault(name, []).extend(value.split("\\n"))
    lines = [f"{name} = {' '.join(dict.fromkeys(values))}" for name, values in settings.items()]
    (base / "etc/pip.conf").write_text("\n".join(["[global]", *lines, ""]))
    folders = set()
    for word in " ".join(lines).split():
        path = Path(word.removeprefix("file://"))
        if path.is_file():
            inside = base / path.relative_to("/")
            inside.parent.mkdir(parents=True, exist_ok=True)
            inside.write_bytes(path.read_bytes())
        elif path.is_absolute() and path.is_dir():
            folder = path.parent if path.as_uri() == word else path  # an index links to files beside it
            (base / folder.relative_to("/")).mkdir(parents=True, exist_ok=True)
            folders.add(folder)
    return sorted(folders)


class Base(NamedTuple):
    """A Debian in the place of NVIDIA's image, and the folders that a build on it must see."""

    folder: Path
    seen: list[Path]

    def built(self, name: str, *arguments: str) -> Path:
        """The image of a definition, whose %test has passed. What differs from the definition is its header."""
        text, changed = HEADER.subn(
            f"Bootstrap: localimage\nFrom: {self.folder}", (ROOT / f"containers/{name}.def").read_text()
        )
        assert changed == 1
        definition, image = (self.folder.with_name(f"{name}.{end}") for end in ("def", "sif"))
        definition.write_text(text)
        binds = [word for path in self.seen for word in ("--bind", str(path))]
        given = [word for argument in arguments for word in ("--build-arg", argument)]
        with Namespace() as inside:
            build(image, *binds, *given, definition, before=inside, cwd=ROOT)
        return image


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    """The Debian whose Python can use our packages."""
    apptainer()
    folder = tmp_path_factory.mktemp("definitions") / "base"
    suite = SUITES.get(sys.version_info[:2]) or pytest.skip("no Debian of these tests has this Python")
    subprocess.run(["bash", BASE, folder, suite], check=True, timeout=limit_s(1200))
    return Base(folder, pip_settings(folder))


def test_the_recipe_of_the_training_image_trains(base: Base, tmp_path: Path) -> None:
    """Every package from inside: nothing but the checkout and the run is bound."""
    image = base.built("training", "cuda=none")
    container = {"runtime": "apptainer", "command": str(apptainer()), "image": str(image)}
    site = {"name": "built", "description": "the built image", "scheduler": "local", "device": "cpu"}
    (tmp_path / "site.yaml").write_text(yaml.safe_dump({**site, "container": container}))
    env = {"HARNESS_RUNS": str(tmp_path / "runs")}
    for exercise in ("1", "2", "3"):
        words = ("-e", exercise, "--site", tmp_path / "site.yaml", "--json", *WINDOW)
        done = subprocess.run(
            [sys.executable, "-m", "harness", *words],
            env={**os.environ, **env}, capture_output=True, text=True, cwd=ROOT, check=False, timeout=limit_s(1200),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    runs = all_runs(tmp_path / "runs")
    assert len(runs) == 3
    for run in runs:
        status = run.status()
        assert status is not None
        assert (status.state, status.missing) == ("completed", [])
        inside = [*run.record.job["container"], "python3", "-c", "import torch; print(torch.__file__)"]
        done = subprocess.run(inside, capture_output=True, text=True, check=True, timeout=limit_s(1200))
        assert done.stdout.startswith("/opt/venv/lib"), "it trained with other packages"


def test_the_recipe_of_the_converter_starts_it(base: Base, tmp_path: Path) -> None:
    """With Debian's nsys in the place of NVIDIA's."""
    image = base.built("nsys2prv", "nsys=nsight-systems")
    done = subprocess.run(
        [apptainer(), "run", image, "--help"], capture_output=True, text=True, check=False, timeout=limit_s(1200)
    )
    assert done.returncode == 0, done.stderr
    assert "usage: nsys2prv" in done.stdout

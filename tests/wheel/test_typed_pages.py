"""README.md and docs/install.md: each command in a block or a table, typed as it stands there, where nothing is installed.

A new command is typed as well, by itself; one that is not is in NOT_TYPED with the reason.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.synthetic.job import write_traces
from tests.wheel.conftest import copied
from tests.wheel.test_wheel_skill import TRAIN
from tests.wheel.wheel_shared import ROOT, run

README, INSTALL = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/install.md"))
BLOCK = re.compile(r"^```bash\n(.*?)^```", re.M | re.S)
CELL = re.compile(r"`((?:bash|uv|pipx|pip|training-traces) [^`]+)`")
QUESTION = re.compile(r"^\| .+\? \| `(.+?)` \| (.+) \|$", re.M)
NUMBER = re.compile(r"\d[\d.:]*")
NOT_TYPED = {
    "bash scripts/check": "runs in each test of a change, beside this one",
    "bash scripts/test": "is what runs this test",
    "pipx install '.[train]'": "a gigabyte again: the line without the extra shows pipx, that of uv shows the extra",
    "pip install '.[train]'": "as that of pipx",
}
TRAINS = re.compile(r"slurm\.sh (?:-e(?!.*--plan)|run )|\[train\]")  # and installs PyTorch before


def cells(page: str) -> list[str]:
    """The commands in its tables, once each."""
    found = [command for line in page.splitlines() if line.startswith("|") for command in CELL.findall(line)]
    return [command for command in dict.fromkeys(found) if command not in NOT_TYPED]


def cases(texts: list[str]) -> list[object]:
    """A training is long; so is pip, which takes five times as long as uv, and installs the wheel in other tests."""
    trains = [pytest.mark.long, pytest.mark.train]
    marks = [trains if TRAINS.search(text) else trains[:1] if text.startswith("pip ") else [] for text in texts]
    return [pytest.param(text, marks=its, id=text.splitlines()[-1]) for text, its in zip(texts, marks, strict=True)]


@dataclass(frozen=True)
class Newcomer:
    """Somebody's home on a machine with git and a Python, without Slurm. path: the folders with these programs."""

    home: Path
    path: str

    def types(self, text: str, folder: Path) -> CompletedProcess[str]:
        """The lines, until one fails. Where packages come from is the only thing that the machine says."""
        sources = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_", "SSL_"))}
        sources |= {f"UV_{name[4:]}": value for name, value in sources.items() if re.match("PIP_.*(LINKS|URL)", name)}
        environment = sources | {"HOME": str(self.home), "PATH": f"{self.home}/.local/bin:{self.path}"}
        return run("bash", "-euo", "pipefail", "-c", text, cwd=folder, env=environment)


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository that is cloned: with the files of this checkout, also those that are not committed."""
    place = copied(tmp_path_factory.mktemp("origin"), ".")
    git = ("git", "-C", place, "-c", "user.name=a", "-c", "user.email=a@example.org")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "All files"]):
        assert run(*git, *words).returncode == 0
    return place


def arrive(without_git: Path, program: str = "pip") -> Iterator[Newcomer]:
    """program: is installed, too. What this person installs is gone with the home: PyTorch is a gigabyte."""
    with tempfile.TemporaryDirectory(prefix="newcomer-") as place:
        programs = Path(place) / "programs"
        assert run(sys.executable, "-m", "venv", programs).returncode == 0
        (programs / "bin" / "git").symlink_to(str(shutil.which("git")))
        (Path(place) / "python3").symlink_to(Path(sys.executable).resolve())  # uv takes none of an environment
        if run(programs / "bin" / "pip", "install", program, "setuptools>=77").returncode:
            pytest.skip("no package index can be reached from here")
        yield Newcomer(Path(place), f"{programs}/bin:{without_git}:{place}")


@pytest.fixture(scope="module")
def newcomer(without_git: Path) -> Iterator[Newcomer]:
    yield from arrive(without_git)


@pytest.fixture
def installer(without_git: Path, request: pytest.FixtureRequest) -> Iterator[Newcomer]:
    yield from arrive(without_git, request.param.split()[0])


@pytest.fixture(scope="module")
def checkout(newcomer: Newcomer, origin: Path) -> Path:
    assert newcomer.types(f"git clone -q {origin} checkout", newcomer.home).returncode == 0
    return newcomer.home / "checkout"


@pytest.mark.parametrize("block", cases([*BLOCK.findall(README), BLOCK.findall(INSTALL)[0]]))
def test_each_block_works_from_nothing(newcomer: Newcomer, origin: Path, block: str) -> None:
    """URL and FOLDER stand for what a reader has."""
    folder = Path(tempfile.mkdtemp(dir=newcomer.home))
    (folder / "train.py").write_text(TRAIN)
    (folder / "train.sh").write_text("~/training-traces/.venv/bin/python train.py\n")
    done = newcomer.types(block.replace("URL", str(origin)).replace("FOLDER", str(folder)), folder)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("command", cases(cells(README)))
def test_each_command_in_a_table_prints_the_sentence_beside_it(
    newcomer: Newcomer, checkout: Path, command: str
) -> None:
    """Of a recording to the letter; of a training whose cause is planted, with other numbers."""
    done = newcomer.types(command, checkout)
    said = " ".join((done.stdout + done.stderr).split())
    if not (sentence := dict(QUESTION.findall(README)).get(command)):
        assert done.returncode == 0, said
        return
    for part in sentence.split(" … "):
        other = r"[\d.:]+".join(map(re.escape, NUMBER.split(part)))
        found = re.search(other if TRAINS.search(command) else re.escape(part), said)
        assert found, f"{part}\nis not in\n{said}"
        said = said[found.end() :]


@pytest.mark.parametrize("installer", cases(cells(INSTALL)), indirect=True)
def test_each_way_to_install_gives_the_commands_of_the_page(
    installer: Newcomer, origin: Path, request: pytest.FixtureRequest
) -> None:
    line = request.node.callspec.params["installer"]
    done = installer.types(f"git clone -q {origin} kit && cd kit && {line}", installer.home)
    assert done.returncode == 0, done.stdout + done.stderr
    (empty := installer.home / "empty").mkdir()
    write_traces(empty / "traces", ranks=2)
    done = installer.types(BLOCK.findall(INSTALL)[1], empty)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_not_typed_is_on_the_pages() -> None:
    assert [command for command in NOT_TYPED if f"`{command}`" not in README + INSTALL] == []
    assert len(BLOCK.findall(INSTALL)) == 2, "more are not typed"

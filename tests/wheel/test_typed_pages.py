"""README.md and docs/install.md: every command in a block or a table, typed as it stands there, with nothing installed.

A new command is typed as well, by itself; one that is not is in NOT_TYPED with the reason.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.synthetic.job import write_traces
from tests.wheel.test_wheel_skill import TRAIN
from tests.wheel.wheel_shared import ROOT, run

README, INSTALL = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/install.md"))
BLOCKS, IN_CHECKOUT = (re.findall(r"^```bash\n(.*?)^```", page, re.M | re.S) for page in (README, INSTALL))
FROM_NOTHING, INSTALLED = [*BLOCKS, IN_CHECKOUT.pop(0)], "".join(IN_CHECKOUT)
SENTENCES = dict(re.findall(r"^\| .+\? \| `(.+?)` \| (.+) \|$", README, re.M))
NOT_TYPED = {
    "bash scripts/check": "runs in each test of a change, beside this one",
    "bash scripts/test": "is what runs this test",
    "pipx install '.[train]'": "a gigabyte again: the line without the extra shows pipx, that of uv shows the extra",
    "pip install '.[train]'": "as that of pipx",
}
TRAINS = re.compile(r"slurm\.sh (?:-e(?!.*--plan)|run |lesson )|\[train\]")  # and installs PyTorch before
COMMIT = """git ls-files -co --exclude-standard -z | xargs -0 cp --parents -t "$0"; cd "$0"; git init -q; git add -A
git -c user.name=a -c user.email=a@example.org commit -qm 'All files'"""
# uv takes no Python of an environment.
MADE = (
    '"$1" -m venv own; ln -s "$2" python3; ln -s "$3" system; ln -s "$(type -P git)" own/bin; git clone -q "$4" clone'
)


def cells(page: str) -> list[str]:
    """The commands in its tables, once each."""
    rows = "".join(re.findall(r"^\|.*\n", page, re.M))
    found = dict.fromkeys(re.findall(r"`((?:bash|uv|pipx|pip|training-traces) [^`\n]+)`", rows))
    return [command for command in found if command not in NOT_TYPED]


def cases(texts: list[str]) -> list[object]:
    """A training is long; so are pip and pipx, which take longer than uv; pip installs the wheel in other tests."""
    marks = {
        text: (pytest.mark.long, pytest.mark.train)[: 2 if TRAINS.search(text) else text.startswith("pip")]
        for text in texts
    }
    return [pytest.param(text, marks=its, id=text.splitlines()[-1]) for text, its in marks.items()]


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository that is cloned: with the files of this checkout, also those that are not committed."""
    place = tmp_path_factory.mktemp("origin")
    assert run("bash", "-c", COMMIT, place, cwd=ROOT).returncode == 0
    return place


@pytest.fixture(scope="module")
def home(without_git: Path, origin: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Of somebody with a clone, git, a Python and the program that the test types first, without Slurm. What is
    installed goes with it: PyTorch is a gigabyte."""
    with tempfile.TemporaryDirectory(prefix="newcomer-") as place:
        words = ("-ec", MADE, "bash", sys.executable, Path(sys.executable).resolve(), without_git, origin)
        run("bash", *words, cwd=place).check_returncode()
        if run(f"{place}/own/bin/pip", "install", getattr(request, "param", "pip").split()[0], "wheel").returncode:
            pytest.skip("no package index can be reached from here")
        yield Path(place)


def typed(home: Path, text: str, folder: Path, *, may_fail: bool = False) -> str:
    """What the lines print. Where packages come from is the only thing that the machine says."""
    sources = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_", "SSL_"))}
    sources |= {f"UV_{name[4:]}": value for name, value in sources.items() if re.match("PIP_.*(LINKS|URL)", name)}
    sources |= {"HOME": str(home), "PATH": f"{home}/.local/bin:{home}/own/bin:{home}/system:{home}"}
    done = run("bash", "-euc", text, cwd=folder, env=sources)
    assert may_fail or done.returncode == 0, done.stdout + done.stderr
    return " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize("block", cases(FROM_NOTHING))
def test_each_block_works_from_nothing(home: Path, origin: Path, block: str) -> None:
    """URL and FOLDER stand for what a reader has."""
    folder = Path(tempfile.mkdtemp(dir=home))
    (folder / "train.py").write_text(TRAIN)
    (folder / "train.sh").write_text("~/training-traces/.venv/bin/python train.py\n")
    typed(home, block.replace("URL", str(origin)).replace("FOLDER", str(folder)), folder)


@pytest.mark.parametrize("command", cases(cells(README)))
def test_each_command_in_a_table_prints_the_sentence_beside_it(home: Path, command: str) -> None:
    """Of a recording to the letter; of a training whose cause is planted, with other numbers."""
    said = typed(home, command, home / "clone", may_fail=command in SENTENCES)  # as a run that hangs
    wanted = ".*".join(map(re.escape, SENTENCES.get(command, "").split(" … ")))
    assert re.search(re.sub(r"\d(?:\\?[\d.:])*", r"[\\d.:]+", wanted) if TRAINS.search(command) else wanted, said), said


@pytest.mark.parametrize("home", cases(cells(INSTALL)), indirect=True)
def test_each_way_to_install_gives_the_commands_of_the_page(
    home: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    write_traces(tmp_path / "traces", ranks=2)
    for text, folder in ((request.node.callspec.params["home"], home / "clone"), (INSTALLED, tmp_path)):
        typed(home, text, folder)


def test_what_is_not_typed_is_on_the_pages() -> None:
    assert [command for command in NOT_TYPED if f"`{command}`" not in README + INSTALL] == []

"""Two environments of Python: what they have, in which groups they differ, and the environments between them."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from harness.common.errors import RequestError, WorkError
from harness.common.system.training_python import ask_python
from harness.study.check.package_environments import made, mixed
from harness.study.check.package_groups import PackageGroup, closure, differing
from harness.study.check.packages import Installed, Package, installed, requirements_of
from tests.study.packages_shared import environment, said, site_of, state_of, uv, wheel

NCCL = "nvidia/nccl/lib/libnccl.so.2"
KEPT = ["same", "nvidia-two"]
OF_A = ["single==1", "left==1", "right==1", "app==1", "base==1", "user==1", "library==1", "nvidia-one==1", "gone==1"]
OF_B = ["single==2", "left==2", "right==2", "app==2", "base==2", "user==2", "library==2", "nvidia-one==2", "fresh==1"]
VERSIONS = (
    "from importlib.metadata import distributions as d; print(*sorted(f'{e.name}=={e.version}' for e in d()))"
)  # fmt: skip


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of wheels, with and without needs."""
    folder = tmp_path_factory.mktemp("my wheels")
    for version in ("1", "2"):
        wheel(folder, "single", version, "same")
        wheel(folder, "left", version, f"right=={version}")
        wheel(folder, "right", version, f"left=={version}")
        wheel(folder, "app", version, f"base>={version}", "never; python_version < '3'", "extra; extra == 'more'")
        wheel(folder, "base", version)
        wheel(folder, "user", version, *(["library<2"] if version == "1" else []))
        wheel(folder, "library", version)
        wheel(folder, "nvidia-one", version, files={"nvidia/one/__init__.py": f"VERSION = {version!r}\n"})
    wheel(folder, "nvidia-two", "1", files={"nvidia/two/__init__.py": "VERSION = '1'\n"})
    for name in ("same", "gone", "fresh"):
        wheel(folder, name, "1")
    for name in ("nccl-old", "nccl-new"):
        wheel(folder, name, "1", files={NCCL: name})
    return folder


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> tuple[str, str]:
    """The Pythons A and B, which differ in all of these, and in a file that somebody has put there."""
    folder = tmp_path_factory.mktemp("pair")
    a = environment(folder / "a", wheels, [*KEPT, *OF_A, "nccl-old"])
    b = environment(folder / "b", wheels, [*KEPT, *OF_B, "nccl-new"])
    (site_of(b) / "sitecustomize.py").write_text("import sys; sys.slow = True\n")
    return a, b


@pytest.fixture(scope="module")
def asked(pair: tuple[str, str]) -> tuple[Installed, Installed]:
    return installed(pair[0]), installed(pair[1])


@pytest.fixture(scope="module")
def groups(asked: tuple[Installed, Installed]) -> list[PackageGroup]:
    return differing(*asked)


def by_label(groups: list[PackageGroup], *parts: str) -> list[PackageGroup]:
    return [group for group in groups if any(part in group.label for part in parts)]


# ---- What an environment has


def test_an_environment_tells_its_python_its_packages_and_what_belongs_to_none(pair: tuple[str, str]) -> None:
    b = installed(pair[1])
    assert b.version == ".".join(map(str, sys.version_info[:3])) and b.implementation == sys.implementation.name
    assert b.prefix == str(Path(pair[1]).parents[1]) and b.sites == (str(site_of(pair[1])),)
    assert b.packages["left"].requires == ("right==2",) and b.packages["nvidia-one"].version == "2"
    assert b.packages["single"].files.keys() >= {"single.py", "single-2.dist-info/METADATA"}
    assert set(b.unowned) == {"sitecustomize.py"}


@pytest.mark.parametrize(
    ("python", "sentence"), [("/nope/python", "does not exist"), ("/", "is a folder"), ("/bin/ls", "is not a Python")]
)
def test_what_is_no_python_is_one_sentence(python: str, sentence: str) -> None:
    with pytest.raises(RequestError, match=f"^{python} {sentence}[^\n]*$"):
        installed(python)


@pytest.mark.parametrize("name", ["python3.8", "python3.9", "python3.13"])
def test_other_versions_of_python_answer_too(name: str) -> None:
    folders = [*os.environ["PATH"].split(":"), *map(str, Path.home().glob(".pyenv/versions/*/bin"))]
    found = next((p for p in (f"{each}/{name}" for each in folders) if not isinstance(ask_python(p), str)), None)
    if found is None:
        pytest.skip(f"there is no {name} here")
    answer = installed(found)
    assert name == f"python{answer.version.rpartition('.')[0]}" and answer.library == f"lib/{name}/site-packages"


def test_an_environment_over_the_system_has_the_first_of_two_versions(tmp_path: Path) -> None:
    base = installed(sys.executable).base
    name = next(iter(installed(base).packages), None)
    if name is None:
        pytest.skip(f"{base} has no packages of its own")
    wheel(tmp_path / "wheels", name, "999", files={"ours.py": ""})
    python = environment(tmp_path / "over", tmp_path / "wheels", [name], "--system-site-packages", base=base)
    over = installed(python)
    assert len(over.sites) > 1 and over.packages[name].version == "999"
    between = mixed(over, over, [], tmp_path / "place")
    assert said(between, "-I", "-c", VERSIONS).count(f"{name}==") == 1


def test_packages_of_the_user_count_where_python_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `pip install --user`: beside a Python of the system, and not in an environment of its own."""
    base = installed(sys.executable).base
    monkeypatch.setenv("PYTHONUSERBASE", str(tmp_path))
    info = tmp_path / installed(base).library / "mine-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: mine\nVersion: 1\n")
    assert "mine" in installed(base).packages and "mine" not in installed(sys.executable).packages
    monkeypatch.setenv("PYTHONNOUSERSITE", "1")
    assert "mine" not in installed(base).packages


def test_a_module_of_the_current_folder_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    assert installed(sys.executable).sites


def test_requirements_name_every_version() -> None:
    assert requirements_of({"Zeta_One": "1.0+cu128", "alpha": "2"}) == ["alpha==2", "zeta-one==1.0+cu128"]


# ---- Groups


def test_what_is_independent_is_alone_and_what_pins_each_other_is_one_group(groups: list[PackageGroup]) -> None:
    assert sorted(group.label for group in groups) == [
        "added: fresh 1",
        "added: nccl-new 1",
        "app 1 → 2",
        "base 1 → 2",
        "files of no package: sitecustomize.py",
        "left 1 → 2, right 1 → 2",
        "library 1 → 2",
        "nvidia-one 1 → 2",
        "removed: gone 1",
        "removed: nccl-old 1",
        "single 1 → 2",
        "user 1 → 2",
    ]


@pytest.mark.parametrize(
    ("first", "second"), [("base 1", "app 1"), ("user 1", "library 1"), ("removed: nccl-old", "added: nccl-new")]
)
def test_what_is_needed_comes_first_and_is_in_the_closure(groups: list[PackageGroup], first: str, second: str) -> None:
    """A new version needs a new one; an old one needs an old one; a file of two packages is there once."""
    needed, needing = by_label(groups, first)[0], by_label(groups, second)[0]
    assert groups.index(needed) < groups.index(needing)
    assert closure(groups, groups.index(needing)) == [needed, needing]
    assert closure(groups, groups.index(needed)) == [needed]


def test_every_prefix_and_every_closure_satisfies_the_requirements(
    asked: tuple[Installed, Installed], groups: list[PackageGroup], pair: tuple[str, str], tmp_path: Path
) -> None:
    before = state_of(*(Path(python).parents[1] for python in pair))
    prefixes = [groups[:count] for count in range(len(groups) + 1)]
    for chosen in prefixes + [closure(groups, index) for index in range(len(groups))]:
        python = mixed(*asked, chosen, tmp_path / "place")
        said(uv(), "pip", "check", "--offline", "--python", python)
        switched = {member.name for group in chosen for member in group.members}
        of_a = {f"{name}=={each.version}" for name, each in asked[0].packages.items() if name not in switched}
        of_b = {f"{name}=={each.version}" for name, each in asked[1].packages.items() if name in switched}
        assert set(said(python, "-c", VERSIONS).split()) == of_a | of_b
    for python, chosen in zip(pair, (prefixes[0], prefixes[-1]), strict=True):
        assert said(python, "-B", "-c", VERSIONS) == said(mixed(*asked, chosen, tmp_path / "place"), "-c", VERSIONS)
    assert state_of(*(Path(python).parents[1] for python in pair)) == before


def an_environment(
    packages: Mapping[str, Package], version: str = "3.11.2", unowned: Mapping[str, str] | None = None
) -> Installed:
    return Installed(
        version, "cpython", "cpython-311", "/e", "/bin/python", "lib", ("/s",), {}, packages, unowned or {}
    )


def of_version(version: str, *requires: str, files: Mapping[str, str] | None = None) -> Package:
    return Package(version, requires, files or {}, "/s")


def test_a_requirement_that_one_environment_violates_already_forbids_nothing() -> None:
    one = {"x": of_version("1", "y<1", "absent", "y @@ odd", "y; nonsense"), "y": of_version("1")}
    two = {"x": of_version("2", "y>=5", "Y>=0; extra == 'all'"), "y": of_version("2")}
    groups = differing(an_environment(one), an_environment(two))
    assert [closure(groups, index) for index in (0, 1)] == [[groups[0]], [groups[1]]]


def test_a_rebuilt_wheel_of_the_same_version_differs_and_an_equal_one_does_not() -> None:
    one, two = ({"x": of_version("1", files={"x.so": checksum, "x-1.dist-info/RECORD": ""})} for checksum in "ab")
    assert [group.label for group in differing(an_environment(one), an_environment(two))] == ["x 1 with other files"]
    assert differing(an_environment(one), an_environment(dict(one))) == []


def test_what_is_required_through_an_extra_is_needed_too() -> None:
    def torch_with(version: str) -> Installed:
        toolkit = of_version(version, f"cublas=={version}; extra == 'blas'", f"cufft=={version}; extra == 'fft'")
        torch = of_version(version, f"toolkit[blas]=={version}")
        others = {name: of_version(version) for name in ("cublas", "cufft")}
        return an_environment({"torch": torch, "toolkit": toolkit, **others})

    groups = differing(torch_with("1"), torch_with("2"))
    assert [group.label for group in groups] == ["cufft 1 → 2", "cublas 1 → 2, toolkit 1 → 2, torch 1 → 2"]


def test_a_file_that_was_edited_in_place_makes_its_package_differ(wheels: Path, tmp_path: Path) -> None:
    a, b = (environment(tmp_path / name, wheels, ["single==1", "same"]) for name in ("a", "b"))
    assert differing(installed(a), installed(b)) == []
    edited = site_of(b) / "single.py"
    edited.unlink()  # the wheels of the cache are the same file
    edited.write_text("VERSION = 'slow'\n")
    assert [group.label for group in differing(installed(a), installed(b))] == ["single 1 with other files"]


def test_without_a_list_of_its_files_a_package_is_in_one_group_with_the_files_of_none(tmp_path: Path) -> None:
    (tmp_path / "x.py").touch()
    one, two = ({"x": Package(version, (), None, "/s"), "y": of_version(version)} for version in "12")
    groups = differing(an_environment(one, unowned={"x.py": str(tmp_path)}), an_environment(two))
    assert [group.label for group in groups] == ["y 1 → 2", "files of no package: x.py, x 1 → 2"]


def test_another_version_of_python_is_switched_with_all_packages() -> None:
    one, two = {"x": of_version("1"), "y": of_version("1")}, {"x": of_version("2"), "y": of_version("1")}
    groups = differing(an_environment(one), an_environment(two, version="3.12.1"))
    assert [group.label for group in groups] == ["Python 3.11.2 → 3.12.1 and all packages"]
    assert groups[0].names >= {"x", "y"}
    patch = differing(an_environment(one), an_environment(two, version="3.11.9"))
    assert [group.label for group in patch] == ["Python 3.11.2 → 3.11.9", "x 1 → 2"]


# ---- Environments between the two


def test_a_mixed_environment_imports_what_was_chosen_and_has_no_folder_that_is_a_link(
    asked: tuple[Installed, Installed], groups: list[PackageGroup], tmp_path: Path
) -> None:
    chosen = by_label(groups, "nvidia-one", "sitecustomize", "fresh", "gone")
    python = mixed(*asked, chosen, tmp_path)
    shown = "print(single.VERSION, nvidia.one.VERSION, nvidia.two.VERSION, sys.slow, fresh.VERSION)"
    assert said(python, "-c", f"import sys, single, nvidia.one, nvidia.two, fresh; {shown}") == "1 2 1 True 1"
    assert said(python, "-c", "from importlib.util import find_spec; print(find_spec('gone'))") == "None"
    assert (site_of(python) / NCCL).samefile(site_of(asked[0].prefix + "/bin/python") / NCCL)
    assert not [path for path in site_of(python).rglob("*") if path.is_symlink()]
    inside = "import sys; print(sys.prefix, sys.path[-1])"
    assert said(python, "-I", "-c", inside) == f"{Path(python).parents[1]} {site_of(python)}"


def test_files_that_are_links_and_a_linked_folder_of_no_package_stay_readable(wheels: Path, tmp_path: Path) -> None:
    """uv installs links into its cache if it is told to; people link the folder that they work in."""
    own = environment(tmp_path / "own", wheels, ["single==1"])
    (site_of(own) / "single.py").rename(tmp_path / "cached.py")
    (site_of(own) / "single.py").symlink_to("../../../../cached.py")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "model.py").touch()
    (site_of(own) / "work").symlink_to("../../../../work")
    python = mixed(installed(own), installed(own), [], tmp_path / "much" / "deeper" / "place")
    assert said(python, "-c", "import single, work.model; print(single.VERSION)") == "1"
    assert not (site_of(python) / "single.py").is_symlink()


def test_a_mixed_environment_is_kept_until_a_file_changes(
    asked: tuple[Installed, Installed], wheels: Path, tmp_path: Path
) -> None:
    own = environment(tmp_path / "own", wheels, ["single==1"])
    first = mixed(installed(own), asked[1], [], tmp_path / "place")
    kept = state_of(tmp_path / "place")
    assert mixed(installed(own), asked[1], [], tmp_path / "place") == first
    assert state_of(tmp_path / "place") == kept
    (site_of(own) / "single.py").unlink()
    (site_of(own) / "single.py").write_text("VERSION = 'patched'\n")
    second = mixed(installed(own), asked[1], [], tmp_path / "place")
    assert [said(each, "-c", "import single; print(single.VERSION)") for each in (first, second)] == ["1", "patched"]


def test_where_links_are_refused_by_a_stand_in_the_files_are_copies(
    asked: tuple[Installed, Installed], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    python = mixed(*asked, [], tmp_path)
    assert said(python, "-c", "import single; print(single.VERSION)") == "1"
    assert (site_of(python) / "single.py").stat().st_nlink == 1


def test_paths_of_editable_installs_lead_to_the_same_folders(wheels: Path, tmp_path: Path) -> None:
    own = environment(tmp_path / "own", wheels, [])
    for name in ("near", "far"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.py").touch()
    (site_of(own) / "near.pth").write_text("import sys\n../../../../near\n")
    (site_of(own) / "far.pth").write_text(f"{tmp_path / 'far'}\n")
    python = mixed(installed(own), installed(own), [], tmp_path / "deeper" / "place")
    assert said(python, "-c", "import near, far; print(near.__file__)").endswith("near/near.py")


def test_names_and_paths_of_others_lead_nowhere_outside(wheels: Path, tmp_path: Path) -> None:
    plain, hostile = (environment(tmp_path / name, wheels, []) for name in ("plain", "hostile"))
    outside, info = tmp_path / "outside", site_of(hostile) / "evil-1.dist-info"
    for folder in (outside, info):
        folder.mkdir()
    (outside / "secret.txt").write_text("theirs")
    (site_of(hostile) / "link").symlink_to(outside)
    (site_of(hostile) / "evil.py").touch()
    (info / "METADATA").write_text("Name: ../../\x1b[2Jevil; rm -rf ~\nVersion: $(touch pwned)\nRequires-Dist: ;;\n")
    (info / "RECORD").write_text(
        f"evil.py,,\nlink/secret.txt,x,1\n../../../../oops.txt,x,1\n{outside}/secret.txt,,\n\n"
    )
    kept = state_of(*(tmp_path / name for name in ("plain", "hostile", "outside")))
    a, b = installed(plain), installed(hostile)
    groups = differing(a, b)
    assert all(group.label.isprintable() for group in groups) and len(groups) == 2
    python = mixed(a, b, groups, tmp_path / "place")
    assert (site_of(python) / "evil.py").exists() and not (site_of(python) / "link").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hostile", "outside", "place", "plain"]
    assert state_of(*(tmp_path / name for name in ("plain", "hostile", "outside"))) == kept


def test_what_cannot_be_written_is_one_sentence_and_leaves_nothing(
    asked: tuple[Installed, Installed], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WorkError, match=r"file/mixed-\w+ cannot be made \(Not a directory\)$"):
        mixed(*asked, [], tmp_path / "file")


# ---- From a requirements file


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for environments; the uv on PATH notes each start beside it, and has no network."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "uv").write_text(f'#!/bin/sh\necho "$1" >>"{tmp_path}/started"\nexec "{uv()}" "$@"\n')
    (tmp_path / "bin" / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("UV_OFFLINE", "1")
    return tmp_path / "place"


def test_requirements_become_an_environment_which_is_kept_without_another_start_of_uv(
    place: Path, wheels: Path, tmp_path: Path
) -> None:
    (tmp_path / "base.txt").write_text(f'--no-index\n--find-links "{wheels}"\n')
    file = tmp_path / "new.txt"
    file.write_text("-r base.txt\napp==2  # a pin\n")
    python = made(file, place, sys.executable)
    assert said(python, "-c", VERSIONS) == "app==2 base==2"
    assert made(file, place, sys.executable) == python
    assert (tmp_path / "started").read_text().split() == ["venv", "pip"]
    (tmp_path / "base.txt").write_text(f'--no-index\n--find-links "{wheels}"\nsingle==1\n')
    assert "single==1" in said(made(file, place, sys.executable), "-c", VERSIONS)
    assert len(list(place.iterdir())) == 2


def test_the_packages_of_a_record_are_made_again(place: Path, wheels: Path) -> None:
    lines = ["--no-index", f'--find-links "{wheels}"', *requirements_of({"single": "1", "same": "1"})]
    assert said(made(lines, place, sys.executable), "-c", VERSIONS) == "same==1 single==1"


@pytest.mark.parametrize("line", ["single==9", "single=9", "-r absent.txt"])
def test_requirements_that_cannot_be_met_are_one_sentence_and_leave_nothing(
    place: Path, wheels: Path, tmp_path: Path, line: str
) -> None:
    file = tmp_path / "new.txt"
    file.write_text(f'--no-index\n--find-links "{wheels}"\n{line}\n')
    with pytest.raises(RequestError, match=r"^new\.txt: uv cannot make an environment of it \([^\n]+\)$") as caught:
        made(file, place, sys.executable)
    assert line.rsplit(maxsplit=1)[-1].partition("=")[0] in str(caught.value)
    assert list(place.iterdir()) == []


def test_a_file_that_is_not_there_is_one_sentence(place: Path, tmp_path: Path) -> None:
    (tmp_path / "old.txt").touch()
    with pytest.raises(RequestError, match=r"ol\.txt cannot be read \(.*\): did you mean .*old\.txt\?$"):
        made(tmp_path / "ol.txt", place, sys.executable)


def test_with_a_path_without_uv_and_none_beside_python_one_sentence_says_how_to_get_it(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = sys.executable
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(RequestError, match=r"^[^\n]*uv[^\n]*pip install --user uv[^\n]*$"):
        made(["single==1"], place, python)
    assert not place.exists()

"""An archive of traces is said with what unpacks it, and no rank of it is left out in silence."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import shlex
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.traces import TraceError, open_trace
from harness.traces.foreign import archives
from harness.traces.foreign.archives import archive_at
from tests.synthetic import kineto
from tests.waiting import limit_s

Output = pytest.CaptureFixture[str]
ZSTD, SEVEN = b"\x28\xb5\x2f\xfd" + b"x" * 50, b"7z\xbc\xaf\x27\x1c" + b"x" * 50


def ranks(folder: Path, count: int = 4) -> list[Path]:
    folder.mkdir(exist_ok=True)
    return [kineto.kineto(folder / f"rank{rank}.json", kineto.gpu_step()) for rank in range(count)]


def reported(folder: Path, capsys: Output) -> tuple[int, dict[str, str]]:
    """How many traces the report is of, and its problems with their evidence."""
    assert main(["report", str(folder), "--json", "--no-html"]) == 0
    found = json.loads(capsys.readouterr().out)
    jobs = found if isinstance(found, list) else [found]
    problems = {each["what"]: each["evidence"] for job in jobs for each in job["quality"]["problems"]}
    return len({source["path"] for job in jobs for source in job["sources"]}), problems


def tarred(path: Path, files: list[Path], mode: str = "w:gz", shape: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, mode, format=shape) as made:  # type: ignore[call-overload]
        for file in files:
            made.add(file, f"traces/{file.name}")
    return path


def zipped(path: Path, files: list[Path]) -> Path:
    with zipfile.ZipFile(path, "w") as made:
        for file in files:
            made.write(file, f"traces/{file.name}")
    return path


@pytest.mark.parametrize("name", ["t.tgz", "t.tar.gz", "rank0.json.gz", "rank0.json", "no-ending"])
@pytest.mark.parametrize("mode", ["w:gz", "w", "w:xz", "w:bz2"])
def test_an_archive_is_known_by_its_content_and_its_files_are_counted(
    tmp_path: Path, capsys: Output, name: str, mode: str
) -> None:
    path = tarred(tmp_path / name, ranks(tmp_path / "in"), mode)
    assert main(["report", str(path)]) == 2
    said = capsys.readouterr().err
    command = f"tar xf {path}"
    assert said == f"slurm.sh: {path}: is an archive of 4 files: unpack it (`{command}`), and give what it held\n"
    subprocess.run(shlex.split(command), cwd=tmp_path, check=True, timeout=limit_s())
    assert reported(tmp_path / "traces", capsys)[0] == 4


@pytest.mark.parametrize("shape", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_shape_of_a_tar_is_one(tmp_path: Path, shape: int) -> None:
    found = archive_at(tarred(tmp_path / "t", ranks(tmp_path / "in", 2), "w", shape))
    assert found is not None and found.files == ["traces/rank0.json", "traces/rank1.json"] and found.whole


@pytest.mark.parametrize(
    ("name", "pack", "said"),
    [
        ("rank0.json.xz", lzma.compress, "is packed by another program than gzip: unpack it (`xz -dk {}`)"),
        ("rank0.json.bz2", bz2.compress, "is packed by another program than gzip: unpack it (`bzip2 -dk {}`)"),
        ("rank0.json.zst", lambda _: ZSTD, "is packed by another program than gzip: unpack it (`zstd -d {}`)"),
        (
            "rank0.json.gz",
            lambda text: gzip.compress(gzip.compress(text)),
            "is packed twice: unpack it (`gunzip -k {}`)",
        ),
        (
            "rank0.json.gz",
            lambda text: gzip.compress(lzma.compress(text)),
            "is packed twice: unpack it (`gunzip -k {}`)",
        ),
        ("traces.7z", lambda _: SEVEN, "is an archive: unpack it (`7z x {}`)"),
        ("traces.tar.zst", lambda _: ZSTD, "is an archive: unpack it (`tar xf {}`)"),
    ],
)
def test_a_packed_file_is_said_with_what_unpacks_it(
    tmp_path: Path, capsys: Output, name: str, pack: Callable[[bytes], bytes], said: str
) -> None:
    path = tmp_path / name
    path.write_bytes(pack(kineto.kineto_text(kineto.gpu_step())))
    assert main(["report", str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"slurm.sh: {path}: {said.format(path)}")


def test_a_zip_is_counted_too(tmp_path: Path, capsys: Output) -> None:
    path = zipped(tmp_path / "it's all.zip", ranks(tmp_path / "in", 1))
    assert main(["report", str(path)]) == 2
    assert f"is an archive of 1 file: unpack it (`unzip {shlex.quote(str(path))}`)" in capsys.readouterr().err


@pytest.mark.parametrize("make", [tarred, zipped])
def test_an_archive_beside_traces_is_told_and_the_others_count(
    tmp_path: Path, capsys: Output, make: Callable[[Path, list[Path]], Path]
) -> None:
    files = ranks(tmp_path / "in")
    make(tmp_path / "in" / "others.tgz", files)
    count, problems = reported(tmp_path / "in", capsys)
    assert (count, "an archive was not read" in problems) == (4, False), "its files lie beside it"
    files[3].unlink()
    count, problems = reported(tmp_path / "in", capsys)
    assert count == 3
    assert "others.tgz: is an archive of 4 files: unpack it (`" in problems["an archive was not read"]


def test_a_packed_rank_in_a_folder_is_told_whatever_its_name(tmp_path: Path, capsys: Output) -> None:
    files = ranks(tmp_path / "in")
    (tmp_path / "in" / "rank2.json.xz").write_bytes(lzma.compress(files[2].read_bytes()))
    files[2].unlink()
    shutil.move(tarred(tmp_path / "t", [files[3]]), files[3])
    _, problems = reported(tmp_path / "in", capsys)
    assert "rank2.json.xz: is packed by another program" in problems["an archive was not read"]
    assert "rank3.json: is an archive of 1 file" in problems["a trace cannot be read"]


def test_a_folder_of_archives_only_names_them(tmp_path: Path, capsys: Output) -> None:
    tarred(tmp_path / "traces.tgz", ranks(tmp_path / "in"))
    shutil.rmtree(tmp_path / "in")
    assert main(["report", str(tmp_path)]) == 2
    assert "traces.tgz: is an archive of 4 files: unpack it (`tar xf" in capsys.readouterr().err


def test_archives_of_other_things_are_nothing_to_tell(tmp_path: Path, capsys: Output) -> None:
    (trace,) = ranks(tmp_path, 1)
    (tmp_path / "model.json").write_text("{}")
    with zipfile.ZipFile(tmp_path / "weights.zip", "w") as made:
        made.write(tmp_path / "model.json", "weights/model.json")
    (tmp_path / "images.7z").write_bytes(SEVEN)
    (tmp_path / "broken.zip").write_bytes(b"PK\x03\x04")
    assert main(["report", str(tmp_path), "--json", "--no-html"]) == 0
    assert "an archive" not in capsys.readouterr().out
    assert archive_at(trace) is None and archive_at(tmp_path / "missing") is None and archive_at(tmp_path) is None


def test_a_cut_or_endless_archive_is_read_no_further_than_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tarred(tmp_path / "t.tar", ranks(tmp_path / "in"), "w")
    packed = gzip.compress(path.read_bytes(), 0)
    path.write_bytes(packed[: len(packed) // 2])
    found = archive_at(path)
    assert found is not None and found.files and "is an archive of at least " in found.sentence
    path.write_bytes(packed)
    monkeypatch.setattr(archives, "_MOST_BYTES", 1000)
    found = archive_at(path)
    assert found is not None and found.files == ["traces/rank0.json"] and not found.whole
    large = tarfile.TarInfo("rank0.json")
    large.size = 1 << 40
    path.write_bytes(large.tobuf() + b"{}")  # it promises a terabyte
    assert archive_at(path) is not None


def test_an_archive_opened_as_a_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="is an archive of 4 files: unpack it"):
        open_trace(tarred(tmp_path / "rank0.json.gz", ranks(tmp_path / "in")))

"""What is packed otherwise than by gzip is said with what unpacks it, and no packed rank is left out in silence."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import shlex
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.traces import TraceError, open_trace
from harness.traces.foreign.archives import archive_sentence
from tests.synthetic import kineto

Output = pytest.CaptureFixture[str]
TEXT = kineto.kineto_text(kineto.gpu_step())
ZSTD, SEVEN = b"\x28\xb5\x2f\xfd" + b"x" * 50, b"7z\xbc\xaf\x27\x1c" + b"x" * 50


def tarred(mode: str = "w:gz", shape: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar file of one trace."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode, format=shape) as made:  # type: ignore[call-overload]
        member = tarfile.TarInfo("traces/rank0.json")
        member.size = len(TEXT)
        made.addfile(member, io.BytesIO(TEXT))
    return packed.getvalue()


def zipped() -> bytes:
    """A zip file of one trace."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as made:
        made.writestr("traces/rank0.json", TEXT)
    return packed.getvalue()


OTHER = "is packed by another program than gzip: unpack it (`{} {{}}`)"
PACKED = [
    *((name, tarred(), "is an archive: unpack it (`tar xf {}`)") for name in ("t.tgz", "rank0.json.gz", "no-ending")),
    *((f"t.tar.{end}", tarred(f"w:{end}"), "is an archive: unpack it (`tar xf {}`)") for end in ("xz", "bz2")),
    *(("t.tar", tarred("w", shape), "is an archive: unpack it (`tar xf {}`)") for shape in range(3)),
    ("it's all.zip", zipped(), "is an archive: unpack it (`unzip {}`)"),
    ("traces.7z", SEVEN, "is an archive: unpack it (`7z x {}`)"),
    ("traces.tar.zst", ZSTD, "is an archive: unpack it (`tar xf {}`)"),
    ("rank0.json.xz", lzma.compress(TEXT), OTHER.format("xz -dk")),
    ("rank0.json.bz2", bz2.compress(TEXT), OTHER.format("bzip2 -dk")),
    ("rank0.json.zst", ZSTD, OTHER.format("zstd -d")),
    ("rank0.json.gz", gzip.compress(gzip.compress(TEXT)), "is packed twice: unpack it (`gunzip -k {}`)"),
    ("rank0.json.gz", gzip.compress(lzma.compress(TEXT)), "is packed twice: unpack it (`gunzip -k {}`)"),
    ("half.tar.gz", tarred()[:400], "is an archive: unpack it (`tar xf {}`)"),
]


@pytest.mark.parametrize(("name", "content", "said"), PACKED)
def test_what_is_packed_is_known_by_its_content_and_said_with_what_unpacks_it(
    tmp_path: Path, capsys: Output, name: str, content: bytes, said: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert main(["report", str(path)]) == 2
    told = f"{path}: {said.format(shlex.quote(str(path)))}, and give what it held"
    assert capsys.readouterr().err == f"slurm.sh: {told}\n"
    with pytest.raises(TraceError) as caught:
        open_trace(path)
    assert str(caught.value) == told


def problems_of(folder: Path, capsys: Output) -> str:
    """The report's JSON."""
    assert main(["report", str(folder), "--json", "--no-html"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("pack", [lzma.compress, lambda _: tarred("w")], ids=["packed", "an archive in its place"])
def test_a_packed_rank_beside_others_is_told_until_it_lies_there(
    tmp_path: Path, capsys: Output, pack: Callable[[bytes], bytes]
) -> None:
    (tmp_path / "rank0.json").write_bytes(TEXT)
    (tmp_path / "weights.zip").write_bytes(zipped())
    (tmp_path / "rank1.json.xz").write_bytes(pack(TEXT))
    found = json.loads(problems_of(tmp_path, capsys))
    told = {each["what"]: each["evidence"] for each in found["quality"]["problems"]}
    assert len(found["sources"]) == 1 and told["an archive was not read"].startswith(f"{tmp_path}/rank1.json.xz: is ")
    (tmp_path / "rank1.json").write_bytes(TEXT)
    assert "an archive was not read" not in problems_of(tmp_path, capsys)


def test_a_folder_of_archives_only_names_them(tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "traces.tgz").write_bytes(tarred())
    assert main(["report", str(tmp_path)]) == 2
    assert "traces.tgz: is an archive: unpack it (`tar xf" in capsys.readouterr().err


def test_what_is_not_packed_or_cannot_be_read_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_bytes(TEXT)
    assert [archive_sentence(tmp_path / name) for name in ("rank0.json", "missing", ".")] == [None] * 3

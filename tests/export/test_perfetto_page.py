"""`export perfetto --open`: Perfetto's page reads one file from this machine; nobody else reads anything."""

from __future__ import annotations

import gzip
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from urllib.error import HTTPError
from urllib.parse import unquote
from urllib.request import Request, urlopen

import pytest

from harness.cli.main import main
from harness.export import perfetto_page
from tests.synthetic.job import write_traces
from tests.waiting import limit_s

PAGE = "https://ui.perfetto.dev"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run, on a machine without a display and with any free port."""
    folder = tmp_path / "a 100% run"
    for trace in write_traces(folder / "torch"):
        trace.with_suffix(".json.gz").write_bytes(gzip.compress(trace.read_bytes()))
    (folder / "run.json").write_text("{}")
    monkeypatch.setattr(perfetto_page, "PORT", 0)
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    return folder


def answers(url: str) -> Iterator[tuple[int, str | None, str | None, bytes]]:
    """Status, who may read it, whether it may be read from this machine, and the content, of what browsers ask."""
    secret, _, name = url.rpartition("/")
    asked = [(url, {}), (url, {"Origin": "https://a.example"}), (url, {"Origin": "null"})]
    asked += [(wrong, {"Origin": PAGE}) for wrong in (f"{secret}x/{name}", f"{secret}/../run.json", f"{url}?x")]
    requests = [Request(address, headers=headers) for address, headers in asked]
    requests += [Request(url, headers={"Origin": PAGE}, method=method) for method in ("POST", "OPTIONS", "GET")]
    for request in requests:
        try:
            answer = urlopen(request, timeout=limit_s())
        except HTTPError as error:
            answer = error
        allowed = (answer.headers[f"Access-Control-Allow-{what}"] for what in ("Origin", "Private-Network"))
        yield answer.status, *allowed, answer.read()


def test_the_page_reads_the_file_once_and_nobody_else_reads_anything(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    out, links, browsers = run / "a #1 100%.gz", list[str](), list[Thread]()
    got: list[tuple[int, str | None, str | None, bytes]] = []

    def opened(link: str) -> bool:
        links.append(unquote(link.removeprefix(f"{PAGE}/#!/?url=")))
        browsers.append(Thread(target=lambda: got.extend(answers(links[0]))))
        browsers[0].start()
        return True

    monkeypatch.setattr("webbrowser.open", opened)
    assert main(["export", "perfetto", str(run), "--open", "--out", str(out)]) == 0
    browsers[0].join(limit_s())
    *refused, asked, read = got
    assert [status for status, *_ in refused] == [404] * 6 + [501]
    assert {allowed for _, *allowing, _ in refused for allowed in allowing} == {None}
    assert asked == (204, PAGE, "true", b"")
    assert read == (200, PAGE, None, out.read_bytes())
    with pytest.raises(OSError, match="refused"):
        urlopen(links[0], timeout=limit_s())
    said = capsys.readouterr()
    assert "opened in your browser: https" in said.out and "the browser has the whole trace" in said.err


def test_where_nobody_opens_the_link_it_ends_and_the_next_one_takes_the_same_file(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(perfetto_page, "WAIT_S", 0)
    for _ in range(2):
        assert main(["export", "perfetto", str(run), "--open"]) == 1
        said = capsys.readouterr()
        assert "did not read the trace" in said.err and f"{PAGE}/#!/?url=http://127.0.0.1:" in said.out
        assert "first type there: ssh -L 0:127.0.0.1:0 " in said.out
    assert len(list(run.rglob("*.perfetto.gz"))) == 1
    newer = (run / "torch" / "trace.perfetto.gz").stat().st_mtime + 1
    os.utime(next((run / "torch").glob("*.json.gz")), (newer, newer))
    assert main(["export", "perfetto", str(run), "--open"]) == 1
    assert len(list(run.rglob("*.perfetto.gz"))) == 2


def test_where_the_port_is_taken_nothing_is_written(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setattr(perfetto_page, "PORT", other.getsockname()[1])
        assert main(["export", "perfetto", str(run), "--open"]) == 1
    assert f"port {perfetto_page.PORT} of this machine cannot be used" in capsys.readouterr().err
    assert not list(run.rglob("*.perfetto.gz"))

"""One file for Perfetto's page: the browser reads it from this machine, once, and no other page may.

The page may read port 9001 of 127.0.0.1 and no other (its content security policy). Knows nothing of what is in a file.
"""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any
from urllib.parse import quote

from harness.common.errors import WorkError

PAGE, HOST, PORT = "https://ui.perfetto.dev", "127.0.0.1", 9001
WAIT_S = 60  # for the browser to begin


class _Answer(BaseHTTPRequestHandler):
    server: PerfettoServer
    timeout = 60  # of a connection on which nothing moves: a browser opens some that it does not use

    def do_OPTIONS(self) -> None:
        """May the page read it? Browsers ask so before they read from this machine."""
        if self._is_allowed():
            self._begin(204, {"Access-Control-Allow-Methods": "GET", "Access-Control-Allow-Private-Network": "true"})

    def do_GET(self) -> None:
        if not self._is_allowed():
            return
        self.server.asked.set()
        whole = False
        with suppress(OSError), self.server.file.open("rb") as content:  # the browser may leave
            size = os.fstat(content.fileno()).st_size
            self._begin(200, {"Content-Type": "application/octet-stream", "Content-Length": str(size)})
            shutil.copyfileobj(content, self.wfile)
            whole = True
        self.server.outcomes.put(whole)

    def _is_allowed(self) -> bool:
        allowed = (self.path, self.headers["Origin"]) == (self.server.path, PAGE)
        if not allowed:
            self.send_error(404)
        return allowed

    def _begin(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Access-Control-Allow-Origin": PAGE, "Cache-Control": "no-store", **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """The terminal is the command's."""


class PerfettoServer(ThreadingHTTPServer):
    """Holds the port from the start, so that a command can refuse before it writes a large file.

    Raises WorkError: the port is taken.
    """

    daemon_threads = True
    file: Path
    path: str

    def __init__(self) -> None:
        self.asked, self.outcomes = Event(), SimpleQueue[bool]()
        try:
            super().__init__((HOST, PORT), _Answer)
        except OSError as error:
            raise WorkError(
                f"--open: port {PORT} of this machine cannot be used ({error.strerror}), and Perfetto's page reads no "
                f"other: try again later, or leave --open out and open the file at {PAGE}"
            ) from None

    def link(self, file: Path) -> str:
        """Offer this file under a name that nobody can guess. Returns what the browser has to open."""
        self.file, self.path = file, f"/{secrets.token_urlsafe(16)}/{quote(file.name)}"
        return f"{PAGE}/#!/?url=" + quote(f"http://{HOST}:{self.server_port}{self.path}", safe=":/")

    def served(self) -> bool:
        """Whether the browser began in time and got the whole file."""
        Thread(target=self.serve_forever, args=[0.05], daemon=True).start()
        try:
            return self.asked.wait(WAIT_S) and self.outcomes.get()
        finally:
            self.shutdown()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that ends a connection is no error."""

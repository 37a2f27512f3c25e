"""One file for Perfetto's page: the browser reads it from this machine, once, and no other page may.

The page may read port 9001 of 127.0.0.1 and no other (its content security policy). Knows nothing of what is in a file.
"""

from __future__ import annotations

import secrets
import shutil
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from harness.common.errors import WorkError

PAGE, HOST, PORT = "https://ui.perfetto.dev", "127.0.0.1", 9001
WAIT_S = 60  # for the browser to begin; a large file may take longer


class _Answer(BaseHTTPRequestHandler):
    server: PerfettoServer
    timeout = 10  # of a connection on which nothing moves: a browser opens some in advance

    def do_GET(self) -> None:
        if (self.path, self.headers["Origin"]) != (self.server.path, PAGE):
            return self.send_error(404)
        self.send_response(200)
        headers = {
            "Access-Control-Allow-Origin": PAGE,
            "Access-Control-Allow-Methods": "GET",
            "Access-Control-Allow-Private-Network": "true",
            "Cache-Control": "no-store",
            "Content-Length": str(self.server.file.stat().st_size if self.command == "GET" else 0),
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            with self.server.file.open("rb") as content:
                shutil.copyfileobj(content, self.wfile)
            self.server.path = ""  # nothing is offered any longer

    do_OPTIONS = do_GET  # may the page read from this machine? Browsers may ask before they do

    def log_message(self, format: str, *args: Any) -> None:
        """The terminal is the command's."""


class PerfettoServer(HTTPServer):
    """Holds the port from the start, so that a command can refuse before it writes a large file.

    Raises WorkError: the port is taken.
    """

    def __init__(self) -> None:
        try:
            super().__init__((HOST, PORT), _Answer)
        except OSError as error:
            raise WorkError(
                f"--open: port {PORT} of this machine cannot be used ({error.strerror}), and Perfetto's page reads no "
                f"other: try again later, or leave --open out and open the file at {PAGE}"
            ) from None

    def link(self, file: Path) -> str:
        """Offer this file under a name that nobody can guess. Returns what the browser has to open."""
        self.file, self.path = file, f"/{secrets.token_urlsafe(16)}/trace.gz"
        return f"{PAGE}/#!/?url=http://{HOST}:{self.server_port}{self.path}"

    def serve(self) -> None:
        """Until the browser has the whole file. Raises WorkError: it did not begin in time."""
        end_s = time.monotonic() + WAIT_S
        while self.path:
            self.timeout = end_s - time.monotonic()
            if self.timeout <= 0:
                raise WorkError(f"no browser read the trace: type the command again, or open {self.file} at {PAGE}")
            self.handle_request()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that ends a connection is no error: it may ask again."""

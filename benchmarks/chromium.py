"""A headless Chromium driven through its DevTools protocol: what the page's benchmark and tests look with.

Knows nothing of the page. Chromium's own background traffic is switched off; what a page asks for is recorded.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import websocket

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
)
_SLOWNESS = float(os.environ.get("HARNESS_TESTS_SLOWNESS", "1"))  # of the machine, as the tests measured it
_START_S = 120.0 * _SLOWNESS
# Keys whose effect is the browser's own come from their codes.
_KEYS: dict[str, dict[str, Any]] = {
    "Tab": {"windowsVirtualKeyCode": 9},
    "Enter": {"windowsVirtualKeyCode": 13, "text": "\r"},
}


def find_chromium() -> str | None:
    """The first Chromium on the PATH."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class ScriptError(Exception):
    """An expression that threw in the page."""


class Chromium:
    """A browser without a window; `page` opens a window of its own in it."""

    def __init__(self, program: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        argv = [program, *_QUIET, f"--user-data-dir={self._folder.name}"]
        self._process = subprocess.Popen([*argv, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            self._port = self._listens_at()
        except BaseException:
            self._process.kill()
            raise

    def _listens_at(self) -> str:
        """Chromium writes its port once it listens."""
        port_file = Path(self._folder.name) / "DevToolsActivePort"
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            if port_file.is_file() and (lines := port_file.read_text().split()):
                return lines[0]
            time.sleep(0.05)
        raise TimeoutError(f"Chromium did not start in {_START_S:.0f} s")

    def __enter__(self) -> Chromium:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:  # it has nothing to lose
            self._process.kill()
            self._process.wait(timeout=20)
        self._folder.cleanup()

    def page(self, width: int = 1280, height: int = 900) -> Browser:
        """A new window: a page in the background of another would not be drawn."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/json/version", timeout=60 * _SLOWNESS) as answer:
            browser = _connect(json.load(answer)["webSocketDebuggerUrl"])
        wanted = {"url": "about:blank", "newWindow": True, "width": width, "height": height}
        browser.send(json.dumps({"id": 1, "method": "Target.createTarget", "params": wanted}))
        while (message := json.loads(browser.recv())).get("id") != 1:
            pass
        browser.close()
        target = message["result"]["targetId"]
        return Browser(_connect(f"ws://127.0.0.1:{self._port}/devtools/page/{target}"), width, height)


def _connect(address: str) -> websocket.WebSocket:
    return websocket.create_connection(address, timeout=60 * _SLOWNESS)


class Browser:
    """One page. `problems`: console errors and exceptions; `requests`: every address asked for."""

    def __init__(self, page: websocket.WebSocket, width: int, height: int) -> None:
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._number = 0
        self._socket = page
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(websocket.WebSocketException, OSError):
            self.call("Page.close")
        self._socket.close()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its result; what happened meanwhile is recorded."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message: dict[str, Any] = json.loads(self._socket.recv())
            if message.get("id") == self._number:
                if "error" in message:
                    raise ScriptError(f"{method}: {message['error'].get('message')}")
                return dict(message["result"])
            self._record(message)

    def _record(self, message: dict[str, Any]) -> None:
        method, said = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = said["exceptionDetails"]
            self.problems.append(str(details.get("exception", {}).get("description") or details["text"]))
        elif method == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(a.get("value", a.get("description"))) for a in said["args"]))
        elif method == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.problems.append(said["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])

    def open(self, page: Path, dark: bool = False) -> None:
        """Go to a file and wait for it to be loaded (its scripts may still be at work)."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[feature])
        self.call("Page.navigate", url=page.absolute().as_uri())
        self.wait("document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page; promises are awaited. Raises ScriptError when it throws."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, userGesture=True
        )
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise ScriptError(str(details.get("exception", {}).get("description") or details["text"]))
        return answer["result"].get("value")

    def wait(self, expression: str, timeout_s: float = 60.0) -> None:
        """Until an expression is true. Raises TimeoutError."""
        deadline = time.monotonic() + timeout_s * _SLOWNESS
        while not self.evaluate(expression):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not true within {timeout_s * _SLOWNESS:.0f} s: {expression}; {self.problems}")
            time.sleep(0.05)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """A mouse event at a place of the window: mousePressed, mouseReleased, mouseMoved, mouseWheel."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def key(self, key: str) -> None:
        """A key pressed and released."""
        does: dict[str, Any] = {"text": key} if len(key) == 1 else _KEYS.get(key, {})
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **does)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def screenshot(self, path: Path, whole: bool = False) -> None:
        """The window, or the whole page, as PNG."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

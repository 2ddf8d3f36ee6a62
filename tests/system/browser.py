"""A headless Chromium, driven through the DevTools protocol over a pipe: no port, no extra package.

Commands and events are JSON texts that end with a zero byte; Chromium reads them from descriptor 3 and writes to 4.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)
LOSS_TIMEOUT_S = 60.0


def find_chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page. `errors` are console errors and exceptions, `requests` every requested URL."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        number = self._number
        command: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            command["sessionId"] = self._session
        os.write(self._to, json.dumps(command).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])

    def open(self, path: Path, *, width: int, height: int, dark: bool = False) -> None:
        self.errors.clear()
        self.requests.clear()
        is_phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=is_phone
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait("document.readyState === 'complete' && document.documentElement.dataset.charts === 'drawn'")

    def evaluate(self, script: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        deadline = time.monotonic() + LOSS_TIMEOUT_S
        while not self.evaluate(condition):
            assert time.monotonic() < deadline, f"never: {condition}; {self.errors[:3]}"
            time.sleep(0.05)

    def press(self, key: str) -> None:
        codes = {"Enter": 13, "Escape": 27, "Tab": 9}
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key], **text)

    def photograph(self, path: Path, *, whole: bool = False) -> bytes:
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **self._clip(whole))
        data = base64.b64decode(answer["data"])
        path.write_bytes(data)
        return data

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 16000), "scale": 1}}

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], LOSS_TIMEOUT_S)
            assert ready, "the browser does not answer"
            data = os.read(self._from, 1 << 20)
            assert data, "the browser went away"
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, given: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(given["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning", "assert"):
            self.errors.append(str(given["args"]))
        elif method == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
            self.errors.append(str(given["entry"]))


@contextmanager
def start_browser(program: str, profile: Path) -> Iterator[Browser]:
    """A browser with a new profile, ended with the block."""
    read_commands, write_commands = os.pipe()
    read_events, write_events = os.pipe()

    def place_pipes() -> None:
        # move to free numbers above 4 first, so that placing one cannot overwrite the other
        commands, events = (fcntl.fcntl(pipe, fcntl.F_DUPFD, 5) for pipe in (read_commands, write_events))
        os.dup2(commands, 3, inheritable=True)
        os.dup2(events, 4, inheritable=True)

    process = subprocess.Popen(
        [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        close_fds=False,
        preexec_fn=place_pipes,
    )
    os.close(read_commands)
    os.close(write_events)
    try:
        yield Browser(write_commands, read_events)
    finally:
        os.close(write_commands)
        os.close(read_events)
        process.terminate()
        process.wait(LOSS_TIMEOUT_S)

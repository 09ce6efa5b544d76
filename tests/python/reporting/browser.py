# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium driven over its debugging pipe (DevTools protocol), without further packages.

Commands are JSON objects, each followed by a NUL byte. The browser reads them from descriptor 3 and answers on 4.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import subprocess
from pathlib import Path
from typing import Any, Self

_FIRST_FREE_DESCRIPTOR = 10
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run")


def _take_descriptors(commands: int, answers: int) -> None:
    """Runs in the child: puts the pipe's ends at the descriptors that Chromium expects."""
    os.dup2(commands, 3)
    os.dup2(answers, 4)


class Browser:
    """One browser with one page. `complaints` collects console messages, log entries and uncaught exceptions."""

    def __init__(self, profile: Path) -> None:
        self.complaints: list[str] = []
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()
        theirs = [fcntl.fcntl(end, fcntl.F_DUPFD, _FIRST_FREE_DESCRIPTOR) for end in (commands, answers)]
        self._process = subprocess.Popen(
            ["chromium", *_FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(3, 4),
            preexec_fn=lambda: _take_descriptors(*theirs),
        )
        for end in (commands, answers, *theirs):
            os.close(end)
        self._buffer = b""
        self._number = 0
        self._session = ""
        self._open_page()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(20)
        os.close(self._write)
        os.close(self._read)

    def open(self, path: Path, width: int, scheme: str = "light") -> None:
        """Loads a file in a window of this width. Returns when it has loaded."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.send("Emulation.setEmulatedMedia", features=[feature])
        self.send("Page.navigate", url=path.as_uri())
        self.evaluate(
            "new Promise(done => document.readyState == 'complete' ? done() : addEventListener('load', done))"
        )

    def evaluate(self, expression: str) -> Any:
        """Returns the JSON value of the last of some JavaScript statements, awaited. Their variables stay local."""
        answer = self.send("Runtime.evaluate", expression=f"{{ {expression} }}", returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def move_pointer(self, x: float, y: float) -> None:
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path: Path) -> None:
        """Saves a picture of the whole page, however long it is."""
        answer = self.send("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Sends one command and returns its answer. Collects complaints from events that arrive meanwhile."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            received = self._receive()
            if received.get("id") == self._number:
                assert "error" not in received, (method, received["error"])
                return received["result"]
            self._note(received)

    def _open_page(self) -> None:
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = os.read(self._read, 1 << 16)
            assert chunk, f"chromium ended with code {self._process.wait(20)}"
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        parsed: dict[str, Any] = json.loads(message)
        return parsed

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
            self.complaints.append(json.dumps(event["params"]))

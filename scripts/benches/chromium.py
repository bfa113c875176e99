"""Headless Chromium by its DevTools protocol over a pair of pipes: no driver and no further package.

with Chromium() as browser, browser.tab(360, 800, dark=True) as tab:
    tab.open(url)
    tab.wait("document.title === 'x'")
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from swarm.processes import wait_until

NAMES = ("chromium", "chromium-browser", "google-chrome")
WHY_NOT = "needs Chromium (Debian: apt install chromium)"
_SECONDS = 60
_ARGUMENTS = (
    "--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--mute-audio", "--lang=en-US",
)  # fmt: skip


def program() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    def __enter__(self) -> Chromium:
        found = program()
        assert found is not None, WHY_NOT
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        here, theirs = os.pipe(), os.pipe()  # what it reads, what it writes
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        command = [found, *_ARGUMENTS, *sandbox, f"--user-data-dir={self._profile.name}", "about:blank"]
        # It reads from descriptor 3 and writes to 4.
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (here[0], theirs[1])]
        shell = ["bash", "-c", f'exec "$@" 3<&{high[0]} 4>&{high[1]}', "bash", *command]
        self._process = subprocess.Popen(
            shell, pass_fds=high, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for fd in (here[0], theirs[1], *high):
            os.close(fd)
        self._to, self._from = os.fdopen(here[1], "wb", buffering=0), os.fdopen(theirs[0], "rb")
        self._number = 0
        self._answers: dict[int, queue.Queue[dict[str, Any]]] = {}
        self.events: list[dict[str, Any]] = []
        threading.Thread(target=self._read, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(Exception):
            self.send("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        self._to.close()
        self._from.close()
        self._profile.cleanup()

    def send(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        number, answer = self._number, queue.Queue[dict[str, Any]]()
        self._answers[number] = answer
        message = {"id": number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        self._to.write(json.dumps(message).encode() + b"\0")
        said = answer.get(timeout=_SECONDS)
        assert "error" not in said, f"{method}: {said.get('error')}"
        result: dict[str, Any] = said["result"]
        return result

    def _read(self) -> None:
        data = b""
        with suppress(OSError, ValueError):  # it has ended
            while piece := self._from.read1(1 << 16):  # type: ignore[attr-defined]
                *whole, data = (data + piece).split(b"\0")
                for message in map(json.loads, whole):
                    if "id" in message:
                        self._answers.pop(message["id"]).put(message)
                    else:
                        self.events.append(message)

    @contextmanager
    def tab(self, width: int = 1440, height: int = 900, *, dark: bool = False) -> Iterator[Tab]:
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        made = Tab(self, session)
        for domain in ("Page", "Runtime", "Log", "Network", "Performance"):
            made.send(f"{domain}.enable")
        scale = {"deviceScaleFactor": 1, "mobile": width < 500}
        made.send("Emulation.setDeviceMetricsOverride", width=width, height=height, **scale)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        made.send("Emulation.setEmulatedMedia", features=scheme)
        yield made
        self.send("Target.closeTarget", targetId=target)


class Tab:
    def __init__(self, browser: Chromium, session: str) -> None:
        self._browser = browser
        self._session = session

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.send(method, self._session, **parameters)

    def before_scripts(self, source: str) -> None:
        """Runs in every document that is opened from now on, before its own scripts."""
        self.send("Page.addScriptToEvaluateOnNewDocument", source=source)

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def ask(self, expression: str) -> Any:
        """The value of an expression of JavaScript; a promise's once it is there."""
        said = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    def wait(self, expression: str) -> None:
        wait_until(lambda: bool(self.ask(f"Boolean({expression})")), deadline=30, what=expression)

    def text(self, selector: str = "body") -> str:
        return str(self.ask(f"document.querySelector({json.dumps(selector)}).innerText"))

    def press(self, selector: str) -> None:
        self.ask(f"document.querySelector({json.dumps(selector)}).click()")

    def troubles(self) -> list[str]:
        """What was thrown, logged as an error or refused by the content policy, in this tab."""
        mine = [event for event in self._browser.events if event.get("sessionId") == self._session]
        found = []
        for event in mine:
            parameters = event["params"]
            match event["method"]:
                case "Runtime.exceptionThrown":
                    found.append(str(parameters["exceptionDetails"].get("exception", {}).get("description")))
                case "Log.entryAdded" if parameters["entry"]["level"] == "error":
                    found.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
                case "Runtime.consoleAPICalled" if parameters["type"] == "error":
                    found.append(str(parameters["args"]))
        return found

    def requests(self) -> list[str]:
        """URLs that were asked for."""
        mine = [event for event in self._browser.events if event.get("sessionId") == self._session]
        return [event["params"]["request"]["url"] for event in mine if event["method"] == "Network.requestWillBeSent"]

    def picture(self, path: Path, *, whole: bool = True, quality: int | None = None) -> None:
        """`path` ends as its format is called; `quality` in percent, where that format has one."""
        kind = {"format": path.suffix[1:]} | ({} if quality is None else {"quality": quality})
        data = self.send("Page.captureScreenshot", captureBeyondViewport=whole, **kind)["data"]
        path.write_bytes(base64.b64decode(data))

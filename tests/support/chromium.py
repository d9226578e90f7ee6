"""Debian's Chromium driven by the DevTools protocol over a pipe: no other program, no port, no dependency.

`--remote-debugging-pipe` makes the browser read commands from file descriptor 3 and write answers and events
to 4, each a JSON object that ends with a zero byte.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ANSWER_S = 90.0
WAIT_S = 60.0
"""Until a page shows something: Tarn's asks every two seconds, and gives a request six."""
QUIET_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--hide-scrollbars",
    "--mute-audio",
    "--remote-debugging-pipe",
)
ANSWERED = {"returnByValue": True, "awaitPromise": True, "allowUnsafeEvalBlockedByCSP": False}
NETWORK_CHANGED = "ERR_NETWORK_CHANGED"
"""Networks of containers come and go beside the tests; the page asks again."""
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32}


class ProtocolError(Exception):
    """The browser refused a command, or did not answer."""


@dataclass
class Page:
    """One tab.

    Attributes:
        console: errors and warnings of the console, exceptions of scripts, and responses that failed.
        requests: addresses that it asked.
    """

    browser: Browser
    session: str
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def send(self, method: str, **params: Any) -> Any:
        """Send a command to this tab; returns its result."""
        return self.browser.send(method, session=self.session, **params)

    def open(self, url: str) -> None:
        """Go to an address, and wait until it is loaded."""
        self.send("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script: str) -> Any:
        """The value of an expression in the page; promises are awaited."""
        found = self.send("Runtime.evaluate", expression=script, **ANSWERED)
        if "exceptionDetails" in found:
            raise ProtocolError(f"{script}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def until(self, script: str, *, timeout_s: float = WAIT_S) -> Any:
        """Wait until an expression is true, and return its value."""
        late_s = time.monotonic() + timeout_s
        while True:
            is_last = time.monotonic() >= late_s
            with contextlib.suppress(ProtocolError):
                found = self.run(f"(found => found instanceof Node ? true : found)({script})")
                if found:
                    return found
            if is_last:
                text = self.run("document.body.innerText")
                raise AssertionError(f"not within {timeout_s} s: {script}\n{text[:3000]}\n{self.console}")
            time.sleep(0.05)

    def text(self, selector: str) -> str:
        """The text of an element."""
        return str(self.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    def click(self, selector: str) -> None:
        """Click on the middle of an element, with the mouse."""
        found = json.dumps(selector)
        self.run(f"document.querySelector({found}).scrollIntoView({{block: 'center'}})")
        box = self.run(
            f"(() => {{ const b = document.querySelector({found}).getBoundingClientRect();"
            " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def press(self, key: str, *, shift: bool = False) -> None:
        """Press a key."""
        code = KEYS[key]
        event = {"key": key, "code": {" ": "Space"}.get(key, key), "windowsVirtualKeyCode": code}
        text = {"Enter": "\r", " ": " "}.get(key)
        down = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
        modifiers = 8 if shift else 0
        self.send("Input.dispatchKeyEvent", **event, **down, modifiers=modifiers)
        self.send("Input.dispatchKeyEvent", **event, type="keyUp", modifiers=modifiers)

    def type(self, text: str) -> None:
        """Type a text where the focus is."""
        self.send("Input.insertText", text=text)

    def size(self, width: int, height: int, *, scale: float = 1.0) -> None:
        """Set the size of the window, in CSS pixels."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=False,
        )

    def prefer(self, **features: str) -> None:
        """Set media features, as in prefers_color_scheme='dark'."""
        named = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.send("Emulation.setEmulatedMedia", features=named)

    def picture(self, path: Path, *, height: int | None = None) -> None:
        """Save the page as PNG: the whole of it, or so many pixels from where it is scrolled to."""
        width, whole, top = self.run(
            "[document.documentElement.clientWidth, document.documentElement.scrollHeight, scrollY]"
        )
        start = top if height else 0
        clip = {"x": 0, "y": start, "width": width, "height": min(whole - start, height or whole), "scale": 1}
        found = self.send("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def close(self) -> None:
        """Close the tab."""
        with contextlib.suppress(ProtocolError):
            self.send("Page.close")


class Browser:
    """A running browser.

    Args:
        process: the browser.
        to: file descriptor of its commands.
        back: file descriptor of its answers.
    """

    def __init__(self, process: subprocess.Popen[bytes], to: int, back: int) -> None:
        self._process, self._to, self._back = process, to, back
        self._number = 0
        self._read = b""
        self._pages: dict[str, Page] = {}

    @contextlib.contextmanager
    def page(self) -> Iterator[Page]:
        """A new tab with storage of its own, until the end of the block."""
        context = self.send("Target.createBrowserContext", disposeOnDetach=True)["browserContextId"]
        target = self.send("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.send(f"{domain}.enable")
        page.size(1280, 900)
        try:
            yield page
        finally:
            page.close()
            del self._pages[session]

    def send(self, method: str, *, session: str | None = None, **params: Any) -> Any:
        """Send a command; returns its result."""
        self._number += 1
        number = self._number
        whole: dict[str, Any] = {"id": number, "method": method, "params": params}
        if session is not None:
            whole["sessionId"] = session
        os.write(self._to, json.dumps(whole).encode() + b"\0")
        found = self._until(lambda message: message.get("id") == number)
        if "error" in found:
            raise ProtocolError(f"{method}: {found['error']}")
        return found["result"]

    def _until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        late_s = time.monotonic() + ANSWER_S
        while True:
            while b"\0" in self._read:
                one, _, self._read = self._read.partition(b"\0")
                message = json.loads(one)
                self._note(message)
                if wanted(message):
                    return dict(message)
            left_s = late_s - time.monotonic()
            if left_s <= 0 or not select.select([self._back], [], [], left_s)[0]:
                raise ProtocolError(f"no answer within {ANSWER_S} s")
            found = os.read(self._back, 1 << 20)
            if not found:
                raise ProtocolError(f"the browser ended: {self._process.poll()}")
            self._read += found

    def _note(self, message: dict[str, Any]) -> None:
        page = self._pages.get(message.get("sessionId", ""))
        params = message.get("params", {})
        if page is None:
            return
        match message.get("method"):
            case "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                page.console.append(details.get("exception", {}).get("description") or details["text"])
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                page.console.append(str([one.get("value") for one in params["args"]]))
            case "Log.entryAdded" if NETWORK_CHANGED in params["entry"]["text"]:
                pass
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                page.console.append(f"{params['entry']['text']} {params['entry'].get('url', '')}".strip())
            case "Network.requestWillBeSent":
                page.requests.append(params["request"]["url"])


@contextlib.contextmanager
def started(program: str, profile: Path) -> Iterator[Browser]:
    """A browser, until the end of the block.

    Args:
        program: the program.
        profile: an empty folder for its profile.
    """
    commands, to = os.pipe()
    back, answers = os.pipe()

    def ends() -> None:
        # 3 and 4 may be among the four: both are moved away first.
        command, answer = os.dup2(commands, 100), os.dup2(answers, 101)
        os.dup2(command, 3)
        os.dup2(answer, 4)

    with contextlib.ExitStack() as closing:
        closing.callback(os.close, to)
        closing.callback(os.close, back)
        process = subprocess.Popen(
            [program, *QUIET_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=ends,
            start_new_session=True,
        )
        os.close(commands)
        os.close(answers)
        try:
            yield Browser(process, to, back)
        finally:
            process.kill()
            process.wait(30)


@contextlib.contextmanager
def tab(program: str, profile: Path) -> Iterator[Page]:
    """A tab of a browser of its own, until the end of the block; the arguments are those of `started`."""
    with started(program, profile) as browser, browser.page() as page:
        yield page

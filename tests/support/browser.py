"""A real browser that opens a page and returns what the page wrote: Debian's Chromium, headless."""

from __future__ import annotations

import contextlib
import fcntl
import html
import json
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tarn_host.console import StopError
from tarn_host.stack import apt

from tests.support.stack import run

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
INSTALL_S = 250  # apt has it twice: for the lists, and for the package
LOOK_S = 180
RESULT = re.compile(r'<pre id="result">(.*?)</pre>', re.DOTALL)
# The browser's own protections against requests into private networks, and its upgrade to HTTPS: disabled, so
# that the services' own protections are tested. Older browsers have none of these.
GUARDS_OFF = (
    "LocalNetworkAccessChecks,PrivateNetworkAccessSendPreflights,BlockInsecurePrivateNetworkRequests,"
    "HttpsUpgrades,HttpsFirstBalancedMode,HttpsFirstBalancedModeAutoEnable"
)


def program() -> str | None:
    """A browser of this machine, installed on Debian as root if its apt sources have one; else None."""
    found = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
    if found is None and sys.platform.startswith("linux") and os.geteuid() == 0 and apt.is_debian():
        # Tiers run side by side, and apt refuses the second that comes.
        with (Path(tempfile.gettempdir()) / "tarn-tests-chromium.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if shutil.which("chromium") is None:
                with contextlib.suppress(StopError):
                    apt.install(["chromium"], Path(os.devnull), timeout_s=INSTALL_S)
        found = shutil.which("chromium")
    return found


def required() -> str:
    """A browser; the test is skipped without one."""
    found = program()
    if found is None:
        pytest.skip("no Chromium on this machine, and none to be had from its apt sources")
    return found


def look(browser: str, url: str, *, hosts: str, profile: Path) -> Any:
    """The JSON that a page wrote into `<pre id="result">`.

    Args:
        browser: the program.
        url: the page.
        hosts: the browser's `--host-resolver-rules`, which map names to addresses.
        profile: its profile folder; calls with the same folder share a cache.
    """
    command = [
        *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *(
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--no-first-run",
        ),
        *(f"--user-data-dir={profile}", f"--host-resolver-rules={hosts}", "--no-proxy-server"),
        *(f"--disable-features={GUARDS_OFF}", "--virtual-time-budget=20000", "--dump-dom", url),
    ]
    answer = run(command, timeout_s=LOOK_S)
    found = RESULT.search(answer.text)
    assert found, f"{url}: exit code {answer.code}\n{answer.text[-3000:]}"
    return json.loads(html.unescape(found[1]))


@contextlib.contextmanager
def site(page: str) -> Iterator[int]:
    """The port of a site on 127.0.0.1 that serves this page for every request, cacheable for an hour."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = page.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "max-age=3600")
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

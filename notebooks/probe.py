"""JupyterLab's health probe (see services/tarn/probe/runner.py)."""

from __future__ import annotations

import base64
import http.client as http_client
import json
import os
import time
import uuid

from tarn.probe.look import answers, http, own_host, secret

SERVICE = "jupyter"
ADDRESS = f"{own_host('TARN_JUPYTER_LISTEN')}:8888"
HOST = {"host": "localhost"}  # the server rejects names other than loopback
SHALLOW_BUDGET_S = 5.0
DEEP_BUDGET_S = 40.0
CONTENTS = "/api/contents/tarn?content=0"
POLL_S = 0.2


def alive() -> None:
    """Require that the server answers, with any status."""
    answers(ADDRESS, "/api", timeout_s=4.0)


def shallow() -> None:
    """Require that the contents API accepts the token.

    Raises:
        RuntimeError: the response status is not 200.
    """
    status, _, _ = http("GET", ADDRESS, CONTENTS, headers=bearer(), timeout_s=3.0)
    if status != 200:
        raise RuntimeError(f"the contents API answers {status} to the token, expected 200")


def deep() -> None:
    """Require a redirect to the log-in page without the token; start a kernel, await its reply, stop it.

    Raises:
        RuntimeError: a result is not the expected one.
    """
    # Asks for the page, not the API: the server logs a warning for each rejected API request.
    status, found, _ = http("GET", ADDRESS, "/lab", headers=HOST, timeout_s=3.0)
    if status != 302 or not found.get("location", "").startswith("/login"):
        raise RuntimeError(f"/lab answers {status} without a token, expected 302 to /login")
    status, _, body = http("POST", ADDRESS, "/api/kernels", headers=bearer(), body=b"{}", timeout_s=20.0)
    if status != 201:
        raise RuntimeError(f"starting a kernel: status {status}: {body[:200].decode('utf-8', 'replace')}")
    path = f"/api/kernels/{json.loads(body)['id']}"
    try:
        await_idle(path)
    finally:
        http("DELETE", ADDRESS, path, headers=bearer(), timeout_s=10.0)


def await_idle(path: str) -> None:
    """Open the kernel's websocket channels, as a browser does, and wait until the kernel is idle.

    The server then requests the kernel's info; the reply makes the kernel idle.

    Raises:
        RuntimeError: the channels cannot be opened, or the kernel dies.
    """
    upgrade = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": base64.b64encode(os.urandom(16)).decode(),
    }
    channels = http_client.HTTPConnection(ADDRESS, timeout=20.0)
    try:
        channels.request(
            "GET", f"{path}/channels?session_id={uuid.uuid4().hex}", headers={**bearer(), **upgrade}
        )
        if (status := channels.getresponse().status) != 101:
            raise RuntimeError(f"the channels of a new kernel: status {status}, expected 101")
        while True:
            status, _, body = http("GET", ADDRESS, path, headers=bearer(), timeout_s=4.0)
            state = json.loads(body).get("execution_state") if status == 200 else f"gone (status {status})"
            if state == "idle":
                return
            if state not in ("starting", "busy", "unknown"):
                raise RuntimeError(f"a new kernel is {state}")
            time.sleep(POLL_S)
    finally:
        channels.close()


def bearer() -> dict[str, str]:
    """Return the headers that authenticate a request."""
    return {**HOST, "authorization": f"token {secret('jupyter_token')}"}

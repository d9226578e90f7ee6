"""Health of JupyterLab: see services/tarn/probe/runner.py for how it is run."""

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
HOST = {"host": "localhost"}  # the one kind of name that the server answers to
SHALLOW_BUDGET_S = 5.0
DEEP_BUDGET_S = 40.0
CONTENTS = "/api/contents/tarn?content=0"
POLL_S = 0.2


def alive() -> None:
    """The server answers, whatever it says."""
    answers(ADDRESS, "/api", timeout_s=4.0)


def shallow() -> None:
    """The server shows its notebooks to whoever holds the token.

    Raises:
        RuntimeError: it does not.
    """
    status, _, _ = http("GET", ADDRESS, CONTENTS, headers=bearer(), timeout_s=3.0)
    if status != 200:
        raise RuntimeError(f"the contents API answers {status} to the token, expected 200")


def deep() -> None:
    """Without the token only the log-in page; a kernel starts, answers as to a browser, and is ended.

    Raises:
        RuntimeError: one of these is not so.
    """
    # The page and not the API: the server warns of each refusal of its API.
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
    """Opens the kernel's channels, for which the server asks the kernel who it is, and waits for its answer.

    Raises:
        RuntimeError: no channels, or the kernel dies.
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
    """The header that opens the server."""
    return {**HOST, "authorization": f"token {secret('jupyter_token')}"}

"""What a check needs: the probe, secrets, HTTP. Runs in a child of the watch (see `runner.py`), stdlib only.

`from tarn.probe.look import secret, http` works in a probe, whether or not the image has the tarn package.
"""

from __future__ import annotations

import http.client as http_client
import importlib.util
import json
import os
import signal
import sys
import time
import types

LINE_CHARS_MAX = 400
LOG_PATH = "/proc/1/fd/1"
OWN_NAME = {"host": "localhost"}
"""The one kind of name that the services of this package answer to."""


def obey(path: str, order: str) -> str | None:
    """Run a check at a level, or end the process that an order `end <pid> <silence in s> <fault>` names.

    Returns:
        The fault on one line; None if there is none.
    """
    try:
        probe = load_probe(path)
        if order.startswith("end "):
            _, process, silent_s, fault = order.split(" ", 3)
            end(int(process), service=probe.SERVICE, silent_s=int(silent_s), fault=fault, log_path=LOG_PATH)
        else:
            getattr(probe, order)()
    except Exception as error:  # noqa: BLE001 - whatever a probe raises means: not usable
        return one_line(error)
    return None


def end(process: int, *, service: str, silent_s: int, fault: str, log_path: str) -> None:
    """Kill a process of this container, after writing a line to the container's log.

    Args:
        process: process id.
        service: name of the service, for the log.
        silent_s: seconds without a response.
        fault: last fault.
        log_path: file of the container's log.

    Raises:
        OSError: the process does not exist, or belongs to another user.
    """
    now = time.time()
    line = {
        "timestamp": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1000):03}Z",
        "level": "error",
        "event": "no answer of its own: the process is ended, and the container starts again",
        "service": service,
        "logger": "health",
        "silent_s": silent_s,
        "fault": fault,
        "pid": process,
    }
    try:
        with open(log_path, "a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")
    except OSError:
        pass  # a log that cannot be written must not keep a hanging process alive
    os.kill(process, signal.SIGKILL)


def load_probe(path: str) -> types.ModuleType:
    """Import the probe module, once.

    Raises:
        RuntimeError: the file is not a Python module.
    """
    if (known := sys.modules.get("tarn_probe")) is not None:
        return known
    spec = importlib.util.spec_from_file_location("tarn_probe", path)
    if spec is None or spec.loader is None:
        raise RuntimeError(f"{path} is not a Python module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["tarn_probe"] = module
    return module


def one_line(error: BaseException) -> str:
    """The error message on one line, with the error's type where the message alone would be unclear."""
    text = " ".join(str(error).split())
    name = type(error).__name__
    line = text if text and name == "RuntimeError" else f"{name}: {text}" if text else name
    return line[:LINE_CHARS_MAX]


# -- what probes may use -------------------------------------------------------------------------------------


def secret(name: str) -> str:
    """Read a secret file, without its trailing newlines.

    Raises:
        RuntimeError: the file cannot be read.
    """
    path = f"{os.environ.get('TARN_SECRETS_DIR', '/run/tarn/secrets')}/{name}"
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().rstrip("\n")
    except OSError as error:
        raise RuntimeError(f"secret {path} cannot be read: {error.strerror}") from error


def own_host(variable: str) -> str:
    """Host that this service listens on, from its setting; the loopback if it listens on all addresses."""
    set_to = os.environ.get(variable, "")
    return "127.0.0.1" if set_to in ("", "0.0.0.0") else set_to  # noqa: S104 - compared


def http(
    method: str,
    address: str,
    path: str,
    *,
    headers: dict[str, str] | None = None,
    body: bytes = b"",
    timeout_s: float = 4.0,
) -> tuple[int, dict[str, str], bytes]:
    """Send one HTTP request to `host:port`.

    Args:
        method: HTTP method.
        address: `host:port`.
        path: path and query of the URL.
        headers: request headers.
        body: request body.
        timeout_s: limit of the connection and of each read, in seconds.

    Returns:
        Status, headers (names in lower case) and body.

    Raises:
        RuntimeError: no connection, or no complete response within the timeout.
    """
    connection = http_client.HTTPConnection(address, timeout=timeout_s)
    try:
        connection.request(method, path, body=body or None, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    except (OSError, http_client.HTTPException) as error:
        reason = f"no answer within {timeout_s:g} s" if isinstance(error, TimeoutError) else one_line(error)
        raise RuntimeError(f"{method} http://{address}{path.split('?')[0]}: {reason}") from error
    finally:
        connection.close()


def require_well(address: str, path: str, *, timeout_s: float) -> None:
    """Require that a service of this package says that nothing is wrong with it.

    Args:
        address: `host:port`.
        path: path and query of its health.
        timeout_s: limit of the connection and of each read, in seconds.

    Raises:
        RuntimeError: no response, or the faults that it names.
    """
    status, _, body = http("GET", address, path, headers=OWN_NAME, timeout_s=timeout_s)
    if status == 200:
        return
    try:
        faults = "; ".join(json.loads(body)["faults"])
    except (ValueError, KeyError, TypeError):
        faults = body[:200].decode("utf-8", "replace")
    raise RuntimeError(f"status {status}: {faults}")


def answers(address: str, path: str, *, timeout_s: float) -> None:
    """Require any response to a plain request: the process exists and makes progress.

    Args:
        address: `host:port`.
        path: path and query of the URL.
        timeout_s: limit of the connection and of each read, in seconds.

    Raises:
        RuntimeError: no connection, or no complete response within the timeout.
    """
    http("GET", address, path, timeout_s=timeout_s)

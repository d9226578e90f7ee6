"""Plain HTTP and TCP checks of services. Stdlib only."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any
from urllib.parse import urlsplit

from tarn.core.errors import TarnError, UnavailableError

BODY_BYTES_MAX = 4 * 1024 * 1024


def get(url: str, *, service: str, timeout_s: float) -> tuple[int, bytes]:
    """Send a GET request and return (status, body).

    Args:
        url: URL.
        service: name of the service, for error messages.
        timeout_s: limit of the connection and of each read, in seconds.

    Raises:
        UnavailableError: no response in time.
    """
    return _send("GET", url, service=service, timeout_s=timeout_s)


def post(url: str, *, service: str, timeout_s: float) -> int:
    """Send a POST request without a body and return the status. Arguments and errors are those of `get`."""
    return _send("POST", url, service=service, timeout_s=timeout_s)[0]


def _send(method: str, url: str, *, service: str, timeout_s: float) -> tuple[int, bytes]:
    parts = urlsplit(url)
    target = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.request(method, target, headers={"Accept": "application/json"})
        response = connection.getresponse()
        return response.status, response.read(BODY_BYTES_MAX)
    except (OSError, http.client.HTTPException) as error:
        raise unreachable(service, url, error) from error
    finally:
        connection.close()


def get_json(url: str, *, service: str, timeout_s: float) -> Any:
    """Return the JSON body of a GET request with status 200.

    Args:
        url: URL.
        service: name of the service, for error messages.
        timeout_s: limit of the connection and of each read, in seconds.

    Raises:
        UnavailableError: no response in time, or a server error.
        TarnError: the response is not JSON with status 200.
    """
    status, body = get(url, service=service, timeout_s=timeout_s)
    if status >= 500:
        raise UnavailableError(f"{service} at {url} answers {status}; see docker compose logs {service}")
    try:
        if status != 200:
            raise ValueError(f"status {status}")
        return json.loads(body)
    except ValueError as error:
        raise TarnError(
            f"{service} at {url} does not answer with JSON ({error}): is it another program on that port?"
        ) from error


def connect(host: str, port: int, *, service: str, timeout_s: float) -> None:
    """Open and close a TCP connection.

    Args:
        host: host name or address.
        port: TCP port.
        service: name of the service, for error messages.
        timeout_s: limit in seconds.

    Raises:
        UnavailableError: nothing listens there.
    """
    try:
        socket.create_connection((host, port), timeout=timeout_s).close()
    except OSError as error:
        raise unreachable(service, f"{host}:{port}", error) from error


def unreachable(service: str, address: str, error: Exception) -> UnavailableError:
    """Return the error for a service that cannot be reached.

    Args:
        service: name of the service, for the message.
        address: URL or `host:port`.
        error: the underlying error.
    """
    reason = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
    return UnavailableError(
        f"{service} at {address} cannot be reached ({reason}); is it running and healthy? "
        f"see docker compose ps and docker compose logs {service}",
        service=service,
        address=address,
    )

"""Requests to the lake's HTTP services, whose errors say which of them is away."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

from tarn.core.errors import NotFoundError, TarnError, UnavailableError

TIMEOUT_S = 10.0
BODY_BYTES_MAX = 16 << 20


class Web:
    """One service.

    Args:
        service: its name in Compose.
        uri: its address.
    """

    def __init__(self, service: str, uri: str) -> None:
        self.service = service
        self.uri = uri.rstrip("/")

    def get(self, path: str) -> Any:
        """The JSON of a path.

        Raises:
            NotFoundError: there is nothing there.
            UnavailableError: the service does not answer.
            TarnError: it answers with another error.
        """
        return self._ask("GET", path)

    def post(self, path: str) -> Any:
        """Send a POST without a body. Errors are those of `get`."""
        return self._ask("POST", path)

    def _ask(self, method: str, path: str) -> Any:
        where = urlsplit(self.uri)
        url = f"{self.uri}/{path.lstrip('/')}"
        connection = http.client.HTTPConnection(where.hostname or "", where.port or 80, timeout=TIMEOUT_S)
        try:
            connection.request(
                method, f"{where.path}/{path.lstrip('/')}", headers={"Accept": "application/json"}
            )
            answer = connection.getresponse()
            body = answer.read(BODY_BYTES_MAX)
        except (OSError, http.client.HTTPException) as e:
            raise UnavailableError(
                f"{self.service} does not answer at {url} ({type(e).__name__}); on the host, scripts/tarn "
                "status says whether it runs, and scripts/doctor what to do",
                service=self.service,
            ) from e
        finally:
            connection.close()
        if answer.status == 404:
            raise NotFoundError(f"{self.service} has nothing at {url}: {_message(body)}")
        if answer.status >= 500:
            raise UnavailableError(f"{self.service} answers {answer.status} at {url}: {_message(body)}")
        if answer.status >= 400:
            raise TarnError(f"{self.service} answers {answer.status} at {url}: {_message(body)}")
        return json.loads(body) if body else None


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")

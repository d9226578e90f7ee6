"""Requests to the lake's HTTP services, whose errors say which of them is away."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from tarn.core.errors import NotFoundError, TarnError, UnavailableError

TIMEOUT_S = 10.0
BODY_BYTES_MAX = 16 << 20
AS_THEY_ARE = "%/?&=+:;,@!$'()*~"
"""What a path may have besides letters and digits; all else, as a name with a space has it, is escaped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer over HTTP.

    Attributes:
        status: its status.
        body: its body, parsed from JSON; text if it is none, None if there is none.
        headers: its headers, by lower-case name.
    """

    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def message(self) -> str:
        """What an error says."""
        try:
            return str(self.body["error"]["message"])
        except (KeyError, TypeError):
            return str(self.body)[:200]


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

    def ask(
        self, method: str, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send one request, and return its answer, whatever its status.

        Args:
            method: GET, POST and the like.
            path: below the address.
            body: bytes are sent as they are, all else as JSON; None for nothing.
            headers: more headers.

        Raises:
            UnavailableError: the service does not answer.
        """
        where = urlsplit(self.uri)
        url = f"{self.uri}/{path.lstrip('/')}"
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body, default=str).encode()
        kind = {} if sent is None else {"Content-Type": "application/json"}
        connection = http.client.HTTPConnection(where.hostname or "", where.port or 80, timeout=TIMEOUT_S)
        try:
            connection.request(
                method,
                f"{where.path}/{quote(path.lstrip('/'), safe=AS_THEY_ARE)}",
                body=sent,
                headers={"Accept": "application/json", **kind, **(headers or {})},
            )
            answer = connection.getresponse()
            data = answer.read(BODY_BYTES_MAX)
        except (OSError, http.client.HTTPException) as e:
            raise self._away(url, e) from e
        finally:
            connection.close()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(status=answer.status, body=_parsed(data), headers=found)

    def _ask(self, method: str, path: str) -> Any:
        url = f"{self.uri}/{path.lstrip('/')}"
        answer = self.ask(method, path)
        if answer.status == 404:
            raise NotFoundError(f"{self.service} has nothing at {url}: {answer.message}")
        if answer.status >= 500:
            raise UnavailableError(f"{self.service} answers {answer.status} at {url}: {answer.message}")
        if answer.status >= 400:
            raise TarnError(f"{self.service} answers {answer.status} at {url}: {answer.message}")
        return answer.body

    def _away(self, url: str, error: Exception) -> UnavailableError:
        return UnavailableError(
            f"{self.service} does not answer at {url} ({type(error).__name__}); on the host, scripts/tarn "
            "status says whether it runs, and scripts/doctor what to do",
            service=self.service,
        )


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data) if data else None
    except ValueError:
        return data[:200].decode(errors="replace")

"""HTTP client of one server: each request is sent once; no repeats, redirects, cookies or proxies.

urllib3 alone: what `requests` does around it, none of these clients uses, and every commit would pay for it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError

from tarn.core.errors import InvalidError

CONNECT_TIMEOUT_S = 3.0
CONNECTIONS_MAX = 16
CAUSE_CHARS_MAX = 300
AROUND = re.compile(
    r"^(?:HTTPS?Connection(?:Pool)?\([^)]*\): )?"
    r"(?:Failed to establish a new connection: )?(?:\[Errno -?\d+\] )?"
)


class NotSentError(Exception):
    """Nobody took the connection: nothing was sent. Its text says why, in words."""


class NoAnswerError(Exception):
    """There is no whole answer; the request may have arrived. Its text says why, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer.

    Attributes:
        status: the HTTP status.
        body: the whole body.
        headers: the headers; their names in any case.
    """

    status: int
    body: bytes
    headers: Mapping[str, str]


class HttpClient:
    """Sends requests to one server over connections that are kept. Thread-safe.

    A process that was forked opens connections of its own: on those that it shares with its parent each would
    read the other's answers.

    Args:
        uri: base URL of the server, `http` or `https`.
        read_timeout_s: how long the server may be silent before an answer, or within one, seconds.
        connections_max: connections that are kept; more are opened if more threads send.

    Attributes:
        uri: base URL, without a slash at its end.

    Raises:
        InvalidError: `uri` is no such URL.
    """

    def __init__(self, uri: str, *, read_timeout_s: float, connections_max: int = CONNECTIONS_MAX) -> None:
        self.uri = uri.rstrip("/")
        try:
            parts = urlsplit(self.uri)
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            good = False
        if not good:
            raise InvalidError(f"{uri!r} is no address of a server; give one as in http://catalog:8181")
        self._path = parts.path
        self._timeout = urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=read_timeout_s)
        self._connections_max = connections_max
        self._process = os.getpid()
        self._pool = self._new_pool()

    def send(self, method: str, path: str, *, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        """Send a request, and read the whole answer.

        Args:
            method: the HTTP method.
            path: the path below the base URL, percent-encoded, with its query.
            body: the body; None for none.
            headers: the headers, without those of the body's length.

        Raises:
            NotSentError: nothing was sent.
            NoAnswerError: the request may have arrived.
        """
        if self._process != os.getpid():
            self._pool, self._process = self._new_pool(), os.getpid()
        try:
            answer = self._pool.urlopen(
                method,
                self._path + path,
                body=body,
                headers=headers,
                timeout=self._timeout,
                retries=False,  # nor follows a redirect
            )
        except ConnectTimeoutError as e:  # a refused connection, or a name without an address, is one too
            raise NotSentError(cause(e)) from e
        except HTTPError as e:
            raise NoAnswerError(cause(e)) from e
        return Answer(status=answer.status, body=answer.data, headers=answer.headers)

    def close(self) -> None:
        """Close the connections that are kept; a request after it opens others."""
        old, self._pool = self._pool, self._new_pool()
        old.close()

    def _new_pool(self) -> urllib3.HTTPConnectionPool:
        return urllib3.connection_from_url(self.uri, maxsize=self._connections_max)


def cause(error: BaseException) -> str:
    """What went wrong on the way to a server, in words: urllib3 wraps it several times."""
    found = error
    while inner := _wrapped(found):
        found = inner
    text = AROUND.sub("", " ".join(str(found).split()))
    return (text or type(found).__name__)[:CAUSE_CHARS_MAX]


def _wrapped(error: BaseException) -> BaseException | None:
    """The error that another one has as its reason or as an argument."""
    held = (getattr(error, "reason", None), *reversed(error.args))
    return next((one for one in held if isinstance(one, BaseException)), None)

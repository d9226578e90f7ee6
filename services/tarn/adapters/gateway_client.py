"""HTTP client of the gateway: one request, and what its answer means for whoever sent it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol
from urllib.parse import quote

import orjson

from tarn.adapters.http_client import CONNECTIONS_MAX, HttpClient, NoAnswerError, NotSentError
from tarn.core.errors import (
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    OutcomeUnknownError,
    UnauthenticatedError,
    UnavailableError,
)

READ_TIMEOUT_S = 75.0
"""The gateway answers within 60 s: it reads a body for 30 s at most, and waits 30 s for the commit."""
RETRY_S = 1.0
BODY_BYTES_MAX = 4 << 20
"""Size of the largest body that the gateway takes."""


Durability = Literal["lake", "log"]


class Token(Protocol):
    """Gives tokens of a principal."""

    def __call__(self, *, fresh: bool = False) -> str:
        """A token; with `fresh` a new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What became of the rows of a request.

    Attributes:
        accepted: number of rows in the table; None if an earlier request brought them in, and it is not known
            any more which ones.
        rejected: index in the request to the reason why a row is not in the table; empty if it is not known.
        snapshot_id: a snapshot of the table that has the others; None if it has none, or with `log`.
        repeated: whether an earlier request brought them in.
        topic: with `log`, the topic that has them.
        offsets: with `log`, partition and offset of each, in their order; empty if that of a repeat is not
            remembered.
    """

    accepted: int | None
    rejected: dict[int, str] = field(default_factory=dict)
    snapshot_id: int | None = None
    repeated: bool = False
    topic: str | None = None
    offsets: tuple[tuple[int, int], ...] = ()


class GatewayClient:
    """Sends rows to a gateway. Thread-safe.

    Args:
        uri: base URL of the gateway.
        token: gives tokens of the principal.
        connections_max: connections that are kept.
        durability: `lake`, or `log`: an answer comes once Kafka has the rows.

    Raises:
        InvalidError: `uri` is no address of a server.
    """

    def __init__(
        self,
        uri: str,
        *,
        token: Token,
        connections_max: int = CONNECTIONS_MAX,
        durability: Durability = "lake",
    ) -> None:
        self._durability = durability
        self._token = token
        self._http = HttpClient(uri, read_timeout_s=READ_TIMEOUT_S, connections_max=connections_max)

    def close(self) -> None:
        """Close idle connections."""
        self._http.close()

    def post(self, table: str, body: bytes, *, kind: str, key: str) -> Receipt:
        """Send rows once, or twice if the token has ended.

        Args:
            table: qualified name of the table.
            body: the rows.
            kind: their media type.
            key: the same for all repeats of this body.

        Raises:
            UnavailableError: nothing was written; `fields["retry_after_s"]` says when to repeat it.
            OutcomeUnknownError: the rows may be there or still come: repeat it.
            UnauthenticatedError, ForbiddenError: the principal may not write the table.
            NotFoundError: there is no such table.
            ConflictError: the table takes no rows.
            InvalidError: the request is not valid; the message says what to correct.
        """
        status, answer, retry_s = self._send(table, body, kind, key, fresh=False)
        if status == 401:
            status, answer, retry_s = self._send(table, body, kind, key, fresh=True)
        return _meaning(status, answer, retry_s, table)

    def _send(self, table: str, body: bytes, kind: str, key: str, *, fresh: bool) -> tuple[int, bytes, float]:
        name = ".".join(quote(level, safe="") for level in table.split("."))
        path = f"/v1/tables/{name}/rows?durability={self._durability}"
        token = self._token(fresh=fresh)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind, "Idempotency-Key": key}
        try:
            answer = self._http.send("POST", path, body=body, headers=headers)
        except NotSentError as e:
            raise _away(self._http.uri, e) from e
        except NoAnswerError as e:
            # It may have arrived before the connection broke.
            raise OutcomeUnknownError(
                f"the gateway at {self._http.uri} did not answer ({e}); the rows may be in "
                f"{table}: repeat them with the key {key}",
                key=key,
            ) from e
        try:
            retry_s = float(answer.headers.get("Retry-After", RETRY_S))
        except ValueError:
            retry_s = RETRY_S
        return answer.status, answer.body, retry_s


def _away(uri: str, error: Exception) -> UnavailableError:
    return UnavailableError(
        f"the gateway at {uri} does not answer ({error}); nothing was written",
        retry_after_s=RETRY_S,
    )


def _meaning(status: int, answer: bytes, retry_s: float, table: str) -> Receipt:
    try:
        value = orjson.loads(answer)
        if status in (200, 422) and "accepted" in value:
            return Receipt(
                accepted=None if value["accepted"] is None else int(value["accepted"]),
                rejected={int(one["row"]): str(one["reason"]) for one in value["rejected"] or ()},
                snapshot_id=value.get("snapshot-id"),
                repeated=bool(value["repeated"]),
                topic=value.get("topic"),
                offsets=tuple(
                    (int(run["partition"]), offset)
                    for run in value.get("offsets", ())
                    for offset in range(int(run["first"]), int(run["last"]) + 1)
                ),
            )
        message = str(value["error"]["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        message = answer[:200].decode(errors="replace")
        if status < 400:
            raise OutcomeUnknownError(
                f"what answers for the gateway sends {message!r}; check its address", status=status
            ) from None
    said = f"rows for {table}: {message}"
    if status == 401:
        raise UnauthenticatedError(said)
    if status == 403:
        raise ForbiddenError(said)
    if status == 404:
        raise NotFoundError(said)
    if status == 409:
        raise ConflictError(said)
    if status in (408, 429, 503):
        raise UnavailableError(said, status=status, retry_after_s=retry_s)
    if status >= 500 and status != 501:
        raise OutcomeUnknownError(said, status=status)
    raise InvalidError(said, status=status)

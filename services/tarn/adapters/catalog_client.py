"""Client of the Iceberg REST catalog for committers: load, create, and commit with three outcomes.

Transport retries are off: only the caller, who holds the commit id, decides whether to resend a write
(invariant I3). Every transport error is mapped to an error of `tarn.core.errors` here.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

import orjson

from tarn.adapters.http_client import Answer, HttpClient, NoAnswerError, NotSentError
from tarn.core.errors import (
    AlreadyExistsError,
    ForbiddenError,
    InvalidError,
    NoSuchTableError,
    NotFoundError,
    OutcomeUnknownError,
    UnauthenticatedError,
    UnavailableError,
)
from tarn.core.outcome import Conflict, Unknown
from tarn.core.table_catalog import CommitDone, CommitOutcome, TableName
from tarn.core.table_state import CommitRequest, Json, TableState

READ_TIMEOUT_S = 20.0
TOKEN_MARGIN_S = 30.0
ANSWER_CHARS_MAX = 300
PAGES_MAX = 1_000
FORM_HEADERS = {"Content-Type": "application/x-www-form-urlencoded"}
LEVEL_SEPARATOR = "\x1f"
TURN = "Tarn-Turn"
"""Header of a commit that asks for the next turn if it is overtaken, and of the refusal that gives it."""
ANY_TURN = "next"
OVERTAKEN_MAX = 2
"""A commit that others have overtaken so many times in a row asks for a turn (ADR 56)."""


class RestCatalog:
    """A `TableCatalog` over HTTP. Thread-safe, also in a process that was forked while a thread used it.

    Args:
        uri: base URL of the catalog.
        warehouse: name of the warehouse.
        credential: returns `client_id:client_secret`; called for each new token.
        remedy: what to do if the catalog refuses the credential, for the message.
        scope: OAuth2 scope.
        read_timeout_s: read timeout of a request, in seconds.
        clock: monotonic time in seconds.
        wall: time since the epoch in seconds, which goes on while the machine sleeps.

    Raises:
        InvalidError: `uri` is no address of a server.
    """

    def __init__(
        self,
        uri: str,
        *,
        warehouse: str,
        credential: Callable[[], str],
        remedy: str = "check the secret file catalog_credential",
        scope: str = "PRINCIPAL_ROLE:ALL",
        read_timeout_s: float = READ_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._warehouse = warehouse
        self._credential = credential
        self._remedy = remedy
        self._scope = scope
        self._clock, self._wall = clock, wall
        self._http = HttpClient(uri, read_timeout_s=read_timeout_s)
        self._uri = self._http.uri
        self._lock, self._process = threading.Lock(), os.getpid()
        self._token: str | None = None
        self._token_until_s = self._token_until_wall_s = 0.0
        self._prefix: str | None = None

    def load(self, table: TableName) -> TableState:
        """See `TableCatalog.load`."""
        status, answer = self._ask("GET", self._table_path(table), what=f"load {table}")
        if status == 404 and b'"NotFoundException"' in answer:
            # The table exists: who takes it for missing would create it, or begin its stream again.
            raise UnavailableError(f"could not load {table}: {_reason(answer)}", table=str(table))
        if status == 404:
            raise NoSuchTableError(f"table {table} does not exist: {_reason(answer)}", table=str(table))
        self._require(status, answer, f"load {table}")
        return _state(answer)

    def create_namespace(self, namespace: tuple[str, ...]) -> None:
        """See `TableCatalog.create_namespace`.

        A parent is asked for only if it is missing: that takes a right on what contains it.
        """
        what = f"create namespace {'.'.join(namespace)}"
        body = {"namespace": list(namespace), "properties": {}}
        status, answer = self._ask("POST", self._base() + "/namespaces", body=body, what=what)
        if status == 404 and len(namespace) > 1:
            self.create_namespace(namespace[:-1])
            status, answer = self._ask("POST", self._base() + "/namespaces", body=body, what=what)
        if status != 409:
            self._require(status, answer, what)

    def namespaces(self, parent: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
        """Child namespaces of a namespace, or the top-level ones.

        Raises:
            NotFoundError: the parent does not exist.
            UnavailableError: the catalog does not respond.
        """
        # Encoded twice, as Iceberg's Java client does: after one decoding a `+` would be taken for a space.
        query = f"parent={quote(_levels(parent), safe='')}&" if parent else ""
        what = f"list namespaces of {'.'.join(parent) or 'the catalog'}"
        return [tuple(levels) for levels in self._pages("/namespaces", query, "namespaces", what)]

    def tables(self, namespace: tuple[str, ...]) -> list[TableName]:
        """Tables of a namespace.

        Raises:
            NotFoundError: the namespace does not exist.
            UnavailableError: the catalog does not respond.
        """
        path = f"/namespaces/{_levels(namespace)}/tables"
        found = self._pages(path, "", "identifiers", f"list tables of {'.'.join(namespace)}")
        return [TableName(tuple(each["namespace"]), each["name"]) for each in found]

    def create(self, table: TableName, request: Json) -> TableState:
        """See `TableCatalog.create`."""
        what = f"create table {table}"
        path = f"{self._base()}/namespaces/{_levels(table.namespace)}/tables"
        status, answer = self._ask("POST", path, body={"name": table.name, **request}, what=what)
        if status == 409:
            raise AlreadyExistsError(f"table {table} exists", table=str(table))
        self._require(status, answer, what)
        return _state(answer)

    def commit(self, table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        """See `TableCatalog.commit`."""
        what = f"commit to {table}"
        path = self._table_path(table)
        headers = {"Idempotency-Key": key}
        if request.turn is not None:
            headers[TURN] = request.turn
        elif request.overtaken >= OVERTAKEN_MAX:
            headers[TURN] = ANY_TURN
        try:
            found = self._answer("POST", path, body=request.body(), headers=headers, what=what)
        except OutcomeUnknownError as e:
            return Unknown(reason=e.message)
        status, answer = found.status, found.body
        if status == 200:
            try:
                return CommitDone(state=_state(answer))
            except UnavailableError as e:
                return Unknown(reason=e.message)
        if status == 409:
            return Conflict(reason=_reason(answer), turn=found.headers.get(TURN) or None)
        if status == 404:
            raise NoSuchTableError(f"table {table} does not exist: {_reason(answer)}", table=str(table))
        if status >= 500 or status in (408, 425, 429):
            return Unknown(reason=f"{what}: status {status}: {_reason(answer)}")
        self._require(status, answer, what)
        return Unknown(reason=f"{what}: unexpected status {status}")

    def call(self, method: str, path: str, body: Json | None = None, *, what: str) -> Any:
        """Send a request to a route of Tarn's own; return the parsed answer, None for an empty one.

        Args:
            method: the HTTP method.
            path: the path below the catalog's URI, percent-encoded.
            body: the JSON body.
            what: what is done, such as "grant on table a.b", for messages.

        Raises:
            AlreadyExistsError, NotFoundError, InvalidError, AccessError: as the catalog answers.
            UnavailableError: no usable response.
            OutcomeUnknownError: a change received no response, or the catalog does not know its outcome.
        """
        status, answer = self._ask(method, path, body=body, what=what)
        if status == 409:
            raise AlreadyExistsError(f"could not {what}: {_reason(answer)}")
        if status == 500 and b"CommitStateUnknownException" in answer:
            raise OutcomeUnknownError(f"could not {what}: {_reason(answer)}")
        self._require(status, answer, what)
        try:
            return orjson.loads(answer) if answer else None
        except orjson.JSONDecodeError as e:
            raise UnavailableError(f"could not {what}: the answer cannot be read: {_first_line(e)}") from e

    def _pages(self, path: str, query: str, key: str, what: str) -> list[Any]:
        """All entries of a paginated listing."""
        found: list[Any] = []
        token = ""
        for _ in range(PAGES_MAX):
            at = f"{self._base()}{path}?{query}pageToken={quote(token, safe='')}"
            status, answer = self._ask("GET", at, what=what)
            self._require(status, answer, what)
            try:
                page = orjson.loads(answer)
                found += page[key]
                token = page.get("next-page-token") or ""
            except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as e:
                raise UnavailableError(
                    f"could not {what}: the answer cannot be read: {_first_line(e)}"
                ) from e
            if not token:
                return found
        raise UnavailableError(f"could not {what}: more than {PAGES_MAX} pages")

    def _table_path(self, table: TableName) -> str:
        name = quote(table.name, safe="")
        return f"{self._base()}/namespaces/{_levels(table.namespace)}/tables/{name}"

    def _base(self) -> str:
        if self._prefix is None:
            status, answer = self._ask(
                "GET",
                f"/v1/config?warehouse={quote(self._warehouse, safe='')}",
                what="read the catalog's config",
            )
            self._require(status, answer, "read the catalog's config")
            try:
                config = orjson.loads(answer)
                merged = {**(config.get("defaults") or {}), **(config.get("overrides") or {})}
            except (orjson.JSONDecodeError, AttributeError, TypeError) as e:
                raise UnavailableError(f"the catalog's config at {self._uri} cannot be read: {e}") from e
            prefix = str(merged.get("prefix") or "").strip("/")
            self._prefix = f"/v1/{quote(prefix, safe='/')}" if prefix else "/v1"
        return self._prefix

    def _ask(
        self,
        method: str,
        path: str,
        *,
        what: str,
        body: Json | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """HTTP status and body of the answer to a request; see `_answer`."""
        answer = self._answer(method, path, what=what, body=body, headers=headers)
        return answer.status, answer.body

    def _answer(
        self,
        method: str,
        path: str,
        *,
        what: str,
        body: Json | None,
        headers: dict[str, str] | None,
    ) -> Answer:
        """Send a request; a rejected token is renewed once.

        Raises:
            UnavailableError: nothing was sent, or the request cannot have changed anything.
            OutcomeUnknownError: a write received no response.
        """
        data = orjson.dumps(body) if body is not None else None
        answer = self._send(method, path, data, headers, what, fresh_token=False)
        if answer.status in (401, 419):
            answer = self._send(method, path, data, headers, what, fresh_token=True)
        return answer

    def _send(
        self,
        method: str,
        path: str,
        data: bytes | None,
        headers: dict[str, str] | None,
        what: str,
        *,
        fresh_token: bool,
    ) -> Answer:
        token = self._bearer(fresh=fresh_token)
        sent = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", **(headers or {})}
        try:
            return self._http.send(method, path, body=data, headers=sent)
        except NotSentError as e:
            raise self._away(what, e) from e
        except NoAnswerError as e:
            if method == "GET":
                raise self._away(what, e) from e
            raise OutcomeUnknownError(f"{what}: no answer from {self._uri}: {e}") from e

    def token(self, *, fresh: bool = False) -> str:
        """A token of this client's principal, for another service that asks the catalog about it.

        Args:
            fresh: get a new one, as the last one was refused.

        Raises:
            UnauthenticatedError: the catalog refuses the credential.
            UnavailableError: the catalog does not respond.
        """
        return self._bearer(fresh=fresh)

    def _bearer(self, *, fresh: bool) -> str:
        if self._process != os.getpid():  # whoever holds the parent's lock is not in this process
            self._lock, self._process = threading.Lock(), os.getpid()
        with self._lock:
            over = self._clock() >= self._token_until_s or self._wall() >= self._token_until_wall_s
            if self._token is None or fresh or over:
                self._renew()
            if self._token is None:
                raise AssertionError("renewed without a token")
            return self._token

    def _renew(self) -> None:
        client_id, _, client_secret = self._credential().partition(":")
        form = {
            "grant_type": "client_credentials",
            "client_id": client_id,
            "client_secret": client_secret,
            "scope": self._scope,
        }
        what = "get a token"
        try:
            found = self._http.send(
                "POST", "/v1/oauth/tokens", body=urlencode(form).encode(), headers=FORM_HEADERS
            )
        except (NotSentError, NoAnswerError) as e:
            raise self._away(what, e) from e
        status, answer = found.status, found.body
        if status in (400, 401, 403):
            raise UnauthenticatedError(
                f"the catalog at {self._uri} refuses client {client_id!r}: {_reason(answer)}; {self._remedy}",
                client=client_id,
            )
        if status != 200:
            raise UnavailableError(f"could not {what} from {self._uri}: status {status}: {_reason(answer)}")
        try:
            value = orjson.loads(answer)
            self._token = str(value["access_token"])
            lifetime_s = float(value.get("expires_in") or 3_600)
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as e:
            raise UnavailableError(f"could not {what} from {self._uri}: unreadable answer") from e
        good_s = max(lifetime_s - TOKEN_MARGIN_S, lifetime_s / 2)
        self._token_until_s = self._clock() + good_s
        self._token_until_wall_s = self._wall() + good_s

    def _away(self, what: str, error: Exception) -> UnavailableError:
        return UnavailableError(
            f"could not {what}: the catalog at {self._uri} does not answer: {error}; wait",
            uri=self._uri,
        )

    def _require(self, status: int, answer: bytes, what: str) -> None:
        """Require a 2xx status; otherwise raise the error for a request that is safe to retry."""
        if 200 <= status < 300:
            return
        reason = _reason(answer)
        if status in (401, 419):
            raise UnauthenticatedError(
                f"could not {what}: the catalog rejects this client's tokens: {reason}"
            )
        if status == 403:
            raise ForbiddenError(f"may not {what}: {reason}; grant the right to this principal")
        if status == 404:
            raise NotFoundError(f"could not {what}: {reason}")
        if status in (408, 425, 429) or status >= 500:
            raise UnavailableError(f"could not {what}: status {status} from {self._uri}: {reason}; wait")
        raise InvalidError(f"could not {what}: status {status} from {self._uri}: {reason}", status=status)


def _levels(namespace: tuple[str, ...]) -> str:
    return quote(LEVEL_SEPARATOR.join(namespace), safe="")


def _state(answer: bytes) -> TableState:
    try:
        value = orjson.loads(answer)
        return TableState(value["metadata"], location=value.get("metadata-location"))
    except (orjson.JSONDecodeError, KeyError, TypeError) as e:
        raise UnavailableError(f"the catalog's answer cannot be read: {_first_line(e)}") from e


def _reason(answer: bytes) -> str:
    """The message of an error response."""
    try:
        error = orjson.loads(answer)["error"]
        text = error if isinstance(error, str) else str(error.get("message") or error.get("type") or "")
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        text = answer.decode("utf-8", "replace")
    return (" ".join(text.split()) or "no message")[:ANSWER_CHARS_MAX]


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:ANSWER_CHARS_MAX]

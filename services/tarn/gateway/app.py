"""The ASGI application: who may write is decided from a request's head, before any of its body is read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

import anyio.to_thread
import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from tarn.core.errors import AccessError, NotFoundError, OutcomeUnknownError, TarnError, UnavailableError
from tarn.core.hosts import MISDIRECTED, Hosts
from tarn.core.http_answers import Answered
from tarn.core.http_heads import is_plain, parts_of
from tarn.core.pressure import Pressure
from tarn.core.table_catalog import TableName
from tarn.core.write_keys import KeyedWrite
from tarn.gateway.access import Gate
from tarn.gateway.answers import (
    Answer,
    MethodError,
    NotServedError,
    error_answer,
    json_answer,
    receipt_answer,
    refusal,
)
from tarn.gateway.bell import Bell
from tarn.gateway.bodies import (
    BodyLimits,
    TooLargeError,
    arrow_rows,
    is_quick,
    media_type,
    reader_of,
)
from tarn.gateway.logs import Logs
from tarn.gateway.memory import Held, Memory
from tarn.gateway.openapi import DESCRIPTION
from tarn.gateway.requests import ROWS_PATH, Repeat, durability_of, repeat_of, table_of, token_of
from tarn.gateway.tables import Tables
from tarn.gateway.writes import BusyError, Receipt, Write
from tarn.ingest.context import StoppedError
from tarn.ingest.deep_look import Looks, OneDeepLook

log = structlog.get_logger()

STOPPED = "the gateway stops; the rows may be there or still come: repeat the write with the same headers"


class Inbox(Protocol):
    """Takes the writes to one table, with one promise."""

    @property
    def name(self) -> TableName:
        """Name of the table."""

    def submit(self, write: Write) -> Future[Receipt]:
        """Hand in a write."""

    def withdraw(self, answer: Future[Receipt]) -> bool:
        """Take back a write that still waits for its turn; False if it does not."""

    def leave(self, answer: Future[Receipt]) -> bool:
        """Wait no longer for a repeat of another write; False if it is no such repeat."""

    def pressure(self) -> Pressure:
        """How much writers are held back now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppLimits:
    """Bounds of a request.

    Attributes:
        body: size, rows and depth of its body.
        body_s_max: how long its body may take, in seconds.
        answer_s_max: how long it waits for its rows to be in the table, in seconds.
    """

    body: BodyLimits = field(default_factory=BodyLimits)
    body_s_max: float = 30.0
    answer_s_max: float = 30.0


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: its head, and what reads its body.

    Attributes:
        method: HTTP method.
        path: path, still percent-encoded.
        query: what follows the question mark.
        headers: headers by lower-case name; of several of one name the first.
        state: what the connection hands over.
        receive: the next ASGI message.
        kept: what its answer holds.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    state: Mapping[str, Any]
    receive: Receive
    kept: list[Held] = field(default_factory=list)

    @staticmethod
    def of(scope: Scope, receive: Receive) -> Asked:
        """The request that the server has."""
        fields = reversed(scope["headers"])
        return Asked(
            scope["method"],
            scope["raw_path"].decode("ascii", errors="replace"),
            scope["query_string"].decode("latin-1"),
            {name.decode("latin-1"): value.decode("latin-1") for name, value in fields},
            scope.get("state", {}),
            receive,
        )


class App:
    """The gateway's application.

    Args:
        gate: knows who may write.
        tables: the tables.
        logs: the logs of tables; None: this gateway has no Kafka.
        memory: what all requests together may hold.
        hosts: accepted host names.
        limits: bounds of a request.
        health: what is wrong with the gateway; None: nothing is known of it.
        welcome: key of the request's state under which the connection says that its client is known.
        read: key of the request's state with what calls back once the client has read the answer.
    """

    def __init__(
        self,
        gate: Gate,
        tables: Tables,
        memory: Memory,
        *,
        logs: Logs | None = None,
        hosts: Hosts,
        limits: AppLimits | None = None,
        health: Looks | None = None,
        welcome: str = "",
        read: str = "",
    ) -> None:
        self._gate = gate
        self._tables = tables
        self._logs = logs
        self._memory = memory
        self._hosts = hosts
        self._limits = limits or AppLimits()
        self._health = health
        self._deep = OneDeepLook(health) if health is not None else None
        self._welcome = welcome
        self._read = read
        self._rings: Bell | None = None
        self._debug = log.bind().debug  # the module's logger is made again for each call

    def asgi(self) -> ASGIApp:
        """The application as uvicorn runs it."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            started = time.monotonic()
            request = Asked.of(scope, receive)
            try:
                answer = await self._respond(request)
            except ClientDisconnect:
                answer = Answer(status=400)
            except asyncio.CancelledError:
                # The server ends and waits no longer; uvicorn would answer 500.
                answer = error_answer(OutcomeUnknownError(STOPPED))
            except Exception as e:  # noqa: BLE001 - answered, and logged there
                answer = _fault(e, scope["method"], scope["path"])
            self._log(scope["method"], scope["path"], answer, started)
            fields = [(name.encode(), value.encode("latin-1")) for name, value in answer.headers.items()]
            fields.append((b"content-length", b"%d" % len(answer.body)))
            try:
                await send({"type": "http.response.start", "status": answer.status, "headers": fields})
                await send({"type": "http.response.body", "body": answer.body})
            finally:
                for kept in request.kept:
                    request.state.get(self._read, _at_once)(kept.end)

        return app

    def quick(self, head: bytes, body: bytes, answered: Answered) -> Callable[[], None] | None:
        """Take a write that has come whole, without a task; see `Quick`.

        It is taken if it is as nearly all are: of a caller that is known, small, and with room for it. Any
        other, and one with a fault, is left to `asgi` before anything is done, and is answered there.
        """
        share: Held | None = None
        started = time.monotonic()
        try:
            method, target, headers = parts_of(head)
            path, _, query = target.partition("?")
            rows = ROWS_PATH.fullmatch(path)
            if rows is None or method != "POST" or not is_plain(headers):
                return None
            if self._hosts.refusal(method, headers, changes=False) is not None:
                return None
            table = table_of(rows.group(1))
            client_id = self._gate.known(token_of(headers.get("authorization")), table)
            if client_id is None or len(body) > self._limits.body.bytes_max:
                return None
            opened, repeat, read, media = self._wanted(headers, query)
            if read is arrow_rows or not is_quick(body):
                return None
            inbox = opened(table)
            if inbox.pressure().share:
                return None
            share = self._memory.grab(2 * len(body), who=client_id)
            if share is None:
                return None
            write = _write_of(read(body, self._limits.body), body, repeat, client_id, media)
            share.resize(write.bytes)
            answer = inbox.submit(write)
        except Exception:  # noqa: BLE001 - it is tried again as any request, and what is wrong is said there
            if share is not None:
                share.end()
            return None
        held = share

        def ended(came: bool) -> None:
            try:
                try:
                    said = receipt_answer(self._outcome(inbox, write, held, answer, came=came), pressure="")
                except Exception as e:  # noqa: BLE001 - answered, and logged there
                    said = _fault(e, method, path)
                kept = self._memory.keep(len(said.body), who=client_id)
            finally:
                held.end()
            self._log(method, path, said, started)
            answered(said, kept.end)

        self._bell().call(answer, self._limits.answer_s_max, ended)
        return lambda: answered(error_answer(OutcomeUnknownError(STOPPED)))

    def _log(self, method: str, path: str, answer: Answer, started: float) -> None:
        self._debug(
            "request",
            method=method,
            path=path,
            status=answer.status,
            ms=round((time.monotonic() - started) * 1_000, 2),
        )

    async def _respond(self, request: Asked) -> Answer:
        path = request.path
        writes = path == "/health" and request.query == "deep"
        refused = self._hosts.refusal(request.method, request.headers, changes=writes)
        if refused is not None:
            kind = "Misdirected" if refused.status == MISDIRECTED else "Forbidden"
            return refusal(refused.status, kind, refused.message)
        rows = ROWS_PATH.fullmatch(path)
        if rows is not None:
            _require(request.method, "POST")
            return await self._write(request, rows.group(1))
        if path == "/health":
            _require(request.method, "GET")
            return await self._healthy(request.query)
        if path == "/openapi.json":
            _require(request.method, "GET")
            return json_answer(DESCRIPTION)
        raise NotFoundError(f"there is nothing at {path[:200]!r}; rows go to /v1/tables/NAMESPACE.TABLE/rows")

    async def _healthy(self, query: str) -> Answer:
        """Whether the gateway serves; with `ready` and `deep`, whether it can work (see the probe)."""
        found: list[str] = []
        if self._health is not None and query == "ready":
            found = self._health.faults()
        elif self._deep is not None and query == "deep":
            found = await self._deep.faults()
        if found:
            return json_answer({"status": "unusable", "faults": found}, status=503)
        return json_answer({"status": "ok"})

    async def _write(self, request: Asked, segment: str) -> Answer:
        token = token_of(request.headers.get("authorization"))
        table = table_of(segment)
        client_id = await self._gate.writer(token, table)
        request.state.get(self._welcome, lambda: None)()
        opened, repeat, read, media = self._wanted(request.headers, request.query)
        size = _declared(request, self._limits.body.bytes_max)
        inbox = opened(table)
        pressure = inbox.pressure()
        if pressure.share:
            await _held_back(pressure, str(table))
        # It is there twice while its rows are separated.
        async with self._memory.hold(2 * size, who=client_id) as share:
            async with share.arriving(self._limits.body_s_max):
                body = await _body(request, self._limits.body.bytes_max, share)
            share.resize(2 * len(body))  # a body of unknown length held the most that it could have
            if read is not arrow_rows and is_quick(body):
                values = read(body, self._limits.body)
            else:
                values = await anyio.to_thread.run_sync(read, body, self._limits.body)
            write = _write_of(values, body, repeat, client_id, media)
            share.resize(write.bytes)  # rows of an Arrow stream have its schema each
            del body, values
            receipt = await self._receipt(inbox, write, share)
            answer = receipt_answer(receipt, pressure=pressure.reason)
            request.kept.append(self._memory.keep(len(answer.body), who=client_id))
        return answer

    def _wanted(
        self, headers: Mapping[str, str], query: str
    ) -> tuple[Callable[[TableName], Inbox], Repeat, Callable[[bytes, BodyLimits], list[bytes]], str]:
        """What a write asks for: what opens the inbox, how repeats are known, and the body's reader and type.

        Raises:
            InvalidError: a header or the query is not of its form.
        """
        opened = self._inboxes_of(durability_of(query))
        repeat = repeat_of(headers)
        kind = headers.get("content-type")
        return opened, repeat, reader_of(kind, headers.get("content-encoding")), media_type(kind)

    def _bell(self) -> Bell:
        """The bell of the loop that runs."""
        loop = asyncio.get_running_loop()
        if self._rings is None or self._rings.loop is not loop:
            self._rings = Bell(loop)
        return self._rings

    def _inboxes_of(self, durability: str) -> Callable[[TableName], Inbox]:
        """What opens the inbox of a table; one of the other durability is not opened with it.

        Raises:
            NotServedError: this gateway has none.
        """
        if durability != "log":
            return self._tables.inbox
        if self._logs is None:
            raise NotServedError("this gateway has no Kafka (TARN_KAFKA_BOOTSTRAP); send durability=lake")
        return self._logs.inbox

    async def _receipt(self, inbox: Inbox, write: Write, share: Held) -> Receipt:
        """Hand a write in and wait until its rows are in the table.

        Raises:
            UnavailableError: they are not, and will not be.
            OutcomeUnknownError: they may be, or may still come.
        """
        answer = inbox.submit(write)
        came = await self._bell().wait(answer, self._limits.answer_s_max)
        return self._outcome(inbox, write, share, answer, came=came)

    def _outcome(
        self, inbox: Inbox, write: Write, share: Held, answer: Future[Receipt], *, came: bool
    ) -> Receipt:
        """What became of a write, now that its answer has come, or is late.

        Raises:
            UnavailableError, OutcomeUnknownError: as of `_receipt`.
        """
        arrived = came or answer.done()
        if not arrived and inbox.withdraw(answer):
            raise UnavailableError(
                f"table {inbox.name} did not take the write within {self._limits.answer_s_max:g} s; nothing "
                "of it was written, send it again"
            )
        if not arrived:
            if not inbox.leave(answer):
                share.stays_until(answer)  # the inbox has its rows until they are committed
            raise OutcomeUnknownError(
                f"table {inbox.name} did not confirm the write within {self._limits.answer_s_max:g} s; it "
                "may be there or still come: "
                + (
                    "repeat it with the same headers"
                    if write.producer is not None or write.keyed is not None
                    else "look before you send it again, and number your writes"
                )
            )
        try:
            return answer.result()
        except AccessError as e:
            # Of the gateway's own principal, not the caller's.
            raise UnavailableError(f"the gateway may not write table {inbox.name}: {e.message}") from e
        except StoppedError as e:
            raise OutcomeUnknownError(STOPPED) from e


def _fault(error: Exception, method: str, path: str) -> Answer:
    """The answer to a request that failed; what is nobody's mistake but ours is logged."""
    if not isinstance(error, TarnError):
        log.error("request broke", method=method, path=path, exc_info=error)
        return refusal(500, "Internal", f"internal error: {type(error).__name__}; see the gateway's log")
    answer = error_answer(error)
    if answer.status >= 500:
        log.warning("request failed", path=path, status=answer.status, why=error.message)
    return answer


def _at_once(then: Callable[[], None]) -> None:
    """Call back: the connection does not say what its client has read."""
    then()


def _require(method: str, wanted: str) -> None:
    if method != wanted:
        raise MethodError(f"{method[:20]!r} is not taken here, {wanted} is", allow=wanted)


async def _held_back(pressure: Pressure, table: str) -> None:
    """Delay a writer, or refuse it.

    Raises:
        BusyError: it has to come again.
    """
    if pressure.refused and pressure.retry_s <= 1:
        raise BusyError(f"table {table}: {pressure.reason}", retry_after_s=pressure.retry_s)
    # What a table's health refuses is left to the inbox, which looks again now and then.
    await asyncio.sleep(pressure.delay_s)


def _write_of(values: list[bytes], body: bytes, repeat: Repeat, client_id: str, media: str) -> Write:
    """The write of a principal: its producers and keys are its own."""
    return Write(
        values=values,
        at_ms=time.time_ns() // 1_000_000,
        producer=None if repeat.producer is None else f"{client_id}/{repeat.producer}",
        sequence=repeat.sequence,
        keyed=None if repeat.key is None else KeyedWrite.of(client_id, repeat.key, body, media=media),
    )


def _declared(request: Asked, bytes_max: int) -> int:
    """The body's declared length; `bytes_max` if it is chunked, 0 if there is none.

    Raises:
        TooLargeError: it is over the limit.
    """
    declared = request.headers.get("content-length")
    if declared is None:
        return bytes_max if "transfer-encoding" in request.headers else 0
    # The head was checked: it is a number (`tarn.core.http_heads`).
    if int(declared) > bytes_max:
        raise TooLargeError(
            f"the body has {declared[:20]} bytes, at most {bytes_max} are allowed; send several bodies"
        )
    return int(declared)


async def _body(request: Asked, bytes_max: int, share: Held) -> bytes:
    """Read the whole body.

    Raises:
        TooLargeError: it has more than `bytes_max` bytes.
    """
    chunks: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        more = message.get("more_body", False)
        size += len(chunk)
        if size > bytes_max:
            raise TooLargeError(
                f"the body has more than {bytes_max} bytes; nothing of it was written, send several"
            )
        share.came(len(chunk))
        chunks.append(chunk)
    return b"".join(chunks)

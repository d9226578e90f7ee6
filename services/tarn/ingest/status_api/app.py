"""What ingest serves: the page at /, health, metrics, /status, a wake-up call, and the API below /v1."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from hmac import compare_digest
from typing import Any

import anyio
import anyio.to_thread
import orjson
import structlog
from pydantic import BaseModel
from starlette.types import ASGIApp, Receive, Scope, Send

from tarn.core.errors import (
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    TarnError,
    UnavailableError,
)
from tarn.core.hosts import Hosts
from tarn.core.http_answers import Answer, json_answer, refusal
from tarn.ingest.deep_look import OneDeepLook
from tarn.ingest.health import faults, hanging
from tarn.ingest.metrics import to_metrics
from tarn.ingest.status_api.assets import Assets
from tarn.ingest.status_api.openapi import DESCRIPTION_BYTES, ERRORS, FAULT_HEADER, OK, ONLY_CHANGES
from tarn.ingest.status_api.routes import query_of, route_of
from tarn.ingest.status_api.shapes import Query
from tarn.ingest.status_api.views import Engine

log = structlog.get_logger()

API = "/v1"
STATUSES = ((NotFoundError, 404), (ForbiddenError, 403), (ConflictError, 409), (InvalidError, 400))
"""What is wrong with a request; whatever else goes wrong, others do not answer as they should."""
SHOWN = ("field", "value", "fix")
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
LOOKS_AT_ONCE = 2
"""Requests that may wait for the catalog and the store at one time, each in a thread."""
LOOKS_WAITING_MAX = 16
"""Requests that may wait, those included; more are refused."""


class _Deep:
    """The deep check of a service, as `OneDeepLook` asks for it."""

    def __init__(self, look: Callable[[], list[str]]) -> None:
        self._look = look

    def faults(self, *, deep: bool = False) -> list[str]:
        """See `Looks.faults`."""
        return self._look()


class StatusApp:
    """Answers requests from what is in memory; only deep health checks and looks into tables wait.

    Args:
        engine: what is shown.
        deep: checks of the deep health check beyond the registry; returns their faults. Runs in a thread.
        hosts: accepted values of the Host header.
        wake: has the controller look now; called by `POST /wake`.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        deep: Callable[[], list[str]],
        hosts: Hosts,
        wake: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._deep = OneDeepLook(_Deep(deep))
        self._hosts = hosts
        self._wake = wake
        self._assets = Assets(engine.stream_url)
        self._limit: anyio.CapacityLimiter | None = None
        self._looks = 0

    def asgi(self) -> ASGIApp:
        """The application as uvicorn runs it."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            method, path = scope["method"], scope["raw_path"].decode("ascii", errors="replace")
            query = scope["query_string"].decode("latin-1")
            headers = {
                name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])
            }
            try:
                answer = await self._respond(method, path, query, headers)
            except Exception as e:
                log.exception("request broke", method=method, path=path)
                message = f"internal error: {type(e).__name__}; see ingest's log"
                answer = self._refused(path, 500, "Internal", message)
            shown = {**HEADERS, **answer.headers}
            fields = [(name.encode(), value.encode("latin-1")) for name, value in shown.items()]
            if answer.status != 304:
                fields.append((b"content-length", b"%d" % len(answer.body)))
            await send({"type": "http.response.start", "status": answer.status, "headers": fields})
            await send({"type": "http.response.body", "body": answer.body})

        return app

    async def _respond(self, method: str, path: str, query: str, headers: Mapping[str, str]) -> Answer:
        writes = path == "/health" and query == "deep"
        refused = self._hosts.refusal(method, headers, changes=writes)
        if refused is not None:
            kind = "Misdirected" if refused.status == 421 else "Forbidden"
            return self._refused(path, refused.status, kind, refused.message)
        if _is_api(path):
            return await self._api(method, path, query, headers)
        if method == "POST":
            if path != "/wake":
                return json_answer({"error": "no such page; POST is for /wake"}, status=404)
            # It takes nothing and says nothing: what is declared is in the store, where rights are checked.
            self._wake()
            return json_answer({}, status=202)
        if method != "GET":
            return json_answer({"error": "GET is taken here"}, status=405, headers={"allow": "GET"})
        if path == "/health":
            return await self._healthy(query)
        if path == "/status":
            return Answer(body=self._status(), headers={"content-type": "application/json"})
        if path == "/metrics":
            return Answer(
                body=to_metrics(self._engine.registry).encode(), headers={"content-type": METRICS_TYPE}
            )
        asset = self._assets.get(path, headers)
        if asset is not None:
            return asset
        pages = "no such page; there are /, /health, /status, /metrics and /v1"
        return json_answer({"error": pages}, status=404)

    async def _api(self, method: str, path: str, query: str, headers: Mapping[str, str]) -> Answer:
        try:
            route, name = route_of(path)
            if method != route.method:
                message = f"{method[:20]!r} is not taken here, {route.method} is"
                return refusal(405, ERRORS[405][0], message, headers={"allow": route.method})
            if method != "GET":
                self._require_token(headers)
            asked = query_of(query, route.parameters)
            body = DESCRIPTION_BYTES
            if route.view is not None:
                view = partial(_seen, route.view, self._engine, name, asked)
                body = await self._waiting(view) if route.waits else view()
        except TarnError as e:
            status = next((status for kind, status in STATUSES if isinstance(e, kind)), 503)
            if method == "GET" and status in ONLY_CHANGES:
                status = 503  # what the service itself may not do
            wrong: dict[str, Any] = {key: e.fields[key] for key in SHOWN if key in e.fields}
            return refusal(status, ERRORS[status][0], e.message, **wrong)
        return Answer(status=OK[method], body=body, headers={"content-type": "application/json"})

    def _require_token(self, headers: Mapping[str, str]) -> None:
        """Require the token of this process, which only a page of this origin can read and send.

        Raises:
            ForbiddenError: it is not there.
        """
        strikes = self._engine.strikes
        sent = headers.get(FAULT_HEADER.lower(), "").encode()
        if strikes is not None and not compare_digest(sent, strikes.token.encode()):
            raise ForbiddenError(
                f"{FAULT_HEADER} is not that of this process; GET /v1/faults has it",
                field=FAULT_HEADER,
                fix="read it from GET /v1/faults and send it as a header",
            )

    async def _waiting(self, view: Callable[[], bytes]) -> bytes:
        """What a view answers that waits for others; the event loop does not.

        Raises:
            UnavailableError: too many wait already.
            TarnError: as the view raises.
        """
        if self._looks >= LOOKS_WAITING_MAX:
            raise UnavailableError(f"{self._looks} requests look into tables already; ask again in a second")
        if self._limit is None:
            self._limit = anyio.CapacityLimiter(LOOKS_AT_ONCE)
        self._looks += 1
        try:
            return await anyio.to_thread.run_sync(view, limiter=self._limit)
        finally:
            self._looks -= 1

    async def _healthy(self, query: str) -> Answer:
        registry, now_s = self._engine.registry, self._engine.clock()
        found = faults(registry, now_s=now_s, deep=query in ("deep", "lag"))
        if query == "deep" and not found:
            found = await self._deep.faults()
        stuck = hanging(registry, now_s=self._engine.clock())
        body = {"healthy": not found, "faults": found, "hanging": stuck}
        return json_answer(body, status=503 if found else 200)

    def _status(self) -> bytes:
        registry, now_s = self._engine.registry, self._engine.clock()
        return orjson.dumps(
            {
                "service": "ingest",
                "ingestors": {n: s.to_json() for n, s in registry.ingestors().items()},
                "audits": {table: found.to_json() for table, found in registry.audits().items()},
                "dependencies": {
                    n: {"ok": d.ok, "message": d.message, "ageSeconds": round(now_s - d.looked_s, 1)}
                    for n, d in registry.dependencies().items()
                },
                "faults": faults(registry, now_s=now_s),
            },
            option=orjson.OPT_INDENT_2,
        )

    @staticmethod
    def _refused(path: str, status: int, kind: str, message: str) -> Answer:
        """An error, in the shape of the API or of the other pages."""
        if _is_api(path):
            return refusal(status, kind, message)
        return json_answer({"error": message}, status=status)


def _seen(view: Callable[[Engine, str, Query], BaseModel], engine: Engine, name: str, query: Query) -> bytes:
    return view(engine, name, query).model_dump_json(by_alias=True).encode()


def _is_api(path: str) -> bool:
    return path == API or path.startswith(f"{API}/")

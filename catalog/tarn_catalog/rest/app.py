"""The ASGI application: reads a request within limits, runs its route on a thread, sends the response.

Authentication uses the request's head alone, before any of its body is buffered.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, nullcontext
from dataclasses import replace
from functools import partial

import anyio
import anyio.to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tarn.adapters.budget import Budget, Share
from tarn.adapters.connections import WELCOME, Visitors
from tarn.core.errors import TarnError, UnavailableError
from tarn.core.hosts import MISDIRECTED, Hosts
from tarn_catalog.rest.bodies import TooLargeError, weight
from tarn_catalog.rest.lines import Lines
from tarn_catalog.rest.reads import ReadThreads
from tarn_catalog.rest.request import ClientConfig, RestRequest
from tarn_catalog.rest.response import RestResponse, answer_error, broken, error_body
from tarn_catalog.rest.routes import Admitted, Routes, is_limited

BODY_BYTES_MAX = 16 * 1024 * 1024
BODY_WAIT_S_MAX = 30
# Unauthenticated clients only send a token request: a short form.
STRANGERS_BODY_BYTES_MAX = 16 * 1024
STRANGERS_BODY_WAIT_S_MAX = 5
READING_BYTES_MAX = 64 * 1024 * 1024
WORKING_BYTES_MAX = 128 * 1024 * 1024
ROOM_WAIT_S_MAX = 20
THREADS_MAX = 64
# Of a commit: asks for a turn of its own if it is overtaken. Of its refusal: the token of that turn, for the
# next commit.
TURN = "tarn-turn"
OVERTAKEN = b'"CommitFailedException"'


class Limits:
    """What all listeners share: threads, connections, bytes of request bodies, lines of waiting requests."""

    def __init__(self) -> None:
        self.visitors = Visitors()
        self.reads = ReadThreads()
        self.reading = Budget(READING_BYTES_MAX, wait_s_max=ROOM_WAIT_S_MAX, who="The catalog")
        self.working = Budget(WORKING_BYTES_MAX, wait_s_max=ROOM_WAIT_S_MAX, who="The catalog")
        self.lines = Lines()
        self._limiter: anyio.CapacityLimiter | None = None

    def limiter(self) -> anyio.CapacityLimiter:
        """Return the thread limiter, created on first use inside the event loop."""
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(THREADS_MAX)
        return self._limiter


def _declared(request: Request, bytes_max: int) -> int:
    """Return the body's declared length; `bytes_max` if the body is chunked, 0 if there is none.

    Raises:
        TooLargeError: the declared length is over the limit.
    """
    declared = request.headers.get("content-length")
    if declared is None:
        return bytes_max if "transfer-encoding" in request.headers else 0
    # The head was checked: it is a number (`tarn.core.http_heads`).
    if int(declared) > bytes_max:
        raise TooLargeError(f"The request body has {declared} bytes, at most {bytes_max} are allowed")
    return int(declared)


async def _body(request: Request, bytes_max: int, wait_s_max: float) -> bytes:
    """Read the whole body.

    Raises:
        TooLargeError: the body has more than `bytes_max` bytes.
        UnavailableError: the body did not arrive within `wait_s_max` seconds.
    """
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(wait_s_max):
            async for chunk in request.stream():
                size += len(chunk)
                if size > bytes_max:
                    raise TooLargeError(f"The request body has more than {bytes_max} bytes")
                chunks.append(chunk)
    except TimeoutError as e:
        raise UnavailableError(f"The request body did not come within {wait_s_max} s; send it faster") from e
    return b"".join(chunks)


async def _gone(request: Request) -> None:
    """Return once the client has closed the connection; its body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def make_app(routes: Routes, side: ClientConfig, limits: Limits, hosts: Hosts) -> ASGIApp:
    """Return the ASGI application of one listener.

    Args:
        routes: the routes to serve.
        side: the listener's client configuration; request headers cannot change it.
        limits: shared by all listeners.
        hosts: the accepted host names.
    """

    async def may_wait(admitted: Admitted) -> bool:
        if admitted.principal is None or not is_limited(admitted.principal):
            return True
        return await anyio.to_thread.run_sync(routes.may_wait, admitted, limiter=limits.limiter())

    async def respond(request: Request) -> RestResponse:
        refusal = hosts.refusal(request.method, request.headers)
        if refusal is not None:
            kind = "MisdirectedRequestException" if refusal.status == MISDIRECTED else "ForbiddenException"
            return error_body(refusal.status, kind, refusal.message)
        path = request.scope["raw_path"].decode("ascii", errors="replace")
        admitted = routes.admit(request.method, path, request.headers.get("authorization"))
        if admitted.public:
            bytes_max, wait_s_max = STRANGERS_BODY_BYTES_MAX, STRANGERS_BODY_WAIT_S_MAX
        else:
            bytes_max, wait_s_max = BODY_BYTES_MAX, BODY_WAIT_S_MAX
            request.scope.get("state", {}).get(WELCOME, lambda: None)()
        body = b""
        declared = _declared(request, bytes_max)
        place, token = admitted.place, request.headers.get(TURN)
        # Before the body is read: the answer may wait for the store, and no budget would count the body.
        if place is not None and not await may_wait(admitted):
            place = None
        async with AsyncExitStack() as held:
            share: Share | None = None
            if declared:
                share = await held.enter_async_context(limits.reading.hold(declared))
                body = await _body(request, bytes_max, wait_s_max)
                share.resize(len(body))  # a chunked one might have become longer
            if place is not None:
                # A request that waits in its line holds no share: others read theirs meanwhile.
                waiting = partial(share.set_aside, len(body)) if share is not None else nullcontext
                await held.enter_async_context(
                    limits.lines.hold(place, len(body), partial(_gone, request), waiting, token=token)
                )
            if share is not None:
                await held.enter_async_context(limits.working.hold(weight(body)))
                share.resize(0)
            call = RestRequest(
                method=request.method,
                path=path,
                query=dict(request.query_params),
                headers=dict(request.headers.items()),
                body=body,
                side=side,
            )
            if not admitted.waits:
                return routes.run(call, admitted)
            answer = await anyio.to_thread.run_sync(routes.run, call, admitted, limiter=limits.limiter())
        if place is None or token is None or answer.status != 409 or OVERTAKEN not in answer.body:
            return answer
        reserved = await limits.lines.reserve(place, partial(_gone, request))
        return replace(answer, headers={**answer.headers, TURN: reserved}) if reserved else answer

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = await respond(Request(scope, receive))
        except TarnError as e:
            answer = answer_error(e)
        except ClientDisconnect:
            answer = RestResponse(status=400)
        except Exception as e:  # noqa: BLE001 - answered, and logged there
            answer = broken(scope["method"], scope["path"], e)
        response = Response(answer.body, status_code=answer.status, headers=dict(answer.headers))
        await response(scope, receive, send)

    return app

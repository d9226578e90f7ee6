"""The ASGI application: reads a request within its limits, runs the route on a thread, writes the answer."""

from __future__ import annotations

import asyncio
import time

import anyio
import anyio.to_thread
import structlog
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from tarn.core.errors import TarnError, UnavailableError
from tarn_catalog.answers import Answer, TooLargeError, answer_error, error_body
from tarn_catalog.calls import Call, Side
from tarn_catalog.routes import Routes

log = structlog.get_logger()

BODY_BYTES_MAX = 16 * 1024 * 1024
BODY_WAIT_S_MAX = 30
THREADS_MAX = 64
METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"]


class Limits:
    """The threads that all listeners share."""

    def __init__(self) -> None:
        self._limiter: anyio.CapacityLimiter | None = None

    def limiter(self) -> anyio.CapacityLimiter:
        """Made on first use, inside the event loop."""
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(THREADS_MAX)
        return self._limiter


async def _body(request: Request) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > BODY_BYTES_MAX:
        raise TooLargeError(f"The request body has {declared} bytes, at most {BODY_BYTES_MAX} are allowed")
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_WAIT_S_MAX):
            async for chunk in request.stream():
                size += len(chunk)
                if size > BODY_BYTES_MAX:
                    raise TooLargeError(f"The request body has more than {BODY_BYTES_MAX} bytes")
                chunks.append(chunk)
    except TimeoutError as e:
        raise UnavailableError(
            f"The request body did not come within {BODY_WAIT_S_MAX} s; send it faster"
        ) from e
    return b"".join(chunks)


def _run(routes: Routes, call: Call) -> Answer:
    started = time.monotonic()
    try:
        answer = routes.handle(call)
    except TarnError as e:
        answer = answer_error(e)
        if answer.status >= 500:
            log.warning(
                "request failed", method=call.method, path=call.path, status=answer.status, why=e.message
            )
    except Exception as e:
        log.exception("request broke", method=call.method, path=call.path)
        answer = error_body(
            500, "InternalServerException", f"Internal error: {type(e).__name__}; see the log"
        )
    elapsed_ms = round((time.monotonic() - started) * 1000, 2)
    log.debug(
        "request",
        method=call.method,
        path=call.path,
        status=answer.status,
        ms=elapsed_ms,
        side=call.side.name,
    )
    return answer


def make_app(routes: Routes, side: Side, limits: Limits) -> Starlette:
    """The application of one listener.

    Args:
        routes: what it serves.
        side: which listener it is; decides what clients are told, whatever their headers say.
        limits: shared by all listeners.
    """

    async def endpoint(request: Request) -> Response:
        raw_path = request.scope.get("raw_path") or request.url.path.encode()
        try:
            call = Call(
                method=request.method,
                path=raw_path.decode("ascii", errors="replace").split("?", 1)[0],
                query=dict(request.query_params),
                headers=dict(request.headers.items()),
                body=await _body(request),
                side=side,
            )
            answer = await anyio.to_thread.run_sync(_run, routes, call, limiter=limits.limiter())
        except TarnError as e:
            answer = answer_error(e)
        except ClientDisconnect:
            answer = Answer(status=400)
        return Response(answer.body, status_code=answer.status, headers=dict(answer.headers))

    return Starlette(routes=[Route("/{path:path}", endpoint, methods=METHODS)])

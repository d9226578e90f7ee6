"""What the service answers over HTTP: the current windows, the last alerts, its health."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from tarn.core.hosts import Hosts
from tarn.core.http_answers import Answer, json_answer, refusal
from tarn_demo.stream.view import View

log = structlog.get_logger()

HEADERS = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))


class Pages:
    """Answers from what is in memory; never waits.

    Args:
        view: what is shown.
        faults: what keeps the service from working, one sentence each.
        hosts: accepted values of the Host header.
        origins: origins of the pages that may read the answers.
    """

    def __init__(
        self, view: Callable[[], View], faults: Callable[[], list[str]], hosts: Hosts, origins: frozenset[str]
    ) -> None:
        self._view = view
        self._faults = faults
        self._hosts = hosts
        self._origins = origins

    def asgi(self) -> ASGIApp:
        """The application as uvicorn runs it."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            method, path = scope["method"], scope["raw_path"].decode("ascii", errors="replace")
            headers = {
                name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])
            }
            try:
                answer = self.respond(method, path, headers)
            except Exception as e:
                log.exception("request broke", method=method, path=path)
                answer = refusal(
                    500, "Internal", f"internal error: {type(e).__name__}; see the log of stream"
                )
            fields = [(name.encode(), value.encode("latin-1")) for name, value in answer.headers.items()]
            fields += [*HEADERS, *self._cors(headers), (b"content-length", b"%d" % len(answer.body))]
            await send({"type": "http.response.start", "status": answer.status, "headers": fields})
            await send({"type": "http.response.body", "body": answer.body if method != "HEAD" else b""})

        return app

    def respond(self, method: str, path: str, headers: Mapping[str, str]) -> Answer:
        """The response to a request.

        Args:
            method: HTTP method.
            path: path of the URL, percent-encoded.
            headers: headers by lower-case name.
        """
        refused = self._hosts.refusal(method, headers)
        if refused is not None:
            kind = "Misdirected" if refused.status == 421 else "Forbidden"
            return refusal(refused.status, kind, refused.message)
        if method not in ("GET", "HEAD"):
            return refusal(
                405,
                "MethodNotAllowed",
                f"{method[:20]!r} is not taken here, GET is",
                headers={"allow": "GET"},
            )
        if path == "/v1/windows":
            return json_answer(self._view().windows())
        if path == "/v1/alerts":
            return json_answer(self._view().alerts())
        if path == "/health":
            faults = self._faults()
            return json_answer({"healthy": not faults, "faults": faults}, status=503 if faults else 200)
        return refusal(
            404,
            "NotFound",
            f"there is nothing at {path[:200]!r}; there are /v1/windows, /v1/alerts and /health",
        )

    def _cors(self, headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
        origin = headers.get("origin", "")
        if origin not in self._origins:
            return [(b"vary", b"origin")]
        return [(b"vary", b"origin"), (b"access-control-allow-origin", origin.encode("latin-1"))]

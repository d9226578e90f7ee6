"""Plain reads are answered on a thread, without a task of the event loop and an ASGI cycle each (ADR 52)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from urllib.parse import parse_qsl

from tarn.core.hosts import Hosts
from tarn.core.http_answers import Answer
from tarn.core.http_heads import is_plain, parts_of
from tarn_catalog.rest.request import ClientConfig, RestRequest
from tarn_catalog.rest.response import RestResponse, broken, error_body
from tarn_catalog.rest.routes import Admitted, Routes

READS_MAX = 16
STOPPED = "The catalog stops; ask again"


class ReadThreads:
    """The threads of plain reads, which all listeners share. On the event loop."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(READS_MAX, "read")
        self._busy = 0

    def run(self, work: Callable[[], RestResponse], then: Callable[[RestResponse], None]) -> bool:
        """Run on a thread what raises nothing, and then on the loop what takes its result.

        Returns:
            False if all threads are busy; then nothing was done.
        """
        if self._busy >= READS_MAX:
            return False
        loop = asyncio.get_running_loop()

        def ended(answer: RestResponse) -> None:
            self._busy -= 1
            then(answer)

        def done(future: Future[RestResponse]) -> None:
            answer = future.result()
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(ended, answer)

        self._busy += 1
        self._pool.submit(work).add_done_callback(done)
        return True


class Reads:
    """Takes the plain reads of a listener; see `tarn.adapters.connections.Quick`.

    Args:
        routes: the routes to serve.
        side: the listener's client configuration.
        hosts: the accepted host names.
        threads: where reads are answered.
    """

    def __init__(self, routes: Routes, side: ClientConfig, hosts: Hosts, threads: ReadThreads) -> None:
        self._routes = routes
        self._side = side
        self._hosts = hosts
        self._threads = threads

    def quick(
        self, head: bytes, body: bytes, answered: Callable[[Answer], None]
    ) -> Callable[[], None] | None:
        """Take a read that has come whole.

        It is taken if it is as nearly all are: a GET without a body, of a route that waits for the store. Any
        other request, and one with a fault, is left to the application before anything is done.
        """
        try:
            method, target, headers = parts_of(head)
            if method != "GET" or not is_plain(headers):
                return None
            if self._hosts.refusal(method, headers) is not None:
                return None
            path, _, query = target.partition("?")
            admitted = self._routes.admit(method, path, headers.get("authorization"))
            if admitted.public or not admitted.waits or admitted.place is not None:
                return None
            asked = dict(parse_qsl(query, keep_blank_values=True))
        except Exception:  # noqa: BLE001 - it is tried again as any request, and what is wrong is said there
            return None
        call = RestRequest(method=method, path=path, query=asked, headers=headers, body=body, side=self._side)

        def then(answer: RestResponse) -> None:
            answered(Answer(status=answer.status, body=answer.body, headers=answer.headers))

        if not self._threads.run(partial(self._answer, call, admitted), then):
            return None
        return lambda: then(error_body(503, "ServiceUnavailableException", STOPPED))

    def _answer(self, call: RestRequest, admitted: Admitted) -> RestResponse:
        try:
            return self._routes.run(call, admitted)
        except Exception as e:  # noqa: BLE001 - answered, and logged there
            return broken(call.method, call.path, e)

"""Provoking faults: a service that is killed or hangs, an answer that is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from tarn_testkit.backend import Backend
from tarn_testkit.proxy import Proxy

BACK_S = 120.0


class Faults:
    """The faults of a lake.

    `kill` and `freeze` hit everybody who uses the stack, so they need a stack that the kit started, or
    `--tarn-faults`. A proxy is the test's own, and is there in the embedded lake too.

    Args:
        backend: the lake's parts.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def kill(self, service: str, *, timeout_s: float = BACK_S) -> None:
        """Kill a service's main process with SIGKILL; return once it was started again and is healthy.

        Args:
            service: name of the service in the compose file, such as `ingest`, `catalog`, `kafka` or `minio`.
            timeout_s: how long that may take, in seconds.

        Raises:
            NeedsStackError, NotAllowedError, NotInProfileError: there is nothing that may be killed.
            WaitError: it was not healthy in time.
        """
        self._backend.kill(service, timeout_s=timeout_s)

    def freeze(self, service: str, *, timeout_s: float = BACK_S) -> AbstractContextManager[None]:
        """A block within which a service's processes stand still: connections stay open, nothing is answered.

        Its end waits until the service is healthy again.

        Args:
            service: name of the service in the compose file.
            timeout_s: how long it may take to be healthy afterwards, in seconds.

        Raises:
            KitError: as `kill`.
        """
        return self._backend.freeze(service, timeout_s=timeout_s)

    def proxy(self, service: str = "catalog") -> AbstractContextManager[Proxy]:
        """A block with a proxy before a service, which breaks the writes that are planned to be broken.

        Args:
            service: `catalog` (commits to tables) or `gateway` (rows).

        Raises:
            NeedsStackError: the embedded lake has no such service.
        """
        return self._backend.proxy(service)

    @contextmanager
    def drop_next_reply(self, service: str = "catalog", *, count: int = 1) -> Iterator[Proxy]:
        """The same, with the answers to the next writes lost: they are made, and the client does not know.

        Args:
            service: `catalog` or `gateway`.
            count: how many answers.

        Raises:
            NeedsStackError: the embedded lake has no such service.
        """
        with self._backend.proxy(service) as proxy:
            proxy.drop_next_reply(count)
            yield proxy

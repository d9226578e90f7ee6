"""An HTTP server of Tarn: uvicorn with the limits that all of them have, on a socket that is bound before."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from tarn.adapters.connections import Door
from tarn.core.errors import InvalidSettingError

KEEP_ALIVE_S = 75
BACKLOG = 512


class Listener(uvicorn.Server):
    """A uvicorn server, perhaps one of several in a process; the caller handles signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield


def bound(host: str, port: int, *, variables: tuple[str, str], name: str = "") -> socket.socket:
    """A socket that is bound to an address.

    Args:
        host: the address.
        port: TCP port; 0 takes a free one.
        variables: the environment variables that set them, for messages.
        name: the host as it was set, for messages; empty for the address.

    Raises:
        InvalidSettingError: the address cannot be used; the message names the variables.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the socket's protocol is IPPROTO_TCP. Without it every small
    # response, sent as head and body, waits 40 ms for the client's delayed ACK.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OSError as e:
        made.close()
        raise InvalidSettingError(
            f"Cannot listen on {name or host}:{port}: {e.strerror}; stop what uses it, or set "
            f"{variables[0]} or {variables[1]}"
        ) from e
    return made


def listener(app: ASGIApp, protocol: type[Door], *, stop_wait_s: int) -> Listener:
    """The server of an application, not started yet; it serves the sockets that it is given.

    Args:
        app: the application.
        protocol: the protocol of its connections (`tarn.adapters.connections.door`).
        stop_wait_s: how long requests may take to end when the server does, in seconds.
    """
    return Listener(
        uvicorn.Config(
            app,
            http=protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=stop_wait_s,
            backlog=BACKLOG,
        )
    )

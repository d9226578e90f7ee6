"""The service: settings, wiring, one listener, and an end that answers what was taken."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from threading import Event

import structlog
import uvicorn
from starlette.types import ASGIApp

from tarn.adapters.connections import Listener, Visitors, door
from tarn.adapters.logging import configure
from tarn.core import exit_codes
from tarn.core.errors import InvalidSettingError, TarnError
from tarn.gateway.settings import Settings
from tarn.gateway.tables import Tables
from tarn.gateway.wiring import make_app, make_context, make_health

log = structlog.get_logger()

KEEP_ALIVE_S = 75
STOP_WAIT_S = 3
DRAIN_S = 10.0
HEADER_BYTES_MAX = 32 * 1024


def bound(host: str, port: int) -> socket.socket:
    """A socket that is bound to an address.

    Raises:
        InvalidSettingError: the address cannot be used; the message names the variables.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the socket's protocol is IPPROTO_TCP.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OSError as e:
        made.close()
        raise InvalidSettingError(
            f"cannot listen on {host}:{port}: {e.strerror}; stop what uses it, or set TARN_GATEWAY_LISTEN or "
            "TARN_GATEWAY_PORT"
        ) from e
    return made


def listener(app: ASGIApp, *, head_wait_s: float | None = None) -> Listener:
    """The server of an application, not started yet.

    Args:
        app: the application.
        head_wait_s: how long the head of a request may take, in seconds; None for the usual time.
    """
    visitors = Visitors()
    protocol = door(visitors) if head_wait_s is None else door(visitors, head_wait_s=head_wait_s)
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
            timeout_graceful_shutdown=STOP_WAIT_S,
            h11_max_incomplete_event_size=HEADER_BYTES_MAX,
            backlog=512,
        )
    )


async def serve(server: Listener, at: socket.socket, tables: Tables, stop: Event) -> None:
    """Run until SIGTERM or SIGINT: then take no more writes, and answer those that were taken.

    Args:
        server: the server.
        at: its socket.
        tables: the tables that it writes to.
        stop: ends commits that still wait when the time for that is over.
    """
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    serving = asyncio.create_task(server.serve(sockets=[at]))
    serving.add_done_callback(lambda _: asked.set())
    await asked.wait()
    log.info("gateway stops")
    drained = await asyncio.to_thread(tables.close, wait_s=DRAIN_S)
    stop.set()
    server.should_exit = True
    await serving
    log.info("gateway stopped", drained=drained)


def run(settings: Settings) -> None:
    """Serve until a signal asks to stop.

    Raises:
        TarnError: the service cannot start; the message says why.
    """
    stop = Event()
    context, objects = make_context(settings, stop)
    tables = Tables(context, objects)
    health = make_health(settings, stop)
    app = make_app(settings, tables, health).asgi()
    at = bound(settings.gateway_listen, settings.gateway_port)
    health.start()
    log.info("gateway starts", listen=settings.gateway_listen, port=settings.gateway_port)
    asyncio.run(serve(listener(app), at, tables, stop))


def main(arguments: list[str]) -> int:
    """Run the command line.

    Returns:
        The exit code; see `tarn.core.exit_codes`.
    """
    argparse.ArgumentParser(
        allow_abbrev=False,
        prog="tarn-gateway",
        description="Takes rows over HTTP and puts each into its table exactly once. All settings are "
        "environment variables that begin with TARN_; docs/reference.md lists them.",
    ).parse_args(arguments)
    try:
        settings = Settings.read()
        configure(settings.log_level, service="gateway")
        # The client libraries' own errors reach this code as exceptions and are logged where handled.
        for name in ("kafka", "pyiceberg", "urllib3"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        run(settings)
    except TarnError as e:
        configure("info", service="gateway")
        log.error("gateway cannot start", error=type(e).__name__, message=e.message)
        return exit_codes.exit_code(e)
    logging.shutdown()
    sys.stdout.flush()
    # Threads blocked on a response must not keep the process alive; every state they can leave is safe.
    os._exit(exit_codes.OK)

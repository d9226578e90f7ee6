"""The service: settings, wiring, one listener, and an end that answers what was taken."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Coroutine
from threading import Event
from typing import Any

import structlog
import uvloop

from tarn.adapters.connections import HEAD_WAIT_S, Visitors, door
from tarn.adapters.heap import freeze_heap
from tarn.adapters.http_server import Listener, bound, listener
from tarn.adapters.logging import configure
from tarn.core import exit_codes
from tarn.core.errors import TarnError
from tarn.gateway.app import App
from tarn.gateway.logs import Logs
from tarn.gateway.settings import Settings
from tarn.gateway.tables import Tables
from tarn.gateway.wiring import make_app, make_context, make_health, make_logs

log = structlog.get_logger()

STOP_WAIT_S = 3
DRAIN_S = 10.0
HEADER_BYTES_MAX = 32 * 1024


def gateway_socket(host: str, port: int) -> socket.socket:
    """The socket of the gateway, bound.

    Raises:
        InvalidSettingError: the address cannot be used; the message names the variables.
    """
    return bound(host, port, variables=("TARN_GATEWAY_LISTEN", "TARN_GATEWAY_PORT"))


def gateway_listener(app: App, *, head_wait_s: float = HEAD_WAIT_S) -> Listener:
    """The server of the gateway's application, not started yet.

    Args:
        app: the application.
        head_wait_s: how long the head of a request may take, in seconds.
    """
    visitors = Visitors()
    protocol = door(visitors, head_bytes_max=HEADER_BYTES_MAX, head_wait_s=head_wait_s, quick=app.quick)
    return listener(app.asgi(), protocol, stop_wait_s=STOP_WAIT_S)


def on_a_loop(main: Coroutine[Any, Any, None]) -> None:
    """Run on the gateway's event loop, uvloop's: it takes less processor time per write (ADR 38)."""
    uvloop.run(main)


async def serve(server: Listener, at: socket.socket, tables: Tables, logs: Logs, stop: Event) -> None:
    """Run until SIGTERM or SIGINT: then take no more writes, and answer those that were taken.

    Args:
        server: the server.
        at: its socket.
        tables: the tables that it writes to.
        logs: the logs that it writes.
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
    drained = all(
        await asyncio.gather(
            asyncio.to_thread(tables.close, wait_s=DRAIN_S), asyncio.to_thread(logs.close, wait_s=DRAIN_S)
        )
    )
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
    logs = make_logs(settings, context)
    health = make_health(settings, stop)
    app = make_app(settings, tables, logs, health)
    at = gateway_socket(settings.gateway_listen, settings.gateway_port)
    health.start()
    freeze_heap()
    log.info("gateway starts", listen=settings.gateway_listen, port=settings.gateway_port)
    on_a_loop(serve(gateway_listener(app), at, tables, logs, stop))


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

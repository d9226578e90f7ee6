"""The catalog as a service: settings, wiring, two listeners, an orderly stop."""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
import uvicorn

from tarn.adapters.logging import configure
from tarn.core.errors import InvalidSettingError, TarnError
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.operations.health import check_store
from tarn_catalog.rest.app import Limits, make_app
from tarn_catalog.rest.auth import Authenticator
from tarn_catalog.rest.connections import door
from tarn_catalog.rest.request import ClientConfig
from tarn_catalog.rest.routes import Routes
from tarn_catalog.settings import Settings, load_settings

log = structlog.get_logger()

KEEP_ALIVE_S = 75
STOP_WAIT_S = 10
HEADER_BYTES_MAX = 64 * 1024


class Listener(uvicorn.Server):
    """One of several servers in a process: signals are handled by whoever runs them."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


def sides(settings: Settings) -> tuple[ClientConfig, ClientConfig]:
    """What the two listeners tell their clients."""
    inside, published = (
        ClientConfig(name=name, s3_endpoint=endpoint, region=settings.region, warehouse=settings.warehouse)
        for name, endpoint in (
            ("inside", settings.s3_endpoint_inside),
            ("published", settings.s3_endpoint_published),
        )
    )
    return inside, published


def bound(settings: Settings) -> list[socket.socket]:
    """The two sockets, listening for the servers in the same order.

    Raises:
        InvalidSettingError: an address or a port cannot be used; the message names the variable.
    """
    sockets: list[socket.socket] = []
    family = socket.AF_INET6 if ":" in settings.catalog_host else socket.AF_INET
    for port, variable in (
        (settings.catalog_port_inside, "TARN_CATALOG_PORT_INSIDE"),
        (settings.catalog_port_published, "TARN_CATALOG_PORT_PUBLISHED"),
    ):
        # asyncio sets TCP_NODELAY only where the socket itself says that it is TCP. Without it every small
        # answer, which goes out as head and body, waits 40 ms for the client's delayed acknowledgement.
        one = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        sockets.append(one)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((settings.catalog_host, port))
        except OSError as e:
            for opened in sockets:
                opened.close()
            raise InvalidSettingError(
                f"Cannot listen on {settings.catalog_host}:{port}: {e.strerror}; stop what uses it, or set "
                f"TARN_CATALOG_HOST or {variable}"
            ) from e
    return sockets


def listeners(settings: Settings, routes: Routes) -> list[Listener]:
    """The two servers, not yet started."""
    limits = Limits()
    protocol = door(limits.visitors)
    inside, published = sides(settings)
    ports = ((inside, settings.catalog_port_inside), (published, settings.catalog_port_published))
    return [
        Listener(
            uvicorn.Config(
                make_app(routes, side, limits, settings.own_hosts),
                host=settings.catalog_host,
                port=port,
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
        for side, port in ports
    ]


async def serve(servers: list[Listener], sockets: list[socket.socket]) -> None:
    """Run until SIGTERM or SIGINT, or until one of them ends."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        for server in servers:
            server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    tasks = [
        asyncio.create_task(server.serve(sockets=[one])) for server, one in zip(servers, sockets, strict=True)
    ]
    for task in tasks:
        task.add_done_callback(lambda _: stop())
    await asyncio.gather(*tasks)


def run(settings: Settings) -> None:
    """Check the store, then serve.

    Raises:
        TarnError: it cannot start; the message says why.
    """
    access = Authenticator(settings.secrets_dir)
    sockets = bound(settings)
    store = settings.store()
    check_store(store, name=uuid.uuid4().hex, wait_s_max=settings.catalog_store_wait_s)
    catalog = Catalog(store, settings.roots)
    log.info(
        "catalog starts",
        inside=f"{settings.catalog_host}:{settings.catalog_port_inside}",
        published=f"{settings.catalog_host}:{settings.catalog_port_published}",
        bucket=settings.bucket,
    )
    asyncio.run(serve(listeners(settings, Routes(catalog, access)), sockets))
    log.info("catalog stopped")


def main() -> None:
    """The command `tarn-catalog`."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="tarn-catalog",
        description="Tarn's Iceberg REST catalog. All settings are environment variables that begin with "
        "TARN_; docs/reference.md lists them.",
    )
    parser.parse_args()
    try:
        settings = load_settings()
        configure(settings.log_level, service="catalog")
        run(settings)
    except TarnError as e:
        configure("info", service="catalog")
        log.error("catalog cannot start", reason=e.message)
        sys.exit(1)


if __name__ == "__main__":
    main()

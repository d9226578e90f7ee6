"""The catalog service: settings, wiring, two listeners, graceful shutdown."""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
import sys
import uuid

import structlog

from tarn.adapters.connections import door
from tarn.adapters.heap import freeze_heap
from tarn.adapters.http_server import Listener, listener
from tarn.adapters.http_server import bound as bind
from tarn.adapters.logging import configure
from tarn.core.errors import InvalidSettingError, TarnError
from tarn.core.object_store import ObjectStore
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.operations.health import check_restored, check_store
from tarn_catalog.operations.trail import Trail
from tarn_catalog.rest.app import Limits, make_app
from tarn_catalog.rest.auth import Authenticator
from tarn_catalog.rest.reads import Reads
from tarn_catalog.rest.request import ClientConfig
from tarn_catalog.rest.routes import Routes
from tarn_catalog.settings import Settings

log = structlog.get_logger()

STOP_WAIT_S = 10
HEADER_BYTES_MAX = 64 * 1024


def sides(settings: Settings) -> tuple[ClientConfig, ClientConfig]:
    """Return the client configurations of the two listeners: inside, published (the order of `bound`)."""
    inside, published = (
        ClientConfig(name=name, s3_endpoint=endpoint, region=settings.region, warehouse=settings.warehouse)
        for name, endpoint in (
            ("inside", settings.s3_endpoint_inside),
            ("published", settings.s3_endpoint_published),
        )
    )
    return inside, published


def _own_address(host: str) -> str:
    """Return the address to listen at: of several that a name has, the first that is this machine's.

    The name of a service in Compose has the addresses of all of its replicas.
    """
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return host  # binding says what is wrong with it
    for family, _, _, _, address in found:
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            try:
                tried.bind((address[0], 0))
            except OSError:
                continue
            return str(address[0])
    return host


def bound(settings: Settings) -> list[socket.socket]:
    """Return the two bound sockets: inside, published.

    Raises:
        InvalidSettingError: an address or a port cannot be used; the message names the variable.
    """
    sockets: list[socket.socket] = []
    host = _own_address(settings.catalog_host)
    for port, variable in (
        (settings.catalog_port_inside, "TARN_CATALOG_PORT_INSIDE"),
        (settings.catalog_port_published, "TARN_CATALOG_PORT_PUBLISHED"),
    ):
        try:
            sockets.append(
                bind(host, port, variables=("TARN_CATALOG_HOST", variable), name=settings.catalog_host)
            )
        except InvalidSettingError:
            for opened in sockets:
                opened.close()
            raise
    return sockets


def listeners(settings: Settings, routes: Routes) -> list[Listener]:
    """Return the two servers, not yet started: inside, published."""
    limits, hosts = Limits(), settings.own_hosts
    found = []
    for side in sides(settings):
        reads = Reads(routes, side, hosts, limits.reads)
        protocol = door(limits.visitors, head_bytes_max=HEADER_BYTES_MAX, quick_reads=reads.quick)
        found.append(listener(make_app(routes, side, limits, hosts), protocol, stop_wait_s=STOP_WAIT_S))
    return found


async def serve(servers: list[Listener], sockets: list[socket.socket]) -> None:
    """Run the servers until SIGTERM or SIGINT, or until one of them stops."""
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


def make_routes(settings: Settings, store: ObjectStore, trail: Trail | None = None) -> Routes:
    """Return the routes over the lake in a store.

    Raises:
        InvalidSettingError: the secrets cannot be read.
    """
    catalog = Catalog(
        store,
        settings.roots,
        grants_max_age_s=settings.catalog_grants_max_age_s,
        vending=settings.vending(),
        trail=trail,
    )
    return Routes(catalog, Authenticator(settings.secrets_dir, access=catalog.access))


def run(settings: Settings) -> None:
    """Check the store, then serve until stopped.

    Raises:
        TarnError: the service cannot start; the message states the reason.
    """
    Authenticator(settings.secrets_dir)  # says what is wrong with the secrets, before the wait for the store
    settings.vending()  # the same
    sockets = bound(settings)
    store = settings.store()
    check_store(store, name=uuid.uuid4().hex, wait_s_max=settings.catalog_store_wait_s)
    check_restored(store)
    log.info(
        "catalog starts",
        inside=f"{settings.catalog_host}:{settings.catalog_port_inside}",
        published=f"{settings.catalog_host}:{settings.catalog_port_published}",
        bucket=settings.bucket,
        vends_credentials=bool(settings.sts_endpoint),
    )
    trail = Trail(store) if settings.trail == "on" else None
    routes = make_routes(settings, store, trail)
    freeze_heap()
    if trail is not None:
        trail.start()
    try:
        asyncio.run(serve(listeners(settings, routes), sockets))
    finally:
        if trail is not None:
            trail.stop()
    log.info("catalog stopped")


def main() -> None:
    """Run the command `tarn-catalog`."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="tarn-catalog",
        description="Tarn's Iceberg REST catalog. All settings are environment variables that begin with "
        "TARN_; docs/reference.md lists them.",
    )
    parser.parse_args()
    try:
        settings = Settings.read()
        configure(settings.log_level, service="catalog")
        run(settings)
    except TarnError as e:
        configure("info", service="catalog")
        log.error("catalog cannot start", reason=e.message)
        sys.exit(1)


if __name__ == "__main__":
    main()

"""The catalog's server in a thread of the calling process, for tests and notebooks."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tarn.adapters.http_server import Listener
from tarn.core.errors import UnavailableError
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.rest.auth import KEY_BYTES_MIN, Authenticator
from tarn_catalog.rest.routes import Routes
from tarn_catalog.rest.server import bound, listeners
from tarn_catalog.settings import Settings

START_WAIT_S_MAX = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A running catalog.

    Attributes:
        inside: URL of the listener for containers.
        published: URL of the listener for the host.
        credential: `client_id:client_secret` of a principal.
        secrets_dir: the folder of `principals.json` and `token_key`.
    """

    inside: str
    published: str
    credential: str
    secrets_dir: Path


def write_secrets(folder: Path, *, client_id: str = "tester") -> str:
    """Write `principals.json` and `token_key`; return the credential of the one principal."""
    folder.mkdir(parents=True, exist_ok=True)
    secret = secrets.token_urlsafe(16)
    digest = hashlib.sha256(secret.encode()).hexdigest()
    principals = {client_id: {"name": client_id, "secret_sha256": digest}}
    (folder / "principals.json").write_text(json.dumps(principals))
    key = base64.urlsafe_b64encode(secrets.token_bytes(KEY_BYTES_MIN)).decode()
    (folder / "token_key").write_text(key)
    return f"{client_id}:{secret}"


@contextmanager
def serving(catalog: Catalog, secrets_dir: Path, settings: Settings | None = None) -> Iterator[Running]:
    """Serve a catalog on two free ports of 127.0.0.1 for the duration of the block.

    Args:
        catalog: the catalog to serve.
        secrets_dir: the folder to write secrets to.
        settings: the client configuration; host and ports are ignored.

    Raises:
        UnavailableError: the server did not start within 60 s.
    """
    credential = write_secrets(secrets_dir)
    wanted = (settings or Settings()).model_copy(
        update={"catalog_host": "127.0.0.1", "catalog_port_inside": 0, "catalog_port_published": 0}
    )
    servers = listeners(wanted, Routes(catalog, Authenticator(secrets_dir, access=catalog.access)))

    sockets = bound(wanted)

    async def serve() -> None:
        pairs = zip(servers, sockets, strict=True)
        await asyncio.gather(*(server.serve(sockets=[one]) for server, one in pairs))

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="tarn-catalog", daemon=True)
    thread.start()
    try:
        for server in servers:
            _wait(server)
        inside, published = (f"http://127.0.0.1:{one.getsockname()[1]}" for one in sockets)
        yield Running(inside=inside, published=published, credential=credential, secrets_dir=secrets_dir)
    finally:
        for server in servers:
            server.should_exit = True
        thread.join(timeout=START_WAIT_S_MAX)


def _wait(server: Listener) -> None:
    deadline = time.monotonic() + START_WAIT_S_MAX
    while not server.started:
        if time.monotonic() > deadline:
            raise UnavailableError(f"the catalog did not start within {START_WAIT_S_MAX} s")
        time.sleep(0.01)

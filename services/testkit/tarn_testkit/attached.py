"""A lake that is a running stack, by the values that `scripts/tarn env` prints."""

from __future__ import annotations

import os
import socket
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import WeakSet

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import RESTError

from tarn.adapters.spec_store import SpecStore
from tarn.adapters.store import S3Store
from tarn_testkit.containers import Containers, project_behind
from tarn_testkit.environment import BUCKET, INGEST, require_values
from tarn_testkit.errors import NotInProfileError, SetupError
from tarn_testkit.kafka_topics import StackTopics, login_of
from tarn_testkit.proxy import Proxy, proxy_before

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECT_S = 5.0
TRINO_S = 60.0
SHARED = (
    "this lake is a stack that was running before, which others may be using: a fault would hit them "
    "too. Allow it with --tarn-faults, or let the kit start a stack of its own: unset TARN_CATALOG_URI and "
    "TARN_ENV"
)


class AttachedLake:
    """A `Backend` over a running stack.

    Args:
        env: the values of `scripts/tarn env`.
        project: name of its Compose project; None: that of the container that publishes the catalog's port.
        faults: whether faults may be provoked.

    Raises:
        SetupError: a value is missing, or the catalog does not answer.
    """

    def __init__(self, env: Mapping[str, str], *, project: str | None = None, faults: bool) -> None:
        require_values(env)
        self.env = dict(env)
        self._ends = ExitStack()
        # A connection keeps a socket for as long as somebody has its cursor, and suites ask again and again.
        self._trinos: WeakSet[Any] = WeakSet()
        self._spark: SparkSession | None = None
        self._require_catalog()
        self._client = {
            "credential": env["TARN_CATALOG_CREDENTIAL"],
            "warehouse": env["TARN_WAREHOUSE"],
            # The user's own keys: those that the catalog vends end after minutes, and a session is longer.
            "header.X-Iceberg-Access-Delegation": "",
            "s3.endpoint": env["TARN_S3_ENDPOINT"],
            "s3.access-key-id": env["AWS_ACCESS_KEY_ID"],
            "s3.secret-access-key": env["AWS_SECRET_ACCESS_KEY"],
            "s3.region": env["AWS_REGION"],
        }
        uri = env["TARN_CATALOG_URI"]
        where = {"type": "rest", "uri": uri, "oauth2-server-uri": f"{uri}/v1/oauth/tokens"}
        try:
            self.catalog: Catalog = load_catalog("tarn", **{**self._client, **where})
        except RESTError as e:
            raise SetupError(
                f"the catalog at {uri} refuses what TARN_CATALOG_CREDENTIAL and TARN_WAREHOUSE say: {e}. Are "
                "the values of another stack, or of one that was made again? "
                'eval "$(scripts/tarn env)" in its '
                "clone, or scripts/tarn env > FILE, gives those of now"
            ) from e
        self.topics = StackTopics(env["TARN_KAFKA_BOOTSTRAP"], login_of(env))
        store = S3Store(
            bucket=env.get(BUCKET) or os.environ.get("TARN_BUCKET") or "tarn",
            endpoint=env["TARN_S3_ENDPOINT"],
            region=env["AWS_REGION"],
            access_key_id=env["AWS_ACCESS_KEY_ID"],
            secret_access_key=env["AWS_SECRET_ACCESS_KEY"],
        )
        self.specs = SpecStore(
            store, now_ms=lambda: time.time_ns() // 1_000_000, new_id=lambda: uuid.uuid4().hex
        )
        port = urlsplit(uri).port or 80
        self._containers = Containers(
            project=(lambda: project) if project is not None else (lambda: project_behind(port)),
            refused="" if faults else SHARED,
        )

    def wake(self) -> None:
        """See `Backend.wake`; an ingest service that does not answer is left to look by itself."""
        if INGEST not in self.env:
            return
        request = urllib.request.Request(f"{self.env[INGEST]}/wake", data=b"", method="POST")
        try:
            urllib.request.urlopen(request, timeout=CONNECT_S).close()
        except (OSError, urllib.error.URLError):
            return

    def cursor(self) -> Any:
        """See `Backend.cursor`.

        Raises:
            NotInProfileError: no Trino listens.
            SetupError: its client is not installed.
        """
        connection = self._trino()
        self._trinos.add(connection)
        return connection.cursor()

    def query(self, sql: str) -> list[list[Any]]:
        """See `Backend.query`."""
        with closing(self._trino()) as connection:
            cursor = connection.cursor()
            cursor.execute(sql.strip().rstrip(";"))
            return [list(row) for row in cursor.fetchall()]

    def _trino(self) -> Any:
        where = urlsplit(self.env["TARN_TRINO_URI"])
        self._require_service("trino", where.hostname or "127.0.0.1", where.port or 8080)
        trino = _client("trino.dbapi", "trino")
        secret = self.env["TARN_TRINO_EXTRA_CREDENTIALS"].partition(":")
        return trino.connect(
            host=where.hostname,
            port=where.port,
            http_scheme=where.scheme,
            user=self.env["TARN_TRINO_USER"],
            extra_credential=[(secret[0], secret[2])] if secret[2] else None,
            catalog=self.env["TARN_TRINO_CATALOG"],
            source="tarn-testkit",
            request_timeout=TRINO_S,
            timezone="UTC",
        )

    def spark(self) -> SparkSession:
        """See `Backend.spark`.

        Raises:
            NotInProfileError: no Spark listens.
            SetupError: its client is not installed.
        """
        if self._spark is None:
            remote = self.env["TARN_SPARK_REMOTE"]
            where = urlsplit(remote)
            self._require_service("spark", where.hostname or "localhost", where.port or 15002)
            _client("pyspark.sql.connect.session", "spark")
            from tarn.adapters import spark_remote

            self._spark = self._ends.enter_context(spark_remote.session(remote, {}))
        return self._spark

    def kill(self, service: str, *, timeout_s: float) -> None:
        """See `Backend.kill`."""
        self._containers.kill(service, timeout_s=timeout_s)

    def freeze(self, service: str, *, timeout_s: float) -> AbstractContextManager[None]:
        """See `Backend.freeze`."""
        return self._containers.freeze(service, timeout_s=timeout_s)

    @contextmanager
    def proxy(self, service: str) -> Iterator[Proxy]:
        """See `Backend.proxy`."""
        upstream = self.env["TARN_GATEWAY_URI" if service == "gateway" else "TARN_CATALOG_URI"]
        with proxy_before(service, upstream, client=self._client) as proxy:
            yield proxy

    def close(self) -> None:
        """See `Backend.close`."""
        for connection in list(self._trinos):
            connection.close()
        self._ends.close()

    def _require_catalog(self) -> None:
        uri = self.env["TARN_CATALOG_URI"]
        try:
            urllib.request.urlopen(f"{uri}/v1/config", timeout=CONNECT_S).close()
        except urllib.error.HTTPError:
            return  # Without a token it answers 401 at most: it is there.
        except (OSError, ValueError) as e:
            raise SetupError(
                f"the catalog at {uri} (TARN_CATALOG_URI) does not answer: {e}. Is the stack running? "
                "scripts/tarn status shows it, scripts/up starts it; unset TARN_CATALOG_URI to have the "
                "kit start one"
            ) from e

    def _require_service(self, service: str, host: str, port: int) -> None:
        try:
            socket.create_connection((host, port), timeout=CONNECT_S).close()
        except OSError as e:
            raise NotInProfileError(
                f"nothing listens at {host}:{port}, where {service} would be ({e}): the small profile has "
                "none. "
                "Start the stack with scripts/up --full, or let the kit start one with --tarn-profile full; "
                f"scripts/tarn status shows whether {service} is only down"
            ) from e


def _client(module: str, extra: str) -> Any:
    """A client library that is an extra of the kit.

    Raises:
        SetupError: it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as e:
        raise SetupError(
            f"lake.{extra} needs a client that is not installed ({e}); install the kit with its extra: "
            f"pip install './services/testkit[{extra}]' in a clone of Tarn"
        ) from e

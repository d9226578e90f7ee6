"""Gateways over real sockets, beside the real catalog over HTTP, on a lake in memory."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from tarn.adapters.catalog_client import RestCatalog
from tarn.adapters.catalog_rights import CatalogRights
from tarn.adapters.connections import HEAD_WAIT_S, READ, WELCOME
from tarn.adapters.http_server import Listener
from tarn.core.hosts import Hosts
from tarn.core.log_claims import topic_of
from tarn.core.spec import parse_spec
from tarn.core.table_catalog import TableCatalog, TableName
from tarn.core.table_state import current_schema
from tarn.gateway.access import Gate
from tarn.gateway.app import App, AppLimits
from tarn.gateway.log_judge import LogLimits
from tarn.gateway.logs import Logs
from tarn.gateway.memory import Memory
from tarn.gateway.server import gateway_listener, gateway_socket, on_a_loop
from tarn.gateway.tables import Tables
from tarn.gateway.takes import InboxLimits
from tarn.ingest.bookkeeper import Bookkeepers
from tarn.ingest.committer import Ports
from tarn.ingest.context import StoppedError
from tarn.ingest.deep_look import Looks
from tarn.ingest.wiring import new_id, new_snapshot_id, uuid7
from tarn.testing.memory_log import MemoryLogs
from tarn.testing.memory_topic import Topic
from tarn_catalog.testing.server import serving
from tests.support.lake import Lake

TABLE = "bronze.orders"
NAME = TableName(("bronze",), "orders")


class Gateway:
    """One gateway, until `stop`.

    Attributes:
        url: its address.
        gate: its gate.
        memory: what its requests hold.
        tables: its tables.
    """

    def __init__(
        self,
        world: World,
        *,
        catalog: Callable[[TableCatalog], TableCatalog] = lambda catalog: catalog,
        limits: InboxLimits | None = None,
        app: AppLimits | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        head_wait_s: float = HEAD_WAIT_S,
        own: str = "admin",
        health: Looks | None = None,
        memory: Memory | None = None,
        log: LogLimits | None = None,
    ) -> None:
        self.ended = threading.Event()

        def sleep(seconds: float) -> None:
            if self.ended.wait(min(seconds, 0.01)):
                raise StoppedError

        rest = RestCatalog(world.catalog_url, warehouse="tarn", credential=lambda: world.credentials[own])
        context = replace(
            world.lake.context(),
            catalog=catalog(rest),
            clock=time.monotonic,
            new_id=new_id,
            ports=Ports(
                sleep=sleep,
                now_ms=now_ms,
                new_key=uuid7,
                new_snapshot_id=new_snapshot_id,
                chance=random.Random(1),
            ),
            executor=lambda: ThreadPoolExecutor(max_workers=1),
            bookkeepers=Bookkeepers(),
        )
        self.tables = Tables(context, world.lake.objects, limits=limits)
        self.memory = memory or Memory(64 << 20, wait_s_max=5)
        self.logs = Logs(context, world.logs, limits=log)
        self.gate = Gate(CatalogRights(world.catalog_url))
        made = App(
            self.gate,
            self.tables,
            self.memory,
            logs=self.logs,
            hosts=Hosts.of("gateway"),
            limits=app,
            health=health,
            welcome=WELCOME,
            read=READ,
        )
        self._server: Listener = gateway_listener(made, head_wait_s=head_wait_s)
        at = gateway_socket("127.0.0.1", 0)
        self.port = at.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(
            target=lambda: on_a_loop(self._server.serve(sockets=[at])), daemon=True
        )
        self._thread.start()
        until_s = time.monotonic() + 60
        while not self._server.started:
            assert time.monotonic() < until_s
            time.sleep(0.01)

    def stop(self, *, drain: bool = True) -> None:
        """End it: with `drain` as after SIGTERM, without as after a kill, whose commits stay under way."""
        if drain and not self.ended.is_set():
            self.tables.close(wait_s=10)
            self.logs.close(wait_s=10)
        self.ended.set()
        self._server.should_exit = True
        self._server.force_exit = not drain
        self._thread.join(timeout=60)

    def connect(self) -> socket.socket:
        """A connection, for what no HTTP client sends."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)


class World:
    """A lake with a table of orders, its catalog over HTTP, principals, and gateways.

    Attributes:
        lake: the lake.
        logs: the logs of its tables.
        catalog_url: address of the catalog.
        credentials: name of a principal to `client_id:client_secret`; `admin` is the service's own.
        tokens: name of a principal to its token.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.lake = Lake(Topic("orders", 2))
        self.logs = MemoryLogs(self.lake.sources)
        self.lake.work(self.lake.ingestor(), turns=3)
        self._stack = stack
        running = stack.enter_context(serving(self.lake.local.catalog, folder / "secrets"))
        self.catalog_url = running.inside
        self.credentials = {"admin": running.credential}
        self.tokens: dict[str, str] = {}
        self.http = stack.enter_context(httpx.Client(timeout=60))
        self._login("admin")

    def gateway(self, **options: Any) -> Gateway:
        made = Gateway(self, **options)
        self._stack.callback(made.stop)
        return made

    def principal(self, name: str, *privileges: str, on: str = "orders") -> None:
        made = self.admin("POST", "/tarn/v1/principals", {"name": name})
        self.credentials[name] = f"{made['client-id']}:{made['client-secret']}"
        self._login(name)
        if privileges:
            thing = {"kind": "table", "namespace": ["bronze"], "name": on}
            self.admin("POST", "/tarn/v1/grants", {"on": thing, "to": name, "privileges": list(privileges)})

    def revoke(self, name: str, *privileges: str) -> None:
        thing = {"kind": "table", "namespace": ["bronze"], "name": "orders"}
        body = {"on": thing, "to": name, "privileges": list(privileges)}
        self.admin("POST", "/tarn/v1/grants/revoke", body)

    def property(self, name: str, value: str) -> None:
        update = {"action": "set-properties", "updates": {name: value}}
        self.admin("POST", "/v1/namespaces/bronze/tables/orders", {"requirements": [], "updates": [update]})

    def admin(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.http.request(
            method,
            self.catalog_url + path,
            json=body,
            headers={"authorization": f"Bearer {self.tokens['admin']}"},
        )
        assert answer.status_code in (200, 204), answer.text
        return answer.json() if answer.content else None

    def post(
        self,
        gateway: Gateway,
        body: Any,
        *,
        who: str = "admin",
        table: str = TABLE,
        producer: str | None = None,
        sequence: int = 0,
        key: str | None = None,
        kind: str = "application/json",
        query: str = "",
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        sent = {"authorization": f"Bearer {self.tokens[who]}", "content-type": kind}
        if producer is not None:
            sent |= {"tarn-producer": producer, "tarn-sequence": str(sequence)}
        if key is not None:
            sent["idempotency-key"] = key
        url = f"{gateway.url}/v1/tables/{table}/rows{query}"
        more = {"content": body} if isinstance(body, bytes) else {"json": body}
        return self.http.post(url, headers=sent | (headers or {}), **more)  # type: ignore[arg-type]

    def ids(self) -> list[int]:
        """The rows of the table, as a reader sees them."""
        return sorted(row["id"] for row in self.lake.rows())

    def _login(self, name: str) -> None:
        client_id, secret = self.credentials[name].split(":")
        form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": secret}
        answer = self.http.post(f"{self.catalog_url}/v1/oauth/tokens", data=form)
        assert answer.status_code == 200, answer.text
        self.tokens[name] = answer.json()["access_token"]


LOG_SPEC = """
apiVersion: tarn/v1
kind: Ingestor
metadata: {name: NAME}
spec:
  source: {kafka: {topic: TOPIC, create: true, partitions: 2}}
  table: {namespace: bronze, name: orders}
  batching: {maxRecords: 10, maxLatencySeconds: 0.05}
"""


class LogWorld(World):
    """A world in which an ingestor brings the log of the orders into their table.

    Attributes:
        uuid: UUID of the table.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        super().__init__(folder, stack)
        self.uuid = self.lake.table().uuid
        text = LOG_SPEC.replace("NAME", "orders-log").replace("TOPIC", topic_of(self.uuid))
        self._spec = parse_spec(text, file="log.yaml")
        self.land(turns=3)

    @property
    def topic(self) -> Topic:
        """The topic with the rows."""
        return self.lake.sources.topics[topic_of(self.uuid)]

    def land(self, *, turns: int = 60) -> None:
        """Let the ingestor run: what the topic has is in the table."""
        self.lake.work(self.lake.ingestor(self._spec), turns=turns)

    def add_column(self, name: str, kind: str = "string") -> None:
        """Give the orders a further column."""
        metadata = self.lake.table().metadata
        schema, last = current_schema(metadata), int(metadata["last-column-id"])
        column = {"id": last + 1, "name": name, "required": False, "type": kind}
        updates = [
            {
                "action": "add-schema",
                "schema": {**schema, "fields": [*schema["fields"], column]},
                "last-column-id": last + 1,
            },
            {"action": "set-current-schema", "schema-id": -1},
        ]
        self.admin("POST", "/v1/namespaces/bronze/tables/orders", {"requirements": [], "updates": updates})

    def other_table(self) -> str:
        """A table whose log nobody brings in."""
        body = {
            "name": "others",
            "schema": {
                "type": "struct",
                "schema-id": 0,
                "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}],
            },
        }
        self.admin("POST", "/v1/namespaces/bronze/tables", body)
        return "bronze.others"

    @staticmethod
    @contextmanager
    def opened(folder: Path) -> Iterator[LogWorld]:
        """A world, until the end of the block."""
        with ExitStack() as stack:
            yield LogWorld(folder, stack)


@contextmanager
def a_world(folder: Path) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(folder, stack)


def row(number: int) -> dict[str, Any]:
    return {"id": number, "at": "2026-11-23T08:00:00Z"}

"""The status API as a client sees it: over a real socket, each answer validated against its schema."""

from __future__ import annotations

import http.client
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

import orjson
from jsonschema import Draft202012Validator, FormatChecker

from tarn.adapters import manifest_audit
from tarn.core.errors import TarnError
from tarn.core.table_files import WrittenList
from tarn.core.table_state import TableState
from tarn.ingest.lake_look import LakeLook
from tarn.ingest.server import StatusServer
from tarn.ingest.status import StatusRegistry
from tarn.ingest.status_api.openapi import DESCRIPTION
from tarn.ingest.status_api.routes import ROUTES
from tarn.ingest.table_look import KEPT_S, TableLook
from tarn.ingest.wiring import listed_in
from tarn.keeper.measured import Measured
from tests.support.lake import Lake

NOW_S = 1_000.0
LOOKS = ("snapshots", "files", "metadata")
"""What looks into a table, by the last part of its path."""
TIMES = FormatChecker(formats=[])


@TIMES.checks("date-time", raises=ValueError)
def _is_a_time(value: object) -> bool:
    """Whether a text is ISO 8601 in UTC."""
    return not isinstance(value, str) or (value.endswith("Z") and bool(datetime.fromisoformat(value)))


def strict(schema: Any) -> Any:
    """The schema with every object closed, so that a field that is not described is an error."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items()}
    if "properties" in found and found.get("type") == "object":
        found["additionalProperties"] = False
    return found


STRICT = strict(DESCRIPTION["components"])


def check(schema: Any, value: Any) -> None:
    """Require that a value is as a schema of the description says."""
    whole = {**strict(schema), "components": STRICT}
    wrong = [
        f"{'/'.join(map(str, error.path))}: {error.message[:300]}"
        for error in Draft202012Validator(whole, format_checker=TIMES).iter_errors(value)
    ]
    assert not wrong, wrong[:5]


def schema_of(template: str, status: int, method: str = "get") -> Any:
    """The schema of an answer."""
    answer = DESCRIPTION["paths"][template][method]["responses"][str(status)]
    return answer["content"]["application/json"]["schema"]


@dataclass(frozen=True)
class Reply:
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


@dataclass(frozen=True)
class Client:
    """Asks a status server."""

    port: int

    def ask(self, path: str, *, method: str = "GET", **headers: str) -> Reply:
        """Send a request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, headers=sent)
            answer = connection.getresponse()
            fields = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, fields, answer.read())
        finally:
            connection.close()

    def get(self, path: str, status: int = 200) -> Any:
        """The JSON of an answer that is as its path is described."""
        reply = self.ask(path)
        assert reply.status == status, reply.body
        assert reply.headers["content-type"] == "application/json"
        plain = path.partition("?")[0]
        template = next((one.path for one in ROUTES if one.pattern.fullmatch(plain)), "/v1")
        check(schema_of(template, status), reply.json)
        return reply.json

    def everything(self, *, looks: bool = False) -> dict[str, Any]:
        """Every answer there is, by path, each validated; with those that look into tables if they can."""
        found = {}
        for route in ROUTES:
            if not route.named:
                found[route.path] = self.get(route.path)
        named = {"/v1/ingestors": "ingestors", "/v1/tables": "tables"}
        for path, key in named.items():
            for entry in found[path][key]:
                at = f"{path}/{quote(entry['name'], safe='')}"
                found[at] = self.get(at)
                for more in LOOKS if key == "tables" and looks else ():
                    found[f"{at}/{more}"] = self.get(f"{at}/{more}")
        return found


@contextmanager
def served(registry: StatusRegistry, **options: Any) -> Iterator[Client]:
    """A status server of a registry, until the end of the block."""
    options = {"clock": lambda: NOW_S, "listen": "127.0.0.1", "port": 0, "version": "1"} | options
    server = StatusServer(registry, **options)
    server.start()
    try:
        yield Client(server.port)
    finally:
        server.stop()


class LakeTables:
    """Tables of a lake in memory, as `LakeLook` asks for them.

    Attributes:
        fault: what each request raises.
        asked: names of the tables that were loaded.
    """

    def __init__(self, lake: Lake, *names: str) -> None:
        self.names = list(names)
        self.fault: TarnError | None = None
        self.faults: dict[str, Exception] = {}
        self.asked: list[str] = []
        self._lake = lake

    def tables(self) -> Sequence[str]:
        """See `Tables.tables`."""
        if self.fault is not None:
            raise self.fault
        return self.names

    def state(self, table: str) -> TableState:
        """See `Tables.state`."""
        self.asked.append(table)
        if self.fault is not None:
            raise self.fault
        if table in self.faults:
            raise self.faults[table]
        return self._lake.table(table)


def now_of(lake: Lake) -> Callable[[], int]:
    """The wall clock of a lake in memory, in milliseconds since the epoch; it does not go on."""
    return lambda: int(lake.clock.now_s * 1_000) + 1_700_000_000_000


def into(lake: Lake, tables: LakeTables, **options: Any) -> TableLook:
    """A look into the tables of a lake in memory; nothing is kept from one request to the next."""
    moments = itertools.count(0.0, KEPT_S + 1.0)
    options = {
        "now_s": lambda: next(moments),
        "read": lake.objects.read,
        "manifests": manifest_audit,
    } | options
    return TableLook(tables, **options)


def look_of(lake: Lake, tables: LakeTables, **options: Any) -> LakeLook:
    """A look at a lake in memory, which has not looked yet."""
    lists: list[str] = options.pop("lists", [])

    def listed(location: str) -> WrittenList:
        lists.append(location)
        return listed_in(lake.objects, location)

    return LakeLook(
        tables,
        **{
            "listed": listed,
            "sizes": Measured(lake.store).sizes,
            "now_s": lambda: lake.clock.now_s,
            "now_ms": now_of(lake),
            "sleep": lambda _s: None,
            **options,
        },
    )

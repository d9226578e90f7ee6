"""Clients of Trino and Spark for the command line."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import requests
import trino
from trino.exceptions import Error as TrinoError
from trino.exceptions import (
    HttpError,
    TrinoConnectionError,
    TrinoDataError,
    TrinoQueryError,
    TrinoUserError,
)
from trino.types import NamedRowTuple

from tarn.adapters import spark_remote
from tarn.cli.clients.arrow_rows import no_such_time, rows_of
from tarn.cli.clients.http import connect
from tarn.cli.hostenv import TRINO_CATALOG, TRINO_USER
from tarn.cli.ports import Answer
from tarn.core.errors import (
    InvalidError,
    InvalidSettingError,
    TarnError,
    UnauthenticatedError,
    UnavailableError,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECT_S = 20.0
ROWS_MAX = 1_000
# SQLSTATE classes of an error in the statement or its data: unsupported feature, cardinality, data,
# constraint, external routine, syntax or unknown name, raised by the statement.
STATEMENTS_STATES = frozenset({"0A", "21", "22", "23", "38", "42", "P0"})
NOT_YET = frozenset({"SERVER_STARTING_UP", "SERVER_SHUTTING_DOWN", "NO_NODES_AVAILABLE"})


class Trino:
    """Client of a Trino coordinator.

    Args:
        uri: `http://host:port`.
        credential: `client_id:client_secret` of the principal `cli`; None for a Trino that asks for none.
    """

    name = "trino"

    def __init__(self, uri: str, credential: str | None = None) -> None:
        parts = urlsplit(uri)
        if not parts.hostname:
            raise InvalidSettingError(f"TARN_TRINO_URI is {uri!r}; set it to http://host:port", uri=uri)
        self._uri = uri
        self._secret = None if credential is None else credential.partition(":")[2]
        self._host, self._port, self._scheme = parts.hostname, parts.port or 8080, parts.scheme

    def find(self, table: str, row_id: str, *, timeout_s: float) -> Sequence[tuple[object, ...]]:
        """See `Reader.find`."""
        literal = row_id.replace("'", "''")
        sql = f"SELECT id, sent_at, note FROM {TRINO_CATALOG}.{table} WHERE id = '{literal}'"  # noqa: S608
        return self._run(sql, 10, timeout_s).rows

    def query(self, sql: str, *, rows_max: int = ROWS_MAX) -> Answer:
        """See `Engine.query`."""
        return self._run(sql, rows_max, CONNECT_S)

    def _run(self, sql: str, rows_max: int, timeout_s: float) -> Answer:
        connection = trino.dbapi.connect(  # type: ignore[no-untyped-call]
            host=self._host,
            port=self._port,
            user=TRINO_USER,
            extra_credential=[("secret", self._secret)] if self._secret else None,
            catalog=TRINO_CATALOG,
            http_scheme=self._scheme,
            source="tarn",
            max_attempts=1,
            request_timeout=timeout_s,
            timezone="UTC",
        )
        cursor = connection.cursor()
        try:
            cursor.execute(sql.strip().rstrip(";"))
            rows: list[Any] = cursor.fetchmany(rows_max + 1)
            columns = tuple(str(column[0]) for column in cursor.description or ())
            if len(rows) > rows_max:
                cursor.cancel()
        except KeyboardInterrupt:
            # Otherwise the server would go on working: it notices the loss of a client only minutes later.
            with contextlib.suppress(TrinoError, requests.RequestException):
                cursor.cancel()
            raise
        except TrinoUserError as error:
            raise InvalidError(
                f"Trino does not accept the statement: {error.message}", code=error.error_name
            ) from error
        except (TrinoConnectionError, HttpError, requests.RequestException) as error:
            raise UnavailableError(
                f"Trino at {self._uri} does not answer ({type(error).__name__}: {error}); "
                "is the service trino running and healthy? see docker compose logs trino",
                address=self._uri,
            ) from error
        except TrinoQueryError as error:
            if error.error_name in NOT_YET:
                raise UnavailableError(
                    f"Trino at {self._uri} is not ready ({error.error_name}: {error.message}); wait, "
                    "then see docker compose logs trino",
                    address=self._uri,
                ) from error
            raise TarnError(
                f"Trino failed: {error.error_name}: {error.message}; see docker compose logs trino",
                query_id=error.query_id,
            ) from error
        except TrinoDataError as error:
            raise no_such_time("the answer", error) from error
        except TrinoError as error:
            raise TarnError(f"Trino failed: {error}; see docker compose logs trino") from error
        finally:
            connection.close()
        return Answer(
            columns=columns,
            rows=tuple(tuple(_ours(value) for value in row) for row in rows[:rows_max]),
            truncated=len(rows) > rows_max,
        )


_REFUSAL = re.compile(r"(No|Invalid) authentication token( provided)?")


class Spark:
    """Client of a Spark Connect server.

    Args:
        remote: `sc://host:port`, with parameters such as the token.
    """

    name = "spark"

    def __init__(self, remote: str) -> None:
        parts = urlsplit(remote)
        if parts.scheme != "sc" or not parts.hostname:
            raise InvalidSettingError(
                f"TARN_SPARK_REMOTE is {remote.partition('/;')[0]!r}; set it to sc://host:port",
                remote=remote.partition("/;")[0],
            )
        self._remote = remote
        self._host, self._port = parts.hostname, parts.port or 15002
        self._address = f"sc://{self._host}:{self._port}"

    def find(self, table: str, row_id: str, *, timeout_s: float) -> Sequence[tuple[object, ...]]:
        """See `Reader.find`."""
        return self._run(
            f"SELECT id, sent_at, note FROM {TRINO_CATALOG}.{table} WHERE id = :id",  # noqa: S608
            10,
            {"id": row_id},
        ).rows

    def query(self, sql: str, *, rows_max: int = ROWS_MAX) -> Answer:
        """See `Engine.query`."""
        return self._run(sql, rows_max, None)

    def _run(self, sql: str, rows_max: int, arguments: dict[str, str] | None) -> Answer:
        # The client itself would retry for ten minutes if nothing listened.
        connect(self._host, self._port, service=self.name, timeout_s=CONNECT_S)
        # The import takes over a second: only commands that use Spark pay for it.
        from grpc import RpcError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        tag = f"tarn-{uuid.uuid4().hex}"
        try:
            with self._session() as session:
                session.addTag(tag)
                try:
                    frame = session.sql(sql.strip().rstrip(";"), args=arguments)
                    found = frame.limit(rows_max + 1).toArrow() if frame.columns else None
                except KeyboardInterrupt:
                    with contextlib.suppress(RpcError, PySparkException):
                        session.interruptTag(tag)
                    raise
        except (RpcError, PySparkException) as error:
            text = spark_reason(error)
            if (refusal := _REFUSAL.search(str(error))) is not None:
                raise UnauthenticatedError(
                    f"Spark Connect at {self._address} refuses this client: {refusal[0]}; run scripts/up, "
                    "which completes the secrets, then `docker compose restart spark`",
                    address=self._address,
                ) from error
            if is_statements_fault(error):
                raise InvalidError(f"Spark does not accept the statement: {text}") from error
            if isinstance(error, RpcError) or "UNAVAILABLE" in text or "RETRIES_EXCEEDED" in text:
                raise UnavailableError(
                    f"Spark Connect at {self._address} does not answer ({text}); is the service spark "
                    "running and healthy? see docker compose logs spark",
                    address=self._address,
                ) from error
            raise TarnError(f"Spark failed: {text}; see docker compose logs spark") from error
        if found is None:
            return Answer(columns=(), rows=())
        rows = tuple(rows_of(found.column_names, found.columns))
        return Answer(columns=tuple(found.column_names), rows=rows[:rows_max], truncated=len(rows) > rows_max)

    def _session(self) -> AbstractContextManager[SparkSession]:
        """Context manager: a session for this statement only, always released on the server afterwards."""
        return spark_remote.session(self._remote, {"spark.sql.session.timeZone": "UTC"})


def _ours(value: Any) -> object:
    """Convert Trino's row type: to a dict, or to a tuple if names are missing or occur twice."""
    if isinstance(value, NamedRowTuple):
        names: list[str | None] = value.__annotations__["names"]
        values = [_ours(item) for item in value]
        if None in names or len(set(names)) < len(names):
            return tuple(values)
        return dict(zip(names, values, strict=True))
    if isinstance(value, list):
        return [_ours(item) for item in value]
    if isinstance(value, dict):
        return {key: _ours(item) for key, item in value.items()}
    return value


def is_statements_fault(error: BaseException) -> bool:
    """Whether Spark rejects the statement or its data, by the SQLSTATE, rather than failing itself."""
    state = getattr(error, "getSqlState", lambda: None)() or _SQLSTATE.search(str(error))
    found = state if isinstance(state, str) else state[1] if state else ""
    return found[:2] in STATEMENTS_STATES


def spark_reason(error: BaseException) -> str:
    """Return Spark's message on one line, without statement, caret, plan and stack trace."""
    text = str(error).split("JVM stacktrace")[0]
    text, _, context = text.partition("== SQL")
    where = _WHERE.match(context)
    text = _PLAN.split(text)[0]
    line = " ".join(text.split())
    return (f"{line} ({where[1]})" if where and where[1] not in line else line)[:500]


_SQLSTATE = re.compile(r"SQLSTATE: (\w{5})")
_WHERE = re.compile(r" \((line \d+, position \d+)\)")
# The unresolved plan follows the position in the statement, on lines of its own.
_PLAN = re.compile(r";?\s*\n\s*['+:].*", re.DOTALL)

"""Errors of engines as users see them: one line with the next step, and an exit code of their own."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from typing import Any

import pyarrow as pa
import pytest

from tarn.cli.clients import engines
from tarn.cli.clients.duck import Duck
from tarn.cli.clients.engines import Spark, Trino
from tarn.cli.main import main
from tarn.core.credentials import files_of
from tarn.core.errors import InvalidError, TarnError, UnauthenticatedError, UnavailableError
from tarn.core.exit_codes import exit_code

NOBODY = "127.0.0.1:1"


def trino_error(name: str, kind: str, message: str) -> dict[str, Any]:
    """A failure in Trino's JSON format."""
    error = {
        "message": message,
        "errorCode": 1,
        "errorName": name,
        "errorType": kind,
        "failureInfo": {"type": "x", "message": message},
    }
    return {
        "id": "20260301_1",
        "infoUri": "http://127.0.0.1/",
        "stats": {"state": "FAILED"},
        "error": error,
        "warnings": [],
    }


@contextmanager
def trino_saying(body: dict[str, Any], status: int = 200) -> Iterator[str]:
    """A server that gives every statement the same response."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("SYNTAX_ERROR", "line 1:1: mismatched input 'SELEC'"),
        ("TABLE_NOT_FOUND", "line 1:15: Table 'tarn.ops.nothing' does not exist"),
    ],
)
def test_what_trino_calls_a_user_error_is_told_in_its_words(name: str, message: str):
    with (
        trino_saying(trino_error(name, "USER_ERROR", message)) as uri,
        pytest.raises(InvalidError) as caught,
    ):
        Trino(uri).query("SELEC 1")
    assert caught.value.message == f"Trino does not accept the statement: {message}"
    assert exit_code(caught.value) == 2


@pytest.mark.long
def test_a_trino_that_still_starts_is_waited_for_by_the_user():
    body = trino_error("SERVER_STARTING_UP", "INTERNAL_ERROR", "Trino server is still initializing")
    with trino_saying(body) as uri, pytest.raises(UnavailableError, match=r"is not ready.*wait") as caught:
        Trino(uri).query("SELECT 1")
    assert exit_code(caught.value) == 3


@pytest.mark.long
def test_a_trino_that_fails_names_its_log():
    body = trino_error("GENERIC_INTERNAL_ERROR", "INTERNAL_ERROR", "oops")
    with (
        trino_saying(body) as uri,
        pytest.raises(TarnError, match=r"oops; see docker compose logs trino") as c,
    ):
        Trino(uri).query("SELECT 1")
    assert exit_code(c.value) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("engine", "variables", "named"),
    [
        ("trino", {"TARN_TRINO_URI": f"http://{NOBODY}"}, "docker compose logs trino"),
        ("spark", {"TARN_SPARK_REMOTE": f"sc://{NOBODY}"}, "docker compose logs spark"),
        ("duckdb", {"TARN_CATALOG_URI": f"http://{NOBODY}"}, "docker compose logs catalog"),
    ],
)
def test_an_engine_that_is_away_is_one_line_and_exit_code_3(
    engine, variables, named, monkeypatch, tmp_path, capsys
):
    for name in files_of("cli"):
        (tmp_path / name).write_text("a:b")
    for name, value in {"TARN_SECRETS_DIR": str(tmp_path), **variables}.items():
        monkeypatch.setenv(name, value)
    codes: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        main(["sql", "SELECT count(*) FROM ops.canary", "--engine", engine], end=_end(codes))
    told = capsys.readouterr()
    assert codes == [3]
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert told.err.startswith("tarn: ")
    assert NOBODY in told.err
    assert named in told.err


def test_spark_away_is_told_at_once():
    with pytest.raises(UnavailableError, match="docker compose logs spark"):
        Spark(f"sc://{NOBODY}").query("SELECT 1")


def test_a_token_that_spark_does_not_take_is_a_refusal(monkeypatch):
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    said = '<_InactiveRpcError:\n\tstatus = UNAUTHENTICATED\n\tdetails = "Invalid authentication token"\n>'

    def refuse(_: Spark):
        raise SparkConnectGrpcException(said)

    monkeypatch.setattr(Spark, "_session", refuse)
    monkeypatch.setattr("tarn.cli.clients.engines.connect", lambda *_, **__: None)
    with pytest.raises(
        UnauthenticatedError, match="refuses this client: Invalid authentication token; "
    ) as c:
        Spark("sc://spark:15002/;authorization=Bearer%20secret").query("SELECT 1")
    assert exit_code(c.value) == 4
    assert "secret" not in str(c.value).replace("secrets", "")


def _end(codes: list[int]):
    def end(code: int):
        codes.append(code)
        raise KeyboardInterrupt

    return end


@pytest.mark.long
@pytest.mark.parametrize("credential", ["cli-1:s-_x", None])
def test_trino_gets_the_secret_of_the_command_line_where_there_is_one(credential: str | None) -> None:
    sent: list[tuple[str | None, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent.append((self.headers.get("X-Trino-User"), self.headers.get("X-Trino-Extra-Credential")))
            self.send_response(401)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with pytest.raises(UnavailableError, match="401"):
            Trino(f"http://127.0.0.1:{server.server_address[1]}", credential).query("SELECT 1")
    finally:
        server.shutdown()
        server.server_close()
    assert sent == [("cli", "secret=s-_x" if credential else None)]


@pytest.mark.long
def test_ctrl_c_calls_off_the_query_in_trino():
    """Otherwise Trino keeps working for minutes, on all cores, for a client that is gone."""
    called_off: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.answer(200, {"state": "QUEUED"})

        def do_GET(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            stopped.wait(40)
            self.answer(200, {"state": "RUNNING"})

        def do_DELETE(self) -> None:
            called_off.append(self.path)
            stopped.set()
            self.answer(204, None)

        def answer(self, status: int, stats: dict[str, str] | None) -> None:
            uri = f"http://127.0.0.1:{server.server_address[1]}/v1/statement/20260301_1/1"
            body = {"id": "20260301_1", "infoUri": uri, "nextUri": uri, "stats": stats, "warnings": []}
            data = b"" if stats is None else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    stopped = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            Trino(f"http://127.0.0.1:{server.server_address[1]}").query("SELECT 1")
    finally:
        stopped.set()
        server.shutdown()
        server.server_close()
    assert called_off == ["/v1/statement/20260301_1/1"]


def test_ctrl_c_calls_off_this_statement_in_spark_and_no_other(monkeypatch):
    told: list[tuple[str, str]] = []

    class Session:
        def addTag(self, tag: str) -> None:
            told.append(("tag", tag))

        def sql(self, text: str, args: object) -> object:
            raise KeyboardInterrupt

        def interruptTag(self, tag: str) -> None:
            told.append(("interrupt", tag))

    monkeypatch.setattr(engines, "connect", lambda *a, **more: None)
    monkeypatch.setattr(Spark, "_session", lambda self: nullcontext(Session()))
    with pytest.raises(KeyboardInterrupt):
        Spark("sc://spark:15002").query("SELECT 1")
    (first, tag), (second, interrupted) = told
    assert (first, second, tag) == ("tag", "interrupt", interrupted)


def spark_answering(monkeypatch: pytest.MonkeyPatch, table: pa.Table) -> Spark:
    class Frame:
        columns = tuple(table.column_names)

        def limit(self, n: int) -> Frame:
            return self

        def toArrow(self) -> pa.Table:
            return table

    class Session:
        def addTag(self, tag: str) -> None:
            """Do nothing."""

        def sql(self, text: str, args: object) -> Frame:
            return Frame()

    monkeypatch.setattr(engines, "connect", lambda *a, **more: None)
    monkeypatch.setattr(Spark, "_session", lambda self: nullcontext(Session()))
    return Spark("sc://spark:15002")


def test_a_map_of_spark_is_an_object_as_in_trino(monkeypatch):
    table = pa.table({"m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32()))})
    assert spark_answering(monkeypatch, table).query("SELECT 1").rows == (({"a": 1},),)


def test_a_text_that_is_not_utf8_is_named_as_that(monkeypatch):
    ends = pa.array([0, 1], pa.int32()).buffers()[1]
    text = pa.Array.from_buffers(pa.string(), 1, [None, ends, pa.py_buffer(b"\xe9")])
    with pytest.raises(
        InvalidError, match=r"column 't' has a text that is not UTF-8 .*; leave the column out"
    ):
        spark_answering(monkeypatch, pa.table({"t": text})).query("SELECT 1")


@pytest.mark.long
def test_a_time_that_python_does_not_have_is_named_by_each_engine(monkeypatch):
    """Iceberg's calendar is longer than Python's."""
    far = pa.table({"n": [1], "at": pa.array([3_000_000], pa.date32())})
    with pytest.raises(InvalidError, match=r"column 'at' has a date or time outside the years 1 to 9999"):
        spark_answering(monkeypatch, far).query("SELECT 1")
    with pytest.raises(InvalidError, match=r"has a date or time outside the years 1 to 9999"):
        Duck(None).query("SELECT DATE '10000-01-01'")
    date = {"name": "at", "type": "date", "typeSignature": {"rawType": "date", "arguments": []}}
    body = {
        "id": "q",
        "infoUri": "",
        "columns": [date],
        "data": [["10000-01-01"]],
        "stats": {"state": "FINISHED"},
    }
    with (
        trino_saying(body) as uri,
        pytest.raises(InvalidError, match=r"'10000-01-01'.*ask for it as text: CAST") as caught,
    ):
        Trino(uri).query("SELECT 1")
    assert "logs" not in caught.value.message

"""The REST client: every commit ends in one of three outcomes; the client never resends on its own."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import urllib3

from tarn.adapters.catalog_client import RestCatalog
from tarn.core.errors import (
    AlreadyExistsError,
    ForbiddenError,
    InvalidError,
    NoSuchTableError,
    NotFoundError,
    TarnError,
    UnauthenticatedError,
    UnavailableError,
)
from tarn.core.outcome import Conflict, Unknown
from tarn.core.table_catalog import CommitDone, TableName
from tarn.core.table_state import CommitRequest

TABLE = TableName(("bronze", "eu"), "orders 1")
PATH = "/v1/lake/namespaces/bronze%1Feu/tables/orders%201"
METADATA = {"metadata": {"table-uuid": "u", "location": "s3://tarn/t", "refs": {}, "snapshots": []}}
REQUEST = CommitRequest(requirements=[{"type": "x"}], updates=[{"action": "y"}], snapshot_id=1)


class Script:
    """The server's scripted responses to table requests: (status, body), or a kind of misbehaviour."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        self.tokens = 0
        self.token_status = 200


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def catalog(script: Script) -> Iterator[RestCatalog]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None:
            """Log nothing."""

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.path == "/v1/oauth/tokens":
                script.tokens += 1
                self.reply(script.token_status, {"access_token": f"t{script.tokens}", "expires_in": 3600})
                return
            if self.path.startswith("/v1/config"):
                self.reply(200, {"defaults": {"prefix": "other"}, "overrides": {"prefix": "lake"}})
                return
            headers = {k.lower(): v for k, v in self.headers.items()}
            script.seen.append((self.command, self.path, headers, body))
            answer = script.answers.pop(0) if script.answers else (200, METADATA)
            if answer == "cut":
                self.close_connection = True
                self.connection.close()
                return
            if answer == "half":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{")
                self.close_connection = True
                return
            if answer == "silent":
                silence.wait(110)
                self.close_connection = True
                return
            self.reply(*answer)  # status, body and maybe headers

        do_GET = do_POST = handle_any  # noqa: N815 - the library's names

        def reply(self, status: int, body: Any, more: dict[str, str] | None = None) -> None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in (more or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    silence = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_arguments: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    made = RestCatalog(
        f"http://127.0.0.1:{server.server_address[1]}",
        warehouse="tarn",
        credential=lambda: "me:secret",
        read_timeout_s=60,
    )
    yield made
    silence.set()
    made._http.close()
    server.shutdown()
    server.server_close()
    thread.join()


def error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "E", "code": 0}}


def test_a_commit_goes_to_the_prefix_with_its_key_and_comes_back_as_a_state(
    script: Script, catalog: RestCatalog
) -> None:
    outcome = catalog.commit(TABLE, REQUEST, key="k-1")
    assert isinstance(outcome, CommitDone)
    assert outcome.state.uuid == "u"
    ((method, path, headers, body),) = script.seen
    assert (method, path) == ("POST", PATH)
    assert headers["idempotency-key"] == "k-1"
    assert headers["authorization"] == "Bearer t1"
    assert json.loads(body) == {"requirements": [{"type": "x"}], "updates": [{"action": "y"}]}


def test_a_commit_that_was_overtaken_twice_asks_for_a_turn_and_brings_the_token_that_it_was_given(
    script: Script, catalog: RestCatalog
) -> None:
    refused = (409, error("overtaken"))
    script.answers = [refused, refused, (*refused, {"tarn-turn": "t-1"}), (200, METADATA)]
    outcomes = [
        catalog.commit(TABLE, replace(REQUEST, overtaken=overtaken, turn=turn), key="k")
        for overtaken, turn in ((0, None), (1, None), (2, None), (3, "t-1"))
    ]
    assert [seen[2].get("tarn-turn") for seen in script.seen] == [None, None, "next", "t-1"]
    assert outcomes[:3] == [
        Conflict(reason="overtaken"),
        Conflict(reason="overtaken"),
        Conflict(reason="overtaken", turn="t-1"),
    ]


@pytest.mark.parametrize("status", [500, 502, 503, 504, 429, 408])
def test_an_answer_that_leaves_it_open_is_unknown(status: int, script: Script, catalog: RestCatalog) -> None:
    script.answers = [(status, error("try later"))]
    outcome = catalog.commit(TABLE, REQUEST, key="k")
    assert isinstance(outcome, Unknown)
    assert str(status) in outcome.reason
    assert len(script.seen) == 1, "nothing is sent again by the transport"


def hasty(catalog: RestCatalog) -> None:
    """Wait no longer than a second for an answer; others than `silent` come when the machine has time."""
    catalog._http._timeout = urllib3.Timeout(connect=60, read=1)


@pytest.mark.parametrize("answer", ["cut", "half", "silent", (200, b"<html>"), (200, b"{}")])
def test_no_answer_and_half_an_answer_are_unknown(answer: Any, script: Script, catalog: RestCatalog) -> None:
    if answer == "silent":
        hasty(catalog)
    script.answers = [answer]
    assert isinstance(catalog.commit(TABLE, REQUEST, key="k"), Unknown)
    assert len(script.seen) == 1, "nothing is sent again by the transport"


def test_a_409_is_a_conflict(script: Script, catalog: RestCatalog) -> None:
    script.answers = [(409, error("expected snapshot 7, found 9"))]
    assert catalog.commit(TABLE, REQUEST, key="k") == Conflict(reason="expected snapshot 7, found 9")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (302, InvalidError),
        (400, InvalidError),
        (403, ForbiddenError),
        (404, NoSuchTableError),
        (422, InvalidError),
    ],
)
def test_what_waiting_does_not_help_is_raised(
    status: int, kind: type[Exception], script: Script, catalog: RestCatalog
) -> None:
    script.answers = [(status, error("not so"))]
    with pytest.raises(kind, match="not so"):
        catalog.commit(TABLE, REQUEST, key="k")


@pytest.mark.parametrize("clock", ["_clock", "_wall"])
def test_a_token_is_renewed_by_the_clock_that_goes_on_while_the_machine_sleeps_too(
    clock: str, catalog: RestCatalog
) -> None:
    now_s = getattr(catalog, clock)()
    assert catalog.token() == catalog.token() == "t1"
    setattr(catalog, clock, lambda: now_s + 3_600)
    assert catalog.token() == "t2"
    setattr(catalog, clock, lambda: now_s - 3_600)
    assert catalog.token() == "t2"


def test_a_process_that_was_forked_does_not_wait_for_a_thread_of_its_parent(
    catalog: RestCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    asks = threading.Thread(target=lambda: found.append(catalog.token()), daemon=True)
    with catalog._lock:  # a thread was asking for a token at the fork
        monkeypatch.setattr(os, "getpid", lambda: -1)
        asks.start()
        asks.join(10)
        assert found == ["t1"]


def test_a_token_that_is_no_longer_taken_is_replaced_once(script: Script, catalog: RestCatalog) -> None:
    script.answers = [(401, error("expired"))]
    assert isinstance(catalog.commit(TABLE, REQUEST, key="k"), CommitDone)
    assert [headers["authorization"] for _, _, headers, _ in script.seen] == ["Bearer t1", "Bearer t2"]
    script.answers = [(401, error("no")), (401, error("no"))]
    with pytest.raises(UnauthenticatedError, match="rejects this client's tokens"):
        catalog.commit(TABLE, REQUEST, key="k")
    assert len(script.seen) == 4


def test_a_refused_credential_names_the_secret_file_and_not_the_secret(
    script: Script, catalog: RestCatalog
) -> None:
    script.token_status = 401
    with pytest.raises(UnauthenticatedError, match="catalog_credential") as caught:
        catalog.load(TABLE)
    assert "'me'" in caught.value.message
    assert "secret:" not in caught.value.message
    assert script.seen == []


@pytest.mark.parametrize("answer", [(500, error("oops")), (503, b""), "cut", "silent", (200, b"no json")])
def test_a_load_without_a_usable_answer_is_waited_for(
    answer: Any, script: Script, catalog: RestCatalog
) -> None:
    if answer == "silent":
        hasty(catalog)
    script.answers = [answer]
    with pytest.raises(UnavailableError):
        catalog.load(TABLE)
    assert catalog.load(TABLE).uuid == "u"


def test_a_table_that_is_not_there_or_there_already(script: Script, catalog: RestCatalog) -> None:
    script.answers = [(404, error("gone")), (409, error("there"))]
    with pytest.raises(NoSuchTableError, match=r"bronze\.eu\.orders 1"):
        catalog.load(TABLE)
    with pytest.raises(AlreadyExistsError):
        catalog.create(TABLE, {"schema": {}})
    assert json.loads(script.seen[-1][3]) == {"name": "orders 1", "schema": {}}


GONE, THERE, DONE = (404, error("gone")), (409, error("there")), (200, {})


@pytest.mark.parametrize(
    ("answers", "asked"),
    [
        ([DONE], [3]),
        ([THERE], [3]),
        ([GONE, DONE, DONE], [3, 2, 3]),
        ([GONE, THERE, THERE], [3, 2, 3]),
        ([GONE, GONE, DONE, DONE, DONE], [3, 2, 1, 2, 3]),
    ],
    ids=["made", "there", "without its parent", "others are faster", "without any"],
)
def test_a_namespace_is_made_with_those_above_it_only_if_they_are_missing(
    script: Script, catalog: RestCatalog, answers: list[Any], asked: list[int]
) -> None:
    """To ask for one that is there takes a right on what contains it, which the principal may lack."""
    script.answers = list(answers)
    catalog.create_namespace(("bronze", "eu", "north"))
    assert [len(json.loads(body)["namespace"]) for _, _, _, body in script.seen] == asked


@pytest.mark.parametrize(
    ("answers", "asked", "kind", "message"),
    [
        ([(403, error("no"))], 1, ForbiddenError, r"may not create namespace bronze\.eu: no"),
        ([GONE, (403, error("no"))], 2, ForbiddenError, "may not create namespace bronze: no"),
        ([GONE, GONE], 2, NotFoundError, "could not create namespace bronze: gone"),
        ([GONE, DONE, GONE], 3, NotFoundError, r"could not create namespace bronze\.eu: gone"),
    ],
)
def test_a_namespace_that_cannot_be_made_is_named(
    script: Script, catalog: RestCatalog, answers: list[Any], asked: int, kind: type[TarnError], message: str
) -> None:
    script.answers = list(answers)
    with pytest.raises(kind, match=message):
        catalog.create_namespace(("bronze", "eu"))
    assert len(script.seen) == asked


def test_a_catalog_that_is_away_is_waited_for() -> None:
    away = RestCatalog("http://127.0.0.1:9", warehouse="tarn", credential=lambda: "me:secret")
    with pytest.raises(UnavailableError, match="does not answer"):
        away.load(TABLE)
    with pytest.raises(UnavailableError, match="does not answer"):
        away.commit(TABLE, REQUEST, key="k")


def test_a_catalog_that_is_away_is_said_in_one_clause() -> None:
    """It is read on the page, once for each ingestor: no repr of a connection pool."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        away = RestCatalog(uri, warehouse="lake", credential=lambda: "c:s")
        with pytest.raises(UnavailableError) as found:
            away.token()
    assert found.value.message == (
        f"could not get a token: the catalog at {uri} does not answer: Connection refused; wait"
    )

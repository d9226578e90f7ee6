"""Commands on principals, roles and grants, against the real catalog over HTTP."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tarn.adapters.catalog_client import RestCatalog
from tarn.adapters.lent_credentials import LentCredentials
from tarn.adapters.store import MemoryStore
from tarn.cli import wiring
from tarn.cli.access import parse_on
from tarn.cli.clients.access import AccessClient
from tarn.cli.main import main
from tarn.core.errors import ForbiddenError, NoSuchTableError, OutcomeUnknownError, UnauthenticatedError
from tarn.core.naming import GRANTS_KEY
from tarn.core.table_catalog import TableName
from tarn.ingest.committer import Committer, Ports
from tarn.ingest.wiring import uuid7
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.state.register import RetryPolicy
from tarn_catalog.testing.faulty_store import Fault, FaultyStore
from tarn_catalog.testing.server import serving
from tests.contract.catalog.access_world import ROOTS, SCHEMA


class Ended(BaseException):
    pass


class World:
    def __init__(self, store: FaultyStore, uri: str, credential: str) -> None:
        self.store = store
        self.uri = uri
        self.credential = credential

    def client(self, credential: str | None = None) -> RestCatalog:
        return RestCatalog(self.uri, warehouse="tarn", credential=lambda: credential or self.credential)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    store = FaultyStore(MemoryStore())
    core = Catalog(
        store, ROOTS, patience=RetryPolicy(attempts_max=2, sleep=lambda _: None), grants_max_age_s=0
    )
    # The server logs to the stdout of the test's process, which here is the command's.
    with serving(core, tmp_path / "secrets") as running, capture_logs():
        found = World(store, running.published, running.credential)
        admin = found.client()
        admin.create_namespace(("shop", "eu"))
        admin.create(TableName(("shop", "eu"), "orders"), {"schema": SCHEMA})

        def access(_settings: object, credential: str | None = None) -> AccessClient:
            return AccessClient(found.client(credential).call)

        monkeypatch.setattr(wiring, "access", access)
        yield found


def run(*words: str) -> int:
    codes: list[int] = []

    def end(code: int) -> Any:
        codes.append(code)
        raise Ended

    with pytest.raises(Ended):
        main(words, end=end)
    return codes[0]


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert run(*words, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_from_a_new_principal_to_its_end(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    orders = TableName(("shop", "eu"), "orders")
    assert run("principal", "create", "bob") == 0
    *_, credential = capsys.readouterr().out.split()
    bob = world.client(credential)
    with pytest.raises(ForbiddenError, match=r"bob may not load table shop\.eu\.orders"):
        bob.load(orders)
    assert run("grant", "read", "table:shop.eu.orders", "bob") == 0
    assert capsys.readouterr().out == "bob: READ on table:shop.eu.orders\n"
    bob.load(orders)
    assert run("grant", "write,Manage", "table:shop.eu.orders", "bob") == 0
    assert run("revoke", "read,manage", "table:shop.eu.orders", "bob") == 0
    out = capsys.readouterr().out.splitlines()
    assert out == [
        "bob: MANAGE, READ, WRITE on table:shop.eu.orders",
        "bob: WRITE on table:shop.eu.orders",
    ]
    found = printed(capsys, "grants", "table:shop.eu.orders")
    assert found["owner"] == "tester"
    assert [(one["to"], one["privileges"]) for one in found["grants"]] == [("bob", ["WRITE"])]
    assert run("revoke", "write", "table:shop.eu.orders", "bob") == 0
    assert capsys.readouterr().out == "bob: nothing on table:shop.eu.orders\n"
    with pytest.raises(ForbiddenError):
        bob.load(orders)
    assert run("principal", "drop", "bob") == 0
    with pytest.raises(UnauthenticatedError):
        bob.load(orders)


def test_who_drops_the_last_principal_learns_that_sql_is_open_again(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("bob", "ada"):
        assert run("principal", "create", name) == 0
    capsys.readouterr()
    assert run("principal", "drop", "bob") == 0
    assert capsys.readouterr().out == "principal bob is dropped\n"
    assert run("principal", "drop", "ada") == 0
    first, *more = capsys.readouterr().out.splitlines()
    assert first == "principal ada is dropped"
    assert "Trino no longer asks anybody for a secret" in " ".join(more)


def test_a_credential_is_one_word_however_narrow_the_terminal(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    orders = TableName(("shop", "eu"), "orders")
    for words in (("create", "bob"), ("rotate", "bob")):
        assert run("principal", *words) == 0
        *_, credential = capsys.readouterr().out.split()
        with pytest.raises(ForbiddenError, match="bob may not load"):
            world.client(credential).load(orders)


def test_a_table_is_created_with_its_namespace_by_who_may_create_in_the_one_above(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """`shop` is there, and to create it would take a right on the warehouse."""
    assert run("principal", "create", "bob") == 0
    *_, credential = capsys.readouterr().out.split()
    assert run("grant", "create,write", "namespace:shop", "bob") == 0
    for name in (("shop", "asia"), ("shop", "africa", "north"), ("home",)):
        table = TableName(name, "orders")
        ports = Ports(new_key=uuid7, new_snapshot_id=lambda: 1)
        committer = Committer(world.client(credential), table, ports=ports)
        if name == ("home",):
            with pytest.raises(ForbiddenError, match="bob may not"):
                committer.ensure({"schema": SCHEMA})
        else:
            assert committer.ensure({"schema": SCHEMA}).uuid == world.client().load(table).uuid


def test_a_credential_is_lent_to_ingest_and_taken_back(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lent = LentCredentials(MemoryStore())
    monkeypatch.setattr(wiring, "lent_credentials", lambda _settings: lent)

    def lend(text: str, *words: str) -> int:
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        return run("principal", "lend", *words)

    assert run("principal", "create", "bob") == 0
    made = capsys.readouterr().out
    *_, credential = made.split()
    assert lend(made, "bob") == 0
    assert lent.get("bob") == credential
    assert credential not in capsys.readouterr().out
    assert lend(made, "alice") == 2
    assert "this is the credential of bob, and not of alice" in capsys.readouterr().err
    assert lend(credential.replace(":", ":x"), "bob") == 4
    said = capsys.readouterr().err
    assert "refuses client" in said
    assert credential.partition(":")[2] not in said
    for text in ("", "bob\n", "a b:c d\n", f"{credential}\nand more\n"):
        assert lend(text, "bob") == 2
        assert "is no credential" in capsys.readouterr().err
    assert lent.get("bob") == credential
    with pytest.raises(UnauthenticatedError):
        lent.get("alice")
    capsys.readouterr()
    assert lend("", "bbo", "--take-back") == 1
    said = capsys.readouterr()
    assert "ingest was lent no credential of 'bbo', so nothing was taken back" in said.err
    assert not said.out
    assert lent.get("bob") == credential
    for _ in range(2):
        assert lend("", "bob", "--take-back") == 0, "an answer may be lost: it is repeated"
    with pytest.raises(UnauthenticatedError):
        lent.get("bob")
    for name in ("../../specs/v1/ingestors/orders", "a/b", ""):
        assert lend("", name, "--take-back") == 2
        assert f"no ingestor can run as {name!r}" in capsys.readouterr().err


def test_a_revoke_says_that_an_owner_stays_one(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    made = printed(capsys, "principal", "create", "bob")
    on = "table:shop.eu.orders"
    for words in (("grant", "manage", on, "bob"), ("revoke", "manage", on, "bob")):
        assert run(*words) == 0
        assert capsys.readouterr().err == ""
    assert run("grant", "manage", on, "bob") == 0
    # MANAGE is enough to become the owner, which outlives it.
    AccessClient(world.client(f"{made['client-id']}:{made['client-secret']}").call).change_owner(
        parse_on(on), "bob"
    )
    capsys.readouterr()
    assert run("revoke", "manage", on, "bob") == 0
    out, err = capsys.readouterr()
    assert out == f"bob: nothing on {on}\n"
    assert err.startswith(f"note: bob owns {on} and may still do everything with it")
    assert f"tarn owner {on} --to" in err
    assert run("owner", on, "--to", "tester") == 0
    capsys.readouterr()
    assert run("revoke", "manage", on, "bob") == 0
    assert capsys.readouterr().err == ""


def test_roles_give_what_was_granted_to_them(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    made = printed(capsys, "principal", "create", "bob")
    bob = world.client(f"{made['client-id']}:{made['client-secret']}")
    for words in (
        ("role", "create", "staff"),
        ("role", "add", "staff", "bob"),
        ("grant", "read,create", "namespace:shop", "staff"),
        ("grant", "create", "warehouse", "staff"),
    ):
        assert run(*words) == 0
    capsys.readouterr()
    bob.load(TableName(("shop", "eu"), "orders"))
    with pytest.raises(NoSuchTableError):
        bob.load(TableName(("shop", "eu"), "none"))
    assert printed(capsys, "role", "list") == [
        {"name": "admin", "members": []},
        {"name": "staff", "members": ["bob"]},
    ]
    assert run("role", "list") == 0
    assert run("grants") == 0
    assert run("principal", "list") == 0
    out = capsys.readouterr().out
    for line in ("staff  bob", "namespace:shop  staff  CREATE, READ", "warehouse       staff  CREATE"):
        assert line in out
    assert "built in" in out
    assert printed(capsys, "principal", "list")[1]["name"] == "bob"
    assert run("role", "remove", "staff", "bob") == 0
    with pytest.raises(ForbiddenError):
        bob.load(TableName(("shop", "eu"), "orders"))
    assert run("role", "drop", "staff") == 0
    capsys.readouterr()
    assert printed(capsys, "grants")["grants"] == []


def test_whoami_shows_the_command_lines_own_principal(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("whoami") == 0
    assert capsys.readouterr().out.startswith("tester (tester), roles: admin")
    assert printed(capsys, "whoami")["grants"] == []
    assert run("grants", "warehouse") == 0
    assert capsys.readouterr().out.startswith("owner: nobody")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("grant", "own", "warehouse", "bob"), 2, "'own' is not a list of privileges"),
        (("grant", "read,", "warehouse", "bob"), 2, "is not a list of privileges"),
        (("grant", "read", "shop.orders", "bob"), 2, "write warehouse, namespace:NAME"),
        (("grant", "read", "table:orders", "bob"), 2, "write warehouse, namespace:NAME"),
        (("grant", "read", "cake:a.b", "bob"), 2, "write warehouse, namespace:NAME"),
        (("grants", "namespace:a..b"), 2, "write warehouse, namespace:NAME"),
        (("grants", "namespace:a\nb"), 2, "write warehouse, namespace:NAME"),
        (("grant", "create", "table:shop.eu.orders", "tom"), 2, "Cannot grant CREATE on a table"),
        (("grant", "read", "warehouse", "bob"), 1, "has the name bob"),
        (("grant", "read", "table:shop.eu.none", "tom"), 1, "Table does not exist: shop.eu.none"),
        (("principal", "create", "a b"), 2, "use 1 to 64 letters"),
        (("principal", "create", "tester"), 1, "A principal or role has the name tester already"),
        (("principal", "drop", "none"), 1, "Principal does not exist: none"),
        (("role", "drop", "admin"), 2, "Cannot drop the role admin"),
    ],
)
def test_mistakes_are_named_with_an_exit_code(
    world: World, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, message: str
) -> None:
    assert run("principal", "create", "tom") == 0
    found = run(*words)
    error = capsys.readouterr().err
    assert message in error
    assert found == code, error


def test_names_with_spaces_and_quotes_are_granted_on(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    admin = world.client()
    admin.create_namespace(("my shop",))
    admin.create(TableName(("my shop",), 'bob\'s "orders"'), {"schema": SCHEMA})
    on = 'table:my shop.bob\'s "orders"'
    made = printed(capsys, "principal", "create", "bob")
    bob = world.client(f"{made['client-id']}:{made['client-secret']}")
    with pytest.raises(ForbiddenError):
        bob.load(TableName(("my shop",), 'bob\'s "orders"'))
    assert run("grant", "read,manage", on, "bob") == 0
    assert capsys.readouterr().out == f"bob: MANAGE, READ on {on}\n"
    bob.load(TableName(("my shop",), 'bob\'s "orders"'))
    assert run("grants", on) == 0
    assert on in capsys.readouterr().out
    assert run("owner", on, "--to", "bob") == 0
    assert run("revoke", "manage", on, "bob") == 0
    assert "`tarn owner 'table:my shop.bob'\"'\"'s \"orders\"' --to" in capsys.readouterr().err
    assert run("grant", "read", "namespace:my shop", "bob") == 0


def test_an_unknown_outcome_is_printed_as_one(world: World) -> None:
    """Of a principal whose creation got lost, nobody has the secret."""
    world.store.plan = lambda op: Fault.RESET if op.key == GRANTS_KEY and op.kind == "put" else None
    with pytest.raises(OutcomeUnknownError, match="could not create principal zoe: Cannot tell whether"):
        AccessClient(world.client().call).create_principal("zoe")


def test_names_with_a_separator_in_a_query_arrive(world: World) -> None:
    client = AccessClient(world.client().call)
    assert client.grants(parse_on("namespace:shop.eu"))["owner"] == "tester"
    assert client.grants({"kind": "warehouse"}) == {"grants": [], "owner": None}


def test_a_table_changes_hands(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    orders = TableName(("shop", "eu"), "orders")
    made = printed(capsys, "principal", "create", "bob")
    bob = world.client(f"{made['client-id']}:{made['client-secret']}")
    assert run("owner", "table:shop.eu.orders", "--to", "bob") == 0
    assert capsys.readouterr().out == "bob owns table:shop.eu.orders\n"
    bob.load(orders)
    assert printed(capsys, "grants", "table:shop.eu.orders")["owner"] == "bob"
    assert printed(capsys, "owner", "namespace:shop", "--to", "bob") == {
        "on": {"kind": "namespace", "namespace": ["shop"]},
        "owner": "bob",
    }
    assert run("owner", "table:shop.eu.orders", "--to", "nobody") == 1
    assert "Principal does not exist: nobody" in capsys.readouterr().err


def test_a_principal_gets_a_new_secret(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    made = printed(capsys, "principal", "create", "bob")
    first = f"{made['client-id']}:{made['client-secret']}"
    assert run("principal", "rotate", "bob", "--grace", "10m") == 0
    *words, second = capsys.readouterr().out.split()
    assert "ends at 20" in " ".join(words)
    for credential in (first, second):
        assert AccessClient(world.client(credential).call).whoami()["principal"] == "bob"
    third = printed(capsys, "principal", "rotate", "bob")
    assert third["former-ends-ms"] is None
    for credential in (first, second):
        with pytest.raises(UnauthenticatedError):
            AccessClient(world.client(credential).call).whoami()
    third_ = f"{third['client-id']}:{third['client-secret']}"
    assert AccessClient(world.client(third_).call).whoami()["principal"] == "bob"


@pytest.mark.parametrize("grace", ["10", "m", "-1s", "1d", "25h", ""])
def test_a_bad_grace_is_named(world: World, capsys: pytest.CaptureFixture[str], grace: str) -> None:
    assert run("principal", "create", "bob") == 0
    assert run("principal", "rotate", "bob", f"--grace={grace}") != 0
    assert "grace" in (said := capsys.readouterr().err) or "span of time" in said

"""SQL through Trino as principals of the catalog: each may what was granted to it, and nothing else."""

from __future__ import annotations

import base64
import contextlib
import hmac
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import jwt
import pytest
import trino.dbapi
from pyiceberg.table.update import SetSnapshotRefUpdate
from trino.exceptions import Error as TrinoError
from trino.exceptions import HttpError, TrinoQueryError

from tarn.adapters.catalog_client import RestCatalog
from tarn.cli.clients.access import AccessClient
from tests.integration.engines.clients import open_catalog
from tests.integration.engines.conftest import Lake, Trino
from tests.integration.minio.conftest import eventually

READ, WRITE, CREATE, MANAGE = "READ", "WRITE", "CREATE", "MANAGE"
IN_EFFECT_S = 12.0
"""The grants' 5 s, those that Trino's door remembers a log-in, and a query's time."""
REFUSED = (TrinoError, HttpError)
"""By the catalog or Trino; by its door."""
TABLES = ("one", "two", "three")
# What each holds by table, with what is included; mona has it on the namespace, by a role.
HELD: dict[str, dict[str, set[str]]] = {
    "rita": {"one": {READ}},
    "will": {"one": {READ, WRITE}, "two": {READ}, "acl": {CREATE}},
    "mona": {name: {READ, WRITE, MANAGE} for name in TABLES} | {"acl": {CREATE}},
}
STATEMENTS: tuple[tuple[str, str, str], ...] = (
    (READ, "select", "SELECT x FROM acl.{table} WHERE x = 1"),
    (READ, "describe", "DESCRIBE acl.{table}"),
    (WRITE, "insert", "INSERT INTO acl.{table} VALUES 2"),
    (WRITE, "update", "UPDATE acl.{table} SET x = 3 WHERE x = 2"),
    (WRITE, "delete", "DELETE FROM acl.{table} WHERE x > 1"),
    (WRITE, "alter", "ALTER TABLE acl.{table} ADD COLUMN IF NOT EXISTS y bigint"),
    (MANAGE, "rename", "ALTER TABLE acl.{table} RENAME TO acl.{table}_"),
    (MANAGE, "drop", "DROP TABLE acl.{table}"),
)


@dataclass
class Sql:
    """Trino, with the credential of each principal.

    Attributes:
        lake: the lake.
        server: its Trino.
        access: the catalog's principals and grants, as an admin.
        secrets: name of each principal -> its secret.
    """

    lake: Lake
    server: Trino
    access: AccessClient
    secrets: dict[str, str] = field(default_factory=dict)

    def rows(self, who: str, sql: str, *, secret: str | None = None, **more: Any) -> list[list[Any]]:
        host, _, port = self.server.address.partition(":")
        extra = [("secret", self.secrets[who] if secret is None else secret), *more.pop("extra", [])]
        with trino.dbapi.connect(
            host=host, port=int(port), user=who, catalog="tarn", extra_credential=extra, **more
        ) as connection:
            cursor = connection.cursor()
            cursor.execute(sql)
            return [list(row) for row in cursor.fetchall()]

    def refused(self, who: str, sql: str, **more: Any) -> str:
        with pytest.raises(REFUSED) as raised:
            self.rows(who, sql, **more)
        return str(raised.value)

    def page(self, path: str, headers: dict[str, str], method: str = "GET", body: str = "") -> httpx.Response:
        return httpx.request(method, f"http://{self.server.address}{path}", headers=headers, content=body)

    def principal(self, name: str) -> None:
        self.secrets[name] = self.access.create_principal(name)["client-secret"]

    def granted(self, table: str) -> None:
        """Grant what the matrix says for a table; mona's is on the namespace."""
        for who in ("rita", "will"):
            for privilege in HELD[who].get(table, ()):
                self.grant(who, privilege, "acl", table)

    def grant(self, to: str, privilege: str, *name: str, kind: str = "table") -> None:
        self.access.grant(thing(*name, kind=kind), to, [privilege])


def thing(*name: str, kind: str = "table") -> dict[str, Any]:
    if kind == "namespace":
        return {"kind": kind, "namespace": list(name)}
    return {"kind": kind, "namespace": list(name[:-1]), "name": name[-1]}


@pytest.fixture(scope="module")
def sql(lake: Lake, trino_server: Trino) -> Iterator[Sql]:
    held = lake.secrets["cli"]["catalog_credential"]
    access = AccessClient(RestCatalog(lake.catalog, warehouse="tarn", credential=lambda: held).call)
    found = Sql(lake, trino_server, access, {"cli": held.partition(":")[2]})
    assert trino_server.rows("SELECT 1") == [[1]], "without principals nobody logs in"
    found.rows("cli", "CREATE SCHEMA acl")
    for name in TABLES:
        found.rows("cli", f"CREATE TABLE acl.{name} AS SELECT 1 x")
    access.create_role("managers")
    for name in HELD:
        found.principal(name)
    access.set_member("managers", "mona", there=True)
    found.grant("managers", MANAGE, "acl", kind="namespace")
    for name in TABLES:
        found.granted(name)
    found.grant("will", CREATE, "acl", kind="namespace")
    eventually("everybody has to log in", lambda: anonymous(found) == 401, timeout_s=IN_EFFECT_S)
    yield found
    for one in access.principals():
        if not one["built-in"]:
            access.drop_principal(one["name"])
    access.drop_role("managers")
    eventually("nobody has to log in", lambda: anonymous(found) == 200, timeout_s=IN_EFFECT_S)
    for (name,) in trino_server.rows("SHOW TABLES FROM acl"):
        view = name == "look"
        trino_server.rows(f"DROP {'VIEW' if view else 'TABLE'} acl.{name}")
    trino_server.rows("DROP SCHEMA acl")


def anonymous(sql: Sql, **headers: str) -> int:
    return sql.page("/v1/statement", {"x-trino-user": "test", **headers}, "POST", "SELECT 1").status_code


@pytest.mark.parametrize(("need", "what", "statement"), STATEMENTS, ids=[one[1] for one in STATEMENTS])
def test_who_may_do_what_to_which_table(sql: Sql, need: str, what: str, statement: str) -> None:
    for table in TABLES:
        asked = statement.format(table=table)
        may = [who for who in HELD if need in HELD[who].get(table, set())]
        before = sql.rows("cli", f"SELECT count(*), max(x) FROM acl.{table}")
        for who in HELD.keys() - set(may):
            said = sql.refused(who, asked)
            assert "SYNTAX_ERROR" not in said, said
        assert sql.rows("cli", f"SELECT count(*), max(x) FROM acl.{table}") == before, asked
        for who in may:
            sql.rows(who, asked)
            if what == "rename":
                sql.rows("cli", f"ALTER TABLE acl.{table}_ RENAME TO acl.{table}")
            if what == "drop":
                # Another table of the name, so without the grants on the first one.
                sql.rows("cli", f"CREATE TABLE acl.{table} AS SELECT 1 x")
                sql.granted(table)


def test_listings_show_what_may_be_read(sql: Sql) -> None:
    sql.rows("cli", "CREATE SCHEMA IF NOT EXISTS acl_closed")
    try:
        assert sql.rows("rita", "SHOW TABLES FROM acl") == [["one"]]
        assert {name for (name,) in sql.rows("mona", "SHOW TABLES FROM acl")} >= set(TABLES)
        ask = "SELECT table_name FROM information_schema.{} WHERE table_schema LIKE 'acl%'"
        assert sql.rows("rita", ask.format("tables")) == [["one"]]
        assert {name for (name,) in sql.rows("rita", ask.format("columns"))} == {"one"}
        assert ["acl"] in sql.rows("rita", "SHOW SCHEMAS")
        assert ["acl_closed"] not in sql.rows("rita", "SHOW SCHEMAS")
        assert ["acl_closed"] in sql.rows("cli", "SHOW SCHEMAS")
    finally:
        sql.rows("cli", "DROP SCHEMA acl_closed")


def test_who_may_create_owns_what_it_creates_and_sees_nothing_else(sql: Sql) -> None:
    assert "rita may not" in chain(sql, "rita", "CREATE TABLE acl.hers AS SELECT 1 x")
    sql.rows("will", "CREATE TABLE acl.his AS SELECT 7 x")
    assert sql.access.grants(thing("acl", "his"))["owner"] == "will"
    assert sql.rows("will", "SELECT x FROM acl.his") == [[7]]
    sql.refused("will", "SELECT * FROM acl.three")
    sql.refused("rita", "SELECT * FROM acl.his")
    sql.rows("will", "DROP TABLE acl.his")
    for who in HELD:
        sql.refused(who, "CREATE SCHEMA acl_mine")
    assert ["acl_mine"] not in sql.rows("cli", "SHOW SCHEMAS")


def chain(sql: Sql, who: str, statement: str) -> str:
    """What the catalog said about a statement, from the causes of Trino's error."""
    headers = {"x-trino-user": who, "x-trino-extra-credential": f"secret={sql.secrets[who]}"}
    page = sql.page("/v1/statement", {**headers, "x-trino-catalog": "tarn"}, "POST", statement).json()
    until = time.monotonic() + 120
    while "nextUri" in page:
        assert time.monotonic() < until, f"the statement does not end: {statement}"
        page = httpx.get(page["nextUri"], timeout=120).json()
    return str(page["error"]["failureInfo"])


def test_a_view_takes_rights_on_itself_and_on_what_it_reads(sql: Sql) -> None:
    sql.rows("cli", "CREATE OR REPLACE VIEW acl.look SECURITY INVOKER AS SELECT x FROM acl.three")
    sql.principal("vera")
    assert sql.refused("vera", "SELECT x FROM acl.look")
    sql.grant("vera", READ, "acl", "look", kind="view")
    assert sql.refused("vera", "SELECT x FROM acl.look")
    sql.grant("vera", READ, "acl", "three")
    eventually(
        "vera reads the view",
        lambda: succeeded(sql, "vera", "SELECT x FROM acl.look"),
        timeout_s=IN_EFFECT_S,
    )
    assert sql.refused("vera", "DROP VIEW acl.look")


def test_a_view_asks_as_its_reader_whomever_it_names(sql: Sql) -> None:
    """Who changes a view may write any name where Trino looks for whom to ask as."""
    sql.rows("will", "CREATE VIEW acl.peek AS SELECT x FROM acl.two")
    sql.rows("cli", "CREATE VIEW acl.look_in AS SELECT x FROM acl.three")
    try:
        as_will = RestCatalog(sql.lake.catalog, warehouse="tarn", credential=lambda: credential(sql, "will"))
        wanted = {"action": "set-properties", "updates": {"trino.run-as-owner": "cli"}}
        query = {"type": "sql", "sql": "SELECT x FROM acl.three", "dialect": "trino"}
        version = {
            **{"version-id": 2, "timestamp-ms": 1, "schema-id": 0, "summary": {}},
            **{"default-catalog": "tarn", "default-namespace": ["acl"], "representations": [query]},
        }
        now = {"action": "set-current-view-version", "view-version-id": -1}
        for updates in ([wanted], [wanted, {"action": "add-view-version", "view-version": version}, now]):
            as_will.call("POST", "/v1/namespaces/acl/views/peek", {"updates": updates}, what="change it")
            for who, reads in (("will", len(updates) == 1), ("rita", False), ("mona", True), ("cli", True)):
                assert succeeded(sql, who, "SELECT x FROM acl.peek") == reads, (who, updates)
        assert "will may not" in chain(sql, "will", "SELECT x FROM acl.peek")
        # The one of an admin, readable for will: it reads no more than will may.
        sql.grant("will", READ, "acl", "look_in", kind="view")
        eventually(
            "will sees the view",
            lambda: "acl.three" in chain(sql, "will", "SELECT x FROM acl.look_in"),
            timeout_s=IN_EFFECT_S,
        )
    finally:
        sql.rows("cli", "DROP VIEW acl.peek")
        sql.rows("cli", "DROP VIEW acl.look_in")


def credential(sql: Sql, who: str) -> str:
    (client,) = [one["client-id"] for one in sql.access.principals() if one["name"] == who]
    return f"{client}:{sql.secrets[who]}"


def succeeded(sql: Sql, who: str, statement: str, **more: Any) -> bool:
    try:
        sql.rows(who, statement, **more)
    except REFUSED:
        return False
    return True


def test_nobody_comes_in_without_the_right_secret(sql: Sql) -> None:
    def basic(name: str, secret: str) -> str:
        return "Basic " + base64.b64encode(f"{name}:{secret}".encode()).decode()

    rita, will = sql.secrets["rita"], sql.secrets["will"]
    admin = sql.lake.secrets["trino"]["catalog_credential"]
    for headers in (
        {},
        {"x-trino-user": "cli"},
        {"x-trino-user": "rita", "x-trino-extra-credential": "secret=wrong"},
        {"x-trino-user": "rita", "x-trino-extra-credential": "secret=%ZZ"},
        {"x-trino-user": "rita", "x-trino-extra-credential": f"secret={will}"},
        {"x-trino-user": "nobody", "x-trino-extra-credential": f"secret={rita}"},
        {"x-trino-extra-credential": f"secret={rita}"},
        {"x-trino-user": "cli", "x-trino-extra-credential": f"credential={admin}"},
        {"x-trino-user": "cli", "authorization": basic("rita", rita)},
        {"authorization": basic("cli", rita)},
        {"authorization": basic("rita", "")},
        {"authorization": "Basic !"},
        {"authorization": f"Bearer {rita}", "x-trino-user": "rita"},
        {"x-trino-user": "cli", "x-trino-internal-bearer": "x"},
    ):
        answer = sql.page("/v1/statement", headers, "POST", "SELECT 1")
        assert answer.status_code == 401, (headers, answer.text)
        assert answer.headers["www-authenticate"].startswith("Basic ")
    good = sql.page("/v1/statement", {"authorization": basic("rita", rita)}, "POST", "SELECT 1")
    assert good.status_code == 200


def test_a_client_lends_itself_no_other_principal(sql: Sql) -> None:
    admin = sql.lake.secrets["trino"]["catalog_credential"]
    forged = [("credential", admin.replace(":", "%3A")), ("token", "x")]
    assert sql.rows("rita", "SELECT current_user", extra=forged) == [["rita"]]
    for extra in ([("credential", "x:y")], forged):
        assert sql.refused("rita", "SELECT * FROM acl.three", extra=extra)
    assert sql.refused("rita", "SELECT * FROM acl.three", http_headers={"X-Trino-Original-User": "cli"})
    host, _, port = sql.server.address.partition(":")
    with trino.dbapi.connect(
        host=host, port=int(port), user="rita", extra_credential=[("secret", sql.secrets["rita"])]
    ) as connection:
        cursor = connection.cursor()
        # Trino checks it with the next statement, which names the new user.
        with contextlib.suppress(*REFUSED):
            cursor.execute("SET SESSION AUTHORIZATION cli")
            cursor.fetchall()
        with pytest.raises(REFUSED):
            cursor.execute("SELECT * FROM tarn.acl.three").fetchall()


def test_queries_of_others_are_not_seen_or_ended(sql: Sql) -> None:
    sql.rows("cli", "SELECT 'not for rita'")
    ask = "SELECT query_id FROM system.runtime.queries WHERE query LIKE '%not for ' || 'rita%'"
    assert sql.rows("rita", ask) == []
    found = sql.rows("cli", ask)
    assert found
    (query,) = found[0]
    said = sql.refused("rita", f"CALL system.runtime.kill_query('{query}', 'no')")
    assert "Access Denied" in said or "not found" in said.lower(), said
    rita = {"x-trino-user": "rita", "x-trino-extra-credential": f"secret={sql.secrets['rita']}"}
    cli = {"x-trino-user": "cli", "x-trino-extra-credential": f"secret={sql.secrets['cli']}"}
    assert sql.page(f"/v1/query/{query}", rita).status_code in (403, 404)
    for path in ("/ui/", "/ui/api/query", "/ui/legacy/", "/v1/node", "/v1/thread", "/%75i/", "//ui/"):
        assert sql.page(path, rita).status_code in (400, 403), path
        assert sql.page(path, {"x-trino-user": "cli"}).status_code in (400, 401), path
        assert sql.page(path, {"x-trino-internal-bearer": "x"}).status_code in (400, 401), path
    assert sql.page("/ui/", cli).status_code not in (401, 403)
    assert sql.page("/v1/info", {}).status_code == 200


def test_nobody_but_trino_itself_is_a_node(sql: Sql) -> None:
    """The secret that Trino uses by itself is the name of its environment; a node may read and run tasks."""
    extracted = hmac.digest(bytes(32), b"tarn", "sha256")
    key = hmac.digest(extracted, b"internal-communication\x01", "sha256")
    token = jwt.encode({"sub": "node", "exp": int(time.time()) + 60}, key, algorithm="HS256")
    for path in ("/v1/memory", "/v1/task/20260101_000000_00001_abcde.0.0.0/status"):
        assert sql.page(path, {"x-trino-internal-bearer": token}).status_code == 401, path
        assert sql.page(path, {}).status_code == 401, path


def test_nobody_comes_in_while_rules_that_changed_cannot_be_written(sql: Sql) -> None:
    """Those in the file may let everybody see and end the queries of others."""
    inside, blocked = sql.server.container, "/tmp/tarn-access.json.next"
    rita = {"x-trino-user": "rita", "x-trino-extra-credential": f"secret={sql.secrets['rita']}"}

    def answered() -> int:
        return sql.page("/v1/statement", rita, "POST", "SELECT 1").status_code

    assert answered() == 200
    assert inside.exec(["mkdir", blocked]).exit_code == 0
    try:
        sql.access.set_member("admin", "will", there=True)
        eventually("nobody comes in", lambda: answered() == 503, timeout_s=IN_EFFECT_S)
        said = sql.page("/v1/statement", rita, "POST", "SELECT 1").text
        assert "rules of Trino's access control cannot be written" in said, said
    finally:
        inside.exec(["rmdir", blocked])
        sql.access.set_member("admin", "will", there=False)
    eventually("rita comes in", lambda: answered() == 200, timeout_s=IN_EFFECT_S)


def test_a_reader_deletes_no_files(sql: Sql) -> None:
    said = sql.refused("rita", "ALTER TABLE acl.one EXECUTE remove_orphan_files(retention_threshold => '7d')")
    assert "is for admins" in said, said
    orphans = "ALTER TABLE acl.one EXECUTE remove_orphan_files(retention_threshold => '7d')"
    assert "minimum retention" in sql.refused("cli", orphans)
    shorter = {"session_properties": {"tarn.remove_orphan_files_min_retention": "0s"}}
    said = sql.refused("rita", "SELECT x FROM acl.one", **shorter)
    assert "Access Denied" in said, said
    assert sql.rows("cli", "SELECT 1", **shorter) == [[1]]


def test_who_names_the_files_of_another_table_cannot_have_them_deleted(sql: Sql) -> None:
    """By a table of its own, out of whose history they would expire: Trino deletes with its own user."""
    lake = open_catalog(sql.lake)
    sql.rows("will", "CREATE TABLE acl.trap (x integer)")
    try:
        files = [path for (path,) in sql.rows("will", 'SELECT file_path FROM acl."two$files"')]
        assert files
        lake.load_table("acl.trap").add_files(files)
        sql.rows("will", "DELETE FROM acl.trap")
        sql.rows("will", "INSERT INTO acl.trap VALUES 5")
        trap = lake.load_table("acl.trap")
        # The branch's own age counts, whatever retention Trino asks for at least.
        aged = SetSnapshotRefUpdate(
            ref_name="main",
            type="branch",
            snapshot_id=trap.metadata.current_snapshot_id,
            max_snapshot_age_ms=1,
            min_snapshots_to_keep=1,
            max_ref_age_ms=None,
        )
        lake.commit_table(trap, (), (aged,))
        for threshold, session in (
            ("0s", {"tarn.expire_snapshots_min_retention": "0s"}),
            ("7d", {}),
            ("36500d", {}),
        ):
            said = sql.refused(
                "will",
                f"ALTER TABLE acl.trap EXECUTE expire_snapshots(retention_threshold => '{threshold}')",
                session_properties=session,
            )
            assert "is for admins" in said, said
        assert all(sql.lake.holds(path) for path in files)
        assert len(lake.load_table("acl.trap").snapshots()) > 1
        sql.rows("will", "ALTER TABLE acl.trap EXECUTE optimize")
        assert all(sql.lake.holds(path) for path in files)
    finally:
        sql.rows("will", "DROP TABLE acl.trap")
    assert sql.rows("cli", "ALTER TABLE acl.two EXECUTE expire_snapshots(retention_threshold => '7d')") == []


def test_what_is_revoked_or_rotated_ends_within_the_stated_time(sql: Sql) -> None:
    sql.principal("ruth")
    sql.grant("ruth", READ, "acl", "three")
    ask = "SELECT x FROM acl.three"
    eventually("ruth reads", lambda: succeeded(sql, "ruth", ask), timeout_s=IN_EFFECT_S)
    sql.access.revoke(thing("acl", "three"), "ruth", [READ])
    eventually("ruth reads no more", lambda: not succeeded(sql, "ruth", ask), timeout_s=IN_EFFECT_S)
    former = sql.secrets["ruth"]
    sql.secrets["ruth"] = sql.access.rotate_secret("ruth", 0)["client-secret"]
    assert sql.rows("ruth", "SELECT 1") == [[1]]
    eventually(
        "the former secret has ended",
        lambda: not succeeded(sql, "ruth", "SELECT 1", secret=former),
        timeout_s=IN_EFFECT_S,
    )
    sql.access.drop_principal("ruth")
    eventually("ruth is gone", lambda: not succeeded(sql, "ruth", "SELECT 1"), timeout_s=IN_EFFECT_S)


def test_the_trail_names_who_asked(sql: Sql) -> None:
    sql.rows("mona", "INSERT INTO acl.two VALUES 5")
    with pytest.raises(TrinoQueryError):
        sql.rows("rita", "INSERT INTO acl.two VALUES 5")
    out = "".join(part.decode() for part in catalog_log(sql.lake))
    lines = [line for line in out.splitlines() if '"audit"' in line and "table acl.two" in line]
    assert any('"principal":"mona"' in line.replace(" ", "") and '"commit"' in line for line in lines)
    assert any('"principal":"rita"' in line.replace(" ", "") and '"refused"' in line for line in lines)


def catalog_log(lake: Lake) -> tuple[bytes, bytes]:
    logs: tuple[bytes, bytes] = lake.catalog_container.get_logs()
    return logs

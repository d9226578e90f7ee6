"""Vended credentials on the real store: MinIO's STS, and pyiceberg without any store key."""

from __future__ import annotations

import hashlib
import io
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx
import pyarrow as pa
import pytest
from minio import Minio, MinioAdmin
from minio.credentials import Credentials, StaticProvider
from minio.error import MinioAdminException, S3Error
from minio.signer import sign_v4_sts
from pyiceberg.catalog import Catalog as PyIcebergCatalog
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import ForbiddenError
from pyiceberg.types import StringType

from tarn.core.credentials import VENDING_USER
from tarn.core.naming import WarehouseLayout
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.settings import Settings
from tarn_catalog.testing.server import Running, serving
from tests.integration.catalog.conftest import BUCKET, REGION, Key, Serve, StoreServer
from tests.integration.minio.conftest import write_secrets
from tests.support.sts import check_contract

VENDED = {"X-Iceberg-Access-Delegation": "vended-credentials"}
EVERYTHING = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": ["s3:*"], "Resource": ["arn:aws:s3:::*"]}],
}
ROWS = pa.table({"x": pa.array([1, 2, 3], pa.int64())})
REFUSED = {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidTokenId", "ExpiredToken"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RealSts:
    """MinIO as a token service with its store; see `tests.support.sts.Served`."""

    endpoint: str
    key: Key
    root: Key

    def client(self, keys: Mapping[str, str] | None = None) -> Minio:
        found = keys or {"s3.access-key-id": self.root[0], "s3.secret-access-key": self.root[1]}
        return Minio(
            self.endpoint.removeprefix("http://"),
            access_key=found["s3.access-key-id"],
            secret_key=found["s3.secret-access-key"],
            session_token=found.get("s3.session-token"),
            secure=False,
            region=REGION,
        )

    def attempt(self, keys: Mapping[str, str], action: str, key: str) -> bool:
        """Try an operation; a key that is to be read or deleted is put there first."""
        client = self.client(keys)
        if action in ("get", "delete"):
            try:
                self.client().stat_object(BUCKET, key)
            except S3Error:
                self.client().put_object(BUCKET, key, io.BytesIO(b"x"), 1)
        actions = {
            "get": lambda: client.get_object(BUCKET, key).read(),
            "put": lambda: client.put_object(BUCKET, key, io.BytesIO(b"y"), 1),
            "list": lambda: list(client.list_objects(BUCKET, prefix=key)),
            "delete": lambda: client.remove_object(BUCKET, key),
        }
        try:
            actions[action]()
        except S3Error as e:
            if e.code not in REFUSED:
                raise
            return False
        return True


@pytest.fixture(scope="module")
def sts(minio: StoreServer) -> RealSts:
    return RealSts(endpoint=minio.endpoint, key=minio.user(VENDING_USER), root=minio.root)


def test_minio_keeps_the_contract_of_the_fake(sts: RealSts) -> None:
    assert check_contract(sts) == 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """A lake on MinIO in a namespace of its own, behind a catalog in this process."""

    core: Catalog
    running: Running
    sts: RealSts
    ns: str
    credentials: dict[str, str]

    def open(self, who: str = "admin", **more: str) -> PyIcebergCatalog:
        """A pyiceberg catalog without any store key."""
        return load_catalog(
            "lake",
            **{
                "type": "rest",
                "uri": self.running.published,
                "oauth2-server-uri": f"{self.running.published}/v1/oauth/tokens",
                "credential": self.credentials[who],
                "warehouse": "tarn",
                **more,
            },
        )

    def client(self, who: str = "admin") -> httpx.Client:
        client_id, secret = self.credentials[who].split(":")
        form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": secret}
        token = httpx.post(f"{self.running.published}/v1/oauth/tokens", data=form).json()["access_token"]
        return httpx.Client(
            base_url=self.running.published, headers={"authorization": f"Bearer {token}", **VENDED}
        )

    def ask(self, who: str, method: str, path: str, body: Any = None) -> Any:
        with self.client(who) as client:
            answer = client.request(method, path, json=body)
            assert answer.status_code in (200, 204), answer.text
            return answer.json() if answer.content else None

    def principal(self, name: str) -> str:
        name = f"{name}-{secrets.token_hex(3)}"
        made = self.ask("admin", "POST", "/tarn/v1/principals", {"name": name})
        self.credentials[name] = f"{made['client-id']}:{made['client-secret']}"
        return name

    def grant(self, to: str, privilege: str, table: str | None = None, *, revoke: bool = False) -> None:
        on = {"kind": "namespace", "namespace": [self.ns]}
        if table is not None:
            on = {"kind": "table", "namespace": [self.ns], "name": table}
        path = "/tarn/v1/grants/revoke" if revoke else "/tarn/v1/grants"
        self.ask("admin", "POST", path, {"on": on, "to": to, "privileges": [privilege]})

    def loaded(self, who: str, table: str) -> dict[str, Any]:
        return self.ask(who, "GET", f"/v1/namespaces/{self.ns}/tables/{table}")


@pytest.fixture(scope="module")
def lake(minio: StoreServer, sts: RealSts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    folder = tmp_path_factory.mktemp("vending")
    write_secrets(folder, vending_access_key_id=sts.key[0], vending_secret_access_key=sts.key[1])
    settings = Settings(
        secrets_dir=folder,
        s3_endpoint=minio.endpoint,
        s3_endpoint_published=minio.endpoint,
        sts_endpoint=minio.endpoint,
        catalog_grants_max_age_s=0,
    )
    with ExitStack() as stack:
        core = Catalog(
            minio.store(minio.user("catalog")),
            WarehouseLayout(base=f"s3://{BUCKET}"),
            grants_max_age_s=0,
            vending=settings.vending(),
        )
        running = stack.enter_context(serving(core, folder / "access", settings))
        ns = f"vend_{secrets.token_hex(4)}"
        found = Lake(core=core, running=running, sts=sts, ns=ns, credentials={"admin": running.credential})
        found.open().create_namespace(ns)
        yield found


def test_a_reader_by_a_role_reads_rows_with_pyiceberg_and_no_store_key(lake: Lake) -> None:
    """Neither in the process's environment nor in the catalog's properties is any key of the store."""
    made = lake.open().create_table(f"{lake.ns}.rows", ROWS.schema)
    made.append(ROWS)
    assert lake.open().load_table(f"{lake.ns}.rows").scan().to_arrow().num_rows == 3
    bob = lake.principal("bob")
    with pytest.raises(ForbiddenError):
        lake.open(bob).load_table(f"{lake.ns}.rows")
    role = f"readers-{secrets.token_hex(3)}"
    lake.ask("admin", "POST", "/tarn/v1/roles", {"name": role})
    lake.ask("admin", "PUT", f"/tarn/v1/roles/{role}/members/{bob}")
    lake.grant(role, "READ")
    table = lake.open(bob).load_table(f"{lake.ns}.rows")
    assert table.scan().to_arrow().sort_by("x") == ROWS
    assert table.io.properties["s3.session-token"]
    # It may not commit, and the store takes no file from it.
    with pytest.raises((ForbiddenError, OSError)) as caught:
        table.append(ROWS)
    assert "may not commit" in str(caught.value) or "ACCESS_DENIED" in str(caught.value).upper()
    assert lake.open().load_table(f"{lake.ns}.rows").scan().to_arrow().num_rows == 3


def test_a_writer_does_everything_that_pyiceberg_does_without_deleting(lake: Lake) -> None:
    """Create as select, append, overwrite, delete rows, evolve, tag: no right to delete is missing."""
    ann = lake.principal("ann")
    lake.grant(ann, "CREATE")
    catalog = lake.open(ann)
    with catalog.create_table_transaction(f"{lake.ns}.staged", ROWS.schema) as transaction:
        transaction.append(ROWS)
    table = catalog.load_table(f"{lake.ns}.staged")
    assert table.scan().count() == 3
    table.append(ROWS)
    table.overwrite(ROWS)
    table.delete("x = 2")
    with table.update_schema() as update:
        update.add_column("y", StringType())
    table.append(pa.table({"x": [9], "y": ["z"]}))
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "here").commit()
    assert sorted(table.scan().to_arrow()["x"].to_pylist()) == [1, 3, 9]
    # Parts: a file larger than one part of an upload is put in several.
    large = pa.table({"x": pa.array(range(3_000_000), pa.int64()), "y": [secrets.token_hex(4)] * 3_000_000})
    table.append(large)
    assert table.scan().count() == 3_000_003


def test_the_matrix_on_the_store(lake: Lake) -> None:
    """3 tables x get, put, list, delete, read and write keys; every cross pair is refused by the store."""
    ann, bob = lake.principal("ann"), lake.principal("bob")
    names = [f"m{number}" for number in range(3)]
    locations: dict[str, str] = {}
    for name in names:
        location = lake.open().create_table(f"{lake.ns}.{name}", ROWS.schema).location()
        locations[name] = location.removeprefix(f"s3://{BUCKET}/")
        lake.grant(ann, "WRITE", name)
        lake.grant(bob, "READ", name)
    cells = 0
    for who, own in ((ann, {"get", "put", "list"}), (bob, {"get", "list"})):
        for name in names:
            body = lake.loaded(who, name)
            (credential,) = body["storage-credentials"]
            for other, location in locations.items():
                for action in ("get", "put", "list", "delete"):
                    key = f"{location}/data/" + (
                        "" if action == "list" else f"{secrets.token_hex(4)}.parquet"
                    )
                    wanted = other == name and action in own
                    assert lake.sts.attempt(credential["config"], action, key) == wanted, (who, action, key)
                    cells += 1
                # No metadata file is overwritten or deleted, and none is made up.
                current = lake.loaded("admin", other)["metadata-location"].removeprefix(f"s3://{BUCKET}/")
                for key in (current, f"{location}/metadata/00001-{secrets.token_hex(4)}.metadata.json"):
                    assert not lake.sts.attempt(credential["config"], "put", key), (who, key)
                    assert not lake.sts.attempt(credential["config"], "delete", key), (who, key)
                    cells += 2
            for key in ("catalog/v1/probe/x", "reaper/v1/holds/x", f"warehouse/{secrets.token_hex(4)}"):
                for action in ("get", "put", "delete"):
                    assert not lake.sts.attempt(credential["config"], action, key), (who, action, key)
                    cells += 1
            for prefix in ("", "warehouse/", "catalog/"):
                assert not lake.sts.attempt(credential["config"], "list", prefix), (who, prefix)
                cells += 1
    assert cells == 216


def test_vended_keys_make_no_further_keys(lake: Lake, sts: RealSts) -> None:
    """Neither longer ones by STS, nor an account that does not end (CVE-2025-62506)."""
    lake.open().create_table(f"{lake.ns}.further", ROWS.schema)
    config = lake.loaded("admin", "further")["config"]
    host = sts.endpoint.removeprefix("http://")
    keys = (config["s3.access-key-id"], config["s3.secret-access-key"], config["s3.session-token"])
    admin = MinioAdmin(endpoint=host, credentials=StaticProvider(*keys), secure=False, region=REGION)
    account = {"access_key": secrets.token_hex(8), "secret_key": secrets.token_hex(16)}
    for ask in (
        lambda: admin.add_service_account(**account),
        lambda: admin.add_service_account(**account, policy=EVERYTHING),
        lambda: admin.list_service_account(sts.key[0]),
        lambda: admin.user_list(),
        lambda: admin.policy_list(),
    ):
        with pytest.raises(MinioAdminException, match="AccessDenied"):
            ask()
    body = urlencode({"Action": "AssumeRole", "Version": "2011-06-15", "DurationSeconds": "3600"})
    now, digest = datetime.now(UTC), hashlib.sha256(body.encode()).hexdigest()
    signed = sign_v4_sts(
        method="POST",
        url=urlsplit(f"{sts.endpoint}/"),
        region=REGION,
        headers={
            "content-type": "application/x-www-form-urlencoded",
            "host": host,
            "x-amz-content-sha256": digest,
            "x-amz-date": now.strftime("%Y%m%dT%H%M%SZ"),
            "x-amz-security-token": keys[2],
        },
        credentials=Credentials(*keys),
        content_sha256=digest,
        date=now,
    )
    answer = httpx.post(f"{sts.endpoint}/", content=body, headers=signed)
    assert (answer.status_code, "AccessDenied" in answer.text) == (403, True), answer.text


def test_keys_outlive_a_revocation_and_no_new_ones_are_given(lake: Lake) -> None:
    location = lake.open().create_table(f"{lake.ns}.revoked", ROWS.schema).location()
    bob = lake.principal("bob")
    lake.grant(bob, "WRITE", "revoked")
    config = lake.loaded(bob, "revoked")["config"]
    lake.grant(bob, "WRITE", "revoked", revoke=True)
    with lake.client(bob) as client:
        for path in ("revoked", "revoked/credentials"):
            assert client.get(f"/v1/namespaces/{lake.ns}/tables/{path}").status_code == 403
    key = f"{location.removeprefix(f's3://{BUCKET}/')}/data/x"
    assert lake.sts.attempt(config, "put", key), "stated: until they end"
    left_s = int(config["s3.session-token-expires-at-ms"]) / 1000 - time.time()
    assert 600 < left_s <= 900


def test_odd_names_on_the_store(lake: Lake) -> None:
    """Names whose encoded form is in the prefix; none opens its neighbour."""
    names = ["a b", "a~2A", "\u00fc", "a=b", 'a"b', "a.b", "a+b", "x" * 60]
    tables = {name: lake.open().create_table((lake.ns, name), ROWS.schema) for name in names}
    configs = {name: table.io.properties for name, table in tables.items()}
    for name, config in configs.items():
        tables[name].append(ROWS)
        assert lake.open().load_table((lake.ns, name)).scan().count() == 3
        for other in names:
            key = f"{tables[other].location().removeprefix(f's3://{BUCKET}/')}/data/y"
            assert lake.sts.attempt(config, "put", key) == (other == name), (name, other)


def test_the_image_vends_with_the_secrets_of_the_stack(serve: Serve, sts: RealSts, tmp_path: Path) -> None:
    (server,) = serve(1, vending=sts.key)
    catalog = load_catalog(
        "lake",
        **{
            "type": "rest",
            "uri": server.uri,
            "oauth2-server-uri": f"{server.uri}/v1/oauth/tokens",
            "credential": server.credential,
            "warehouse": "tarn",
        },
    )
    ns = f"img_{secrets.token_hex(4)}"
    catalog.create_namespace(ns)
    catalog.create_table(f"{ns}.t", ROWS.schema).append(ROWS)
    assert catalog.load_table(f"{ns}.t").scan().count() == 3
    out, err = server.container.get_logs()
    said = (out + err).decode()
    assert '"action": "vend"' in said or '"action":"vend"' in said
    config = catalog.load_table(f"{ns}.t").io.properties
    for secret in (config["s3.secret-access-key"], config["s3.session-token"], sts.key[1]):
        assert secret not in said

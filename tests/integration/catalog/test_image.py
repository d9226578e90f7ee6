"""Tarn's catalog image on its MinIO image: pyiceberg without flags, two replicas, 32 writers, health."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
import time
from collections import Counter
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from tests.integration.catalog.conftest import BUCKET, REPOSITORY, Serve, Server, health
from tests.integration.minio.conftest import eventually
from tests.support.healthy import await_health
from tests.support.inside import said_inside

WRITTEN_S = 780
ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "who": ["a", "b", "c"]})


def name(prefix: str) -> str:
    return f"{prefix}_{time.time_ns()}"


def test_pyiceberg_needs_no_special_flags_and_the_embedded_form_sees_the_same(serve: Serve) -> None:
    (server,) = serve(1)
    space = name("ns")
    catalog = server.open()
    catalog.create_namespace(space)
    table = catalog.create_table(f"{space}.t", ROWS.schema)
    table.append(ROWS)
    table.append(ROWS)
    assert table.io.properties["s3.endpoint"] == server.store.endpoint
    with catalog.create_table_transaction(f"{space}.s", ROWS.schema) as tx:
        tx.append(ROWS)
    root = server.store.root
    embedded = load_catalog(
        "lake",
        **{
            "py-catalog-impl": "tarn_catalog.embedded.EmbeddedCatalog",
            "uri": f"s3://{BUCKET}",
            "s3.endpoint": server.store.endpoint,
            "s3.access-key-id": root[0],
            "s3.secret-access-key": root[1],
        },
    )
    assert embedded.list_tables(space) == [(space, "s"), (space, "t")]
    same = embedded.load_table(f"{space}.t")
    assert same.metadata_location == catalog.load_table(f"{space}.t").metadata_location
    same.append(ROWS)
    assert catalog.load_table(f"{space}.t").scan().to_arrow().num_rows == 9
    catalog.drop_table(f"{space}.s")
    assert not embedded.table_exists(f"{space}.s")
    for listener, endpoint in ((server.inside, "http://minio:9000"), (server.uri, server.store.endpoint)):
        token = catalog._session.auth.auth_manager.auth_header()
        told = httpx.get(f"{listener}/v1/config", headers={"authorization": token}).json()
        assert told["defaults"]["s3.endpoint"] == endpoint


@pytest.mark.in_turn(3, "32 writers lose commits between two replicas, not within one")
@pytest.mark.timeout(900)
def test_32_writers_on_two_replicas_lose_nothing(serve: Serve, record_property) -> None:
    servers = serve(2)
    space = name("ns")
    servers[0].open().create_namespace(space)
    servers[0].open().create_table(
        f"{space}.t",
        pa.schema([("writer", pa.int64()), ("n", pa.int64())]),
        properties={
            "commit.retry.num-retries": "400",
            "commit.retry.min-wait-ms": "10",
            "commit.retry.max-wait-ms": "500",
            "tarn.history": "all",
        },
    )
    writers, appends = 32, 2
    barrier = threading.Barrier(writers)
    failures: list[BaseException] = []

    def write(writer: int, server: Server) -> None:
        try:
            table = server.open().load_table(f"{space}.t")
            barrier.wait(timeout=240)
            for number in range(appends):
                table.append(pa.table({"writer": pa.array([writer] * 10), "n": pa.array([number] * 10)}))
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=write, args=(w, servers[w % 2])) for w in range(writers)]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=max(0.0, started + WRITTEN_S - time.monotonic()))
    assert failures == []
    assert not [thread for thread in threads if thread.is_alive()], f"not all written within {WRITTEN_S} s"
    table = servers[1].open().load_table(f"{space}.t")
    rows = table.scan().to_arrow().to_pylist()
    counts = Counter((row["writer"], row["n"]) for row in rows)
    assert counts == {(w, n): 10 for w in range(writers) for n in range(appends)}
    snapshots = table.snapshots()
    assert [s.parent_snapshot_id for s in snapshots] == [None, *(s.snapshot_id for s in snapshots[:-1])]
    assert len(snapshots) == writers * appends
    record_property("seconds", round(time.monotonic() - started, 1))


@pytest.mark.in_turn(5, "the catalog's health check misses a store that is frozen or refuses its key")
def test_health_is_true(serve: Serve) -> None:
    (server,) = serve(1)
    admin = server.store.admin
    admin.user_disable(server.key[0])
    try:
        eventually("a revoked key is seen", lambda: health(server.container) == "unhealthy", timeout_s=60)
    finally:
        admin.user_enable(server.key[0])
    assert httpx.get(f"{server.uri}/v1/config").status_code == 401, "the port was open all the while"
    await_health(server.container.get_wrapped_container())
    minio = server.store.container.get_wrapped_container()
    minio.pause()
    try:
        eventually("a frozen store is seen", lambda: health(server.container) == "unhealthy", timeout_s=60)
    finally:
        minio.unpause()
    await_health(server.container.get_wrapped_container())


def test_it_does_not_start_without_its_secrets(serve: Serve) -> None:
    (server,) = serve(1)
    container = server.container.get_wrapped_container()
    code, output = said_inside(container, ["env", "TARN_SECRETS_DIR=/nowhere", "tarn-catalog"])
    assert code == 1
    assert b"/nowhere/principals.json" in output
    assert b"run the init service" in output
    code, output = said_inside(container, ["env", "TARN_BUCKET=A", "TARN_S3_ENDPOINT=minio", "tarn-catalog"])
    assert code == 1
    assert b"TARN_BUCKET" in output
    assert b"TARN_S3_ENDPOINT is 'minio', allowed: http or https, a host and a port" in output
    code, output = said_inside(container, ["tarn-catalog"])
    assert code == 1
    assert b"Cannot listen on 0.0.0.0:8181: Address already in use" in output
    code, output = said_inside(container, ["id"])
    assert output.startswith(b"uid=10005(catalog)")


def digests(server: Server, folder: str) -> dict[str, str]:
    """Name to SHA-256 of the files of a folder of the container. No command runs: its output can get lost."""
    chunks, _ = server.container.get_wrapped_container().get_archive(folder)
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
        return {
            Path(member.name).name: hashlib.sha256(content.read()).hexdigest()
            for member in archive
            if Path(member.name).parent == Path(Path(folder).name)
            and (content := archive.extractfile(member))
        }


def test_the_image_holds_the_code_of_this_tree(serve: Serve) -> None:
    """A builder that caches Tarn's own package by version would ship an old one."""
    (server,) = serve(1)
    for folder, package in (
        ("catalog", "tarn_catalog"),
        ("services", "tarn/core"),
        ("services", "tarn/adapters"),
    ):
        inside = f"/opt/venv/lib/python3.13/site-packages/{package}"
        shipped = digests(server, inside)
        for path in (REPOSITORY / folder / package).glob("*.py"):
            assert shipped.get(path.name) == hashlib.sha256(path.read_bytes()).hexdigest(), (
                f"{inside}/{path.name}"
            )

"""Settings and start-up: an unusable setting is reported with its variable."""

from __future__ import annotations

import gc
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tarn.adapters.store import MemoryStore
from tarn.core.catalog_objects import RESTORE_MARKER
from tarn.core.errors import InvalidSettingError, NotEmptyError
from tarn_catalog.rest import server
from tarn_catalog.rest.server import bound, make_routes, sides
from tarn_catalog.settings import Settings
from tarn_catalog.testing.faulty_store import FaultyStore
from tarn_catalog.testing.server import write_secrets


def test_defaults_fit_the_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TARN_S3_ENDPOINT", "TARN_BUCKET", "TARN_CATALOG_HOST"):
        monkeypatch.delenv(name, raising=False)
    settings = Settings.read()
    assert settings.catalog_host == "127.0.0.1"
    assert (settings.catalog_port_inside, settings.catalog_port_published) == (8181, 8182)
    assert settings.roots.warehouse == "s3://tarn/warehouse"
    inside, published = sides(settings)
    assert (inside.s3_endpoint, published.s3_endpoint) == ("http://minio:9000", "http://127.0.0.1:9000")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TARN_S3_ENDPOINT", "minio:9000"),
        ("TARN_S3_ENDPOINT_INSIDE", "http://"),
        ("TARN_S3_ENDPOINT_PUBLISHED", "http://x/path"),
        ("TARN_BUCKET", "A"),
        ("TARN_REGION", "us east"),
        ("TARN_WAREHOUSE", ""),
        ("TARN_LOG_LEVEL", "loud"),
        ("TARN_CATALOG_PORT_INSIDE", "99999"),
        ("TARN_CATALOG_STORE_WAIT_S", "-1"),
        ("TARN_HOSTS", "http://a.lan"),
    ],
)
def test_a_bad_setting_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidSettingError, match=f"^{name} is {value!r}, allowed: "):
        Settings.read()


def test_a_missing_or_empty_secret_is_named(tmp_path: Path) -> None:
    settings = Settings(secrets_dir=tmp_path)
    with pytest.raises(InvalidSettingError, match="s3_access_key_id cannot be read: No such file"):
        settings.store()
    (tmp_path / "s3_access_key_id").write_text("\n")
    with pytest.raises(InvalidSettingError, match="s3_access_key_id is empty"):
        settings.store()


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        settings = Settings(catalog_port_inside=0, catalog_port_published=port)
        with pytest.raises(InvalidSettingError, match=f"Cannot listen on 127.0.0.1:{port}: Address already"):
            bound(settings)


@pytest.mark.long
def test_the_command_ends_with_one_line_that_says_why(tmp_path: Path) -> None:
    write_secrets(tmp_path)
    for name in ("s3_access_key_id", "s3_secret_access_key"):
        (tmp_path / name).write_text("x" * 20)
    environment = {
        "TARN_SECRETS_DIR": str(tmp_path),
        "TARN_S3_ENDPOINT": "http://127.0.0.1:9",
        "TARN_CATALOG_STORE_WAIT_S": "0",
        "TARN_CATALOG_PORT_INSIDE": "0",
        "TARN_CATALOG_PORT_PUBLISHED": "0",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tarn_catalog.rest.server"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    line = json.loads(done.stdout.splitlines()[-1])
    assert line["level"] == "error"
    assert line["service"] == "catalog"
    assert "could not be used for 0 s" in line["reason"]
    assert "Traceback" not in done.stdout + done.stderr


def test_the_age_of_grants_is_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_secrets(tmp_path)
    monkeypatch.setenv("TARN_SECRETS_DIR", str(tmp_path))
    for text, reads in (("0", 3), ("60", 1)):
        monkeypatch.setenv("TARN_CATALOG_GRANTS_MAX_AGE_S", text)
        store = FaultyStore(MemoryStore())
        access = make_routes(Settings.read(), store)._access
        for _ in range(3):
            assert access._access is not None
            assert access._access.stored("bob") is None
        assert len(store.seen) == reads, text
    for bad in ("61", "-1", "x"):
        monkeypatch.setenv("TARN_CATALOG_GRANTS_MAX_AGE_S", bad)
        with pytest.raises(InvalidSettingError, match="TARN_CATALOG_GRANTS_MAX_AGE_S"):
            Settings.read()


@pytest.mark.parametrize("foreign", [["192.0.2.7"], [], ["192.0.2.7", "192.0.2.8"]])
def test_of_the_addresses_of_all_replicas_it_listens_at_its_own(
    monkeypatch: pytest.MonkeyPatch, foreign: list[str]
) -> None:
    """As with `docker compose up --scale catalog=2`, where the service's name has two addresses."""
    name = "catalog.own"
    known = socket.getaddrinfo

    def resolve(host: str, port: int, *more: int, **how: int) -> list[tuple]:
        if host != name:
            return known(host, port, *more, **how)
        addresses = [*foreign, "127.0.0.1"]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    settings = Settings().model_copy(
        update={"catalog_host": name, "catalog_port_inside": 0, "catalog_port_published": 0}
    )
    sockets = bound(settings)
    try:
        assert [one.getsockname()[0] for one in sockets] == ["127.0.0.1", "127.0.0.1"]
    finally:
        for one in sockets:
            one.close()


def test_a_name_that_is_not_this_machines_is_named() -> None:
    settings = Settings().model_copy(update={"catalog_host": "192.0.2.7"})
    with pytest.raises(InvalidSettingError, match=r"Cannot listen on 192\.0\.2\.7:8181: .*TARN_CATALOG_HOST"):
        bound(settings)


@pytest.mark.long
def test_the_heap_is_frozen_when_the_catalog_is_assembled_and_before_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_secrets(tmp_path)
    for name in ("s3_access_key_id", "s3_secret_access_key"):
        (tmp_path / name).write_text("x" * 20)
    frozen: list[int] = []

    async def served(*_: object) -> None:
        frozen.append(gc.get_freeze_count())

    monkeypatch.setattr(server, "serve", served)
    monkeypatch.setattr(server, "check_store", lambda *_, **__: None)
    monkeypatch.setattr(server, "check_restored", lambda _: None)
    gc.unfreeze()
    try:
        server.run(Settings(secrets_dir=tmp_path, catalog_port_inside=0, catalog_port_published=0))
    finally:
        gc.unfreeze()
    assert frozen[0] > 10_000


def test_a_lake_whose_restore_was_interrupted_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ingest would make the tables that are still to come, and the restore could not go on."""
    write_secrets(tmp_path)
    store, served = MemoryStore(), list[object]()
    monkeypatch.setattr(Settings, "store", lambda _: store)
    monkeypatch.setattr(server, "make_routes", lambda *_: served.append("made"))
    monkeypatch.setattr(server, "listeners", lambda *_: served.append("listens"))

    async def serve(*_: object) -> None:
        served.append("serves")

    monkeypatch.setattr(server, "serve", serve)
    settings = Settings(secrets_dir=tmp_path, catalog_port_inside=0, catalog_port_published=0)
    store.put(RESTORE_MARKER, b'{"id": "b-1", "of": "2026-11-30T01:00:00Z", "closed": true}')
    with pytest.raises(NotEmptyError, match="a restore of the backup b-1 of 2026-11-30T01:00:00Z was"):
        server.run(settings)
    assert not served
    for former in (b'{"id": "b-1", "of": "2026-11-30T01:00:00Z"}', b"[]", b"{", b"{}"):
        store.put(RESTORE_MARKER, former)
        try:
            server.run(settings)
        finally:
            gc.unfreeze()
        assert served == ["made", "listens", "serves"], "of a former release, and it may have been used since"
        served.clear()

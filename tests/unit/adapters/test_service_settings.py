"""One way to read a variable and a secret file, over all services; the probes' own reader does the same."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_origin

import pytest
import structlog
from pydantic_settings import BaseSettings
from tarn_host.doctor.log_lines import SERVICE_FAULTS, known

import tarn.bootstrap.store
import tarn.cli.settings
import tarn.core.kafka_users
import tarn.gateway.server
import tarn.ingest.settings
import tarn.keeper.reaping
import tarn_catalog.settings
import tarn_demo.driver
from tarn.adapters.kafka_login import ANONYMOUS, Login
from tarn.adapters.service_settings import StoreSettings, TarnSettings, allowed, read_secret
from tarn.adapters.spark_remote import with_token
from tarn.core.credentials import files_of
from tarn.core.errors import InvalidSettingError
from tarn.core.exit_codes import INVALID
from tarn.probe import look

ROOT = Path(__file__).parents[3]
SETTINGS: tuple[type[TarnSettings], ...] = (
    tarn.bootstrap.store.Settings,
    tarn.cli.settings.Settings,
    tarn.ingest.settings.Settings,
    tarn.keeper.reaping.Settings,
    tarn_catalog.settings.Settings,
    tarn_demo.driver.Settings,
)
SEE = "; see Settings in docs/reference.md"
LEVELS = "debug, info, warning or error"
ENDPOINT = "http or https, a host and a port, as in http://minio:9000"
BUCKET = "3 to 63 lower-case letters, digits, dots and hyphens; a letter or digit at both ends"
HOSTS = "host names or addresses without ports, separated by commas, as in a.lan,b.lan"


def refused(
    kind: type[TarnSettings], monkeypatch: pytest.MonkeyPatch, **variables: str
) -> InvalidSettingError:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidSettingError) as caught:
        kind.read()
    return caught.value


@pytest.mark.parametrize("kind", SETTINGS, ids=lambda kind: kind.__module__)
@pytest.mark.parametrize(
    ("name", "value", "values"),
    [
        ("TARN_LOG_LEVEL", "loud", LEVELS),
        ("TARN_BUCKET", "No Bucket", BUCKET),
        ("TARN_REGION", "us east", "lower-case letters, digits and hyphens"),
        ("TARN_S3_ENDPOINT", "minio:9000", ENDPOINT),
        ("TARN_S3_ENDPOINT", "http://minio:9000/path", ENDPOINT),
        ("TARN_S3_ENDPOINT", "http://minio:90000", ENDPOINT),
        ("TARN_S3_ENDPOINT", "http://min io", ENDPOINT),
        ("TARN_HOSTS", "a.lan:80", HOSTS),
        ("TARN_WAREHOUSE", "", "a name that is not empty"),
        ("TARN_CATALOG_URI", "catalog:8181", "an http or https address, as in http://catalog:8181"),
        ("TARN_KAFKA_BOOTSTRAP", "kafka", "host:port, several separated by commas"),
        ("TARN_KAFKA_SECURITY_PROTOCOL", "SSL", "SASL_PLAINTEXT, SASL_SSL or PLAINTEXT"),
        ("TARN_SPARK_REMOTE", "spark:15002", "an address as in sc://spark:15002"),
        ("TARN_PROFILE", "tiny", "full or small"),
        ("TARN_PORT_S3", "0", "a whole number from 1 to 65535"),
        ("TARN_INGEST_PORT", "many", "a whole number from 0 to 65535"),
        ("TARN_CATALOG_STORE_WAIT_S", "-1", "a whole number from 0 to 3600"),
        ("TARN_REAPER_GRACE_S", "59", "a whole number from 60 to 2592000"),
    ],
)
def test_every_service_names_the_variable_its_value_and_the_allowed_values(
    kind: type[TarnSettings], monkeypatch: pytest.MonkeyPatch, name: str, value: str, values: str
) -> None:
    monkeypatch.setenv(name, value)
    if name.removeprefix("TARN_").lower() not in kind.model_fields:
        kind.read()  # not a variable of this service
        return
    error = refused(kind, monkeypatch)
    assert error.message == f"{name} is {value!r}, allowed: {values}{SEE}"
    assert error.fields == {"setting": name}


def test_all_wrong_variables_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    error = refused(StoreSettings, monkeypatch, TARN_LOG_LEVEL="loud", TARN_BUCKET="A")
    assert (
        error.message
        == f"TARN_LOG_LEVEL is 'loud', allowed: {LEVELS}; TARN_BUCKET is 'A', allowed: {BUCKET}{SEE}"
    )


@pytest.mark.parametrize("kind", SETTINGS, ids=lambda kind: kind.__module__)
def test_every_setting_with_bounds_says_them(kind: type[BaseSettings]) -> None:
    for field, info in kind.model_fields.items():
        bounded = info.annotation is int or get_origin(info.annotation) is Literal or bool(info.metadata)
        assert bool(allowed(kind, field)) == bounded, field


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("http://spark:15002/;authorization=Bearer%20t-_x", "'http://spark:15002/\u2026'"),
        ("http://spark:15002/?token=t-_x", "'http://spark:15002/\u2026'"),
        ("http://me:p/w@spark", "'http://\u2026'"),
        ("me:p;w@spark:15002", "'\u2026'"),
        ("sc2://spark/;token=t@x", "'\u2026'"),
        ("x" * 200, repr("x" * 100)),
    ],
)
def test_a_secret_in_an_address_is_not_shown_and_a_long_value_is_cut(
    monkeypatch: pytest.MonkeyPatch, value: str, shown: str
) -> None:
    error = refused(tarn.cli.settings.Settings, monkeypatch, TARN_SPARK_REMOTE=value)
    assert f"TARN_SPARK_REMOTE is {shown}, allowed: " in error.message
    assert error.__cause__ is None, "pydantic's error shows the value as it is"
    assert error.__suppress_context__


def test_an_address_may_end_in_a_slash_and_only_some_may_have_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARN_S3_ENDPOINT", "http://minio_1:9000/")
    monkeypatch.setenv("TARN_CATALOG_URI", "https://lake.example/catalog/")
    monkeypatch.setenv("TARN_KAFKA_BOOTSTRAP", "[::1]:9092,my_kafka-1.lan:9092")
    found = tarn.ingest.settings.Settings.read()
    assert (found.s3_endpoint, found.catalog_uri) == ("http://minio_1:9000", "https://lake.example/catalog")
    assert found.kafka_bootstrap == "[::1]:9092,my_kafka-1.lan:9092"


# -- secret files --------------------------------------------------------------------------------------------

CONTENTS = {
    "x": "x",
    "x\n": "x",
    "x\n\n": "x",
    " x ": " x ",
    "\nx\n": "\nx",
    "x\r\n": "x\r",
    "x\t\n": "x\t",
}
PADDED = {text.replace("x", "x" * 40): value.replace("x", "x" * 40) for text, value in CONTENTS.items()}


def of_the_broker(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The admin's password as the script in the broker's image reads it."""
    monkeypatch.setitem(sys.modules, "kafka_users", tarn.core.kafka_users)
    monkeypatch.setattr(sys, "path", [*sys.path])
    users = runpy.run_path(str(ROOT / "services" / "kafka" / "users.py"), run_name="users")
    monkeypatch.setattr("kafka.admin.KafkaAdminClient", lambda **options: options)
    (folder / "kafka_password").write_bytes((folder / "s").read_bytes())
    return str(users["client"](folder)["sasl_plain_password"])


def of_jupyter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    class Config:
        def __getattr__(self, name: str) -> Config:
            found = Config()
            setattr(self, name, found)
            return found

    made = Config()
    (folder / "jupyter_token").write_bytes((folder / "s").read_bytes())
    runpy.run_path(
        str(ROOT / "notebooks" / "jupyter_server_config.py"), init_globals={"get_config": lambda: made}
    )
    return str(vars(made.IdentityProvider)["token"])


def of_kernels(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (folder / "spark_token").write_bytes((folder / "s").read_bytes())
    monkeypatch.setenv("TARN_SPARK_REMOTE", "")
    found = runpy.run_path(str(ROOT / "notebooks" / "ipython_kernel_config.py"))
    return str(found["with_token"]("sc://h:1")).partition("Bearer%20")[2]


def of_spark_clients(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (folder / "spark_token").write_bytes((folder / "s").read_bytes())
    return with_token("sc://h:1", folder).partition("Bearer%20")[2]


READERS: dict[str, Callable[[Path, pytest.MonkeyPatch], str]] = {
    "services": lambda folder, _: read_secret(folder / "s"),
    "settings": lambda folder, _: TarnSettings(secrets_dir=folder).secret("s"),
    "probes": lambda folder, _: look.secret("s"),
    "the broker's users": of_the_broker,
    "jupyter": of_jupyter,
    "kernels": of_kernels,
    "clients of Spark": of_spark_clients,
}


@pytest.mark.parametrize("content", PADDED, ids=repr)
@pytest.mark.parametrize("reader", READERS)
def test_every_reader_trims_a_secret_by_the_same_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str, content: str
) -> None:
    monkeypatch.setenv("TARN_SECRETS_DIR", str(tmp_path))
    (tmp_path / "s").write_bytes(content.encode())
    # Text files are read with universal newlines, by every reader.
    assert READERS[reader](tmp_path, monkeypatch) == PADDED[content].replace("\r", "\n").rstrip("\n")


def test_all_of_a_services_secrets_are_read_by_that_rule(tmp_path: Path) -> None:
    """A file with a trailing newline works for every service."""
    for name in files_of("cli"):
        (tmp_path / name).write_text(f"{name}-value\n")
    cli = tarn.cli.settings.Settings(secrets_dir=tmp_path)
    secrets = tarn.cli.settings.load_secrets(tmp_path)
    assert (secrets.access_key, secrets.credential) == ("s3_access_key_id-value", "catalog_credential-value")
    access = {"access_key_id": "s3_access_key_id-value", "secret_access_key": "s3_secret_access_key-value"}
    for kind in SETTINGS:
        settings = kind(secrets_dir=tmp_path)
        if isinstance(settings, StoreSettings):
            place = {"bucket": "tarn", "endpoint": "http://minio:9000", "region": "us-east-1"}
            assert settings.store_access() == {**place, **access}
    login = Login(user="kafka_user-value", password="kafka_password-value")
    assert cli.kafka_login() == tarn.ingest.settings.Settings(secrets_dir=tmp_path).kafka_login() == login
    own = tarn.cli.settings.Settings(secrets_dir=Path("/none"), kafka_security_protocol="PLAINTEXT")
    assert own.kafka_login() == ANONYMOUS


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read: No such file or directory; the service init makes it: run scripts/up"),
        (b"\xff\xfe", "cannot be read: it is not UTF-8; the service init makes it: run scripts/up"),
        (b"\n", "is empty; remove it and run scripts/up"),
    ],
)
def test_a_secret_that_cannot_be_used_is_one_error(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    if content is not None:
        (tmp_path / "catalog_credential").write_bytes(content)
    with pytest.raises(InvalidSettingError) as caught:
        read_secret(tmp_path / "catalog_credential")
    assert caught.value.message.startswith(f"secret {tmp_path}/catalog_credential {reason}")
    assert caught.value.fields == {"path": f"{tmp_path}/catalog_credential"}
    found = known(SERVICE_FAULTS, [json.dumps({"level": "error", "reason": caught.value.message})])
    assert found is not None, "scripts/doctor recognises it in a service's log"
    assert found[0].code == "secret-missing"


@pytest.mark.parametrize(
    "line",
    [
        "minio: refused to start: open /run/tarn/secrets/root_user: no such file or directory; the init "
        "service writes it, mount its volume for minio there",
        "kafka: secret /run/tarn/secrets/kafka_password is missing or cannot be read by uid 10002; the "
        "service init makes it: run scripts/up, or docker compose up init",
        '{"level": "error", "reason": "Cannot read the principals /run/tarn/secrets/principals.json: '
        '[Errno 2] No such file or directory; run the init service"}',
    ],
)
def test_the_doctor_recognises_what_those_with_readers_of_their_own_say(line: str) -> None:
    found = known(SERVICE_FAULTS, [line])
    assert found is not None
    assert found[0].code == "secret-missing"


def run_ingest() -> int:
    from tarn.ingest.__main__ import main

    return main([])


COMMANDS: dict[str, Callable[[], int]] = {
    "bootstrap": lambda: tarn.bootstrap.store.main([]),
    "gateway": lambda: tarn.gateway.server.main([]),
    "ingest": run_ingest,
    "pipeline": lambda: tarn_demo.driver.main(["run"]),
    "reaper": lambda: tarn.keeper.reaping.main(["--once"]),
}


@pytest.fixture(autouse=True)
def own_loggers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module's logger keeps the configuration of its first use: these tests use others."""
    for module in (tarn_demo.driver, tarn.gateway.server, tarn.keeper.reaping):
        monkeypatch.setattr(module, "log", structlog.get_logger())


@pytest.mark.parametrize("command", COMMANDS)
def test_a_service_without_a_usable_secret_ends_with_that_error(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("root_user", "s3_access_key_id", "spark_token"):
        (tmp_path / name).write_text("")
    monkeypatch.setenv("TARN_SECRETS_DIR", str(tmp_path))
    monkeypatch.setenv("TARN_SPECS_DIR", str(ROOT / "services" / "specs"))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert COMMANDS[command]() == INVALID
    assert "is empty; remove it and run scripts/up" in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_a_service_with_a_wrong_variable_ends_with_that_error(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TARN_LOG_LEVEL", "loud")
    assert COMMANDS[command]() == INVALID
    seen: Any = capsys.readouterr()
    assert f"TARN_LOG_LEVEL is 'loud', allowed: {LEVELS}{SEE}" in seen.out + seen.err


def test_init_names_a_wrong_variable_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tarn.bootstrap.init import main

    monkeypatch.setenv("TARN_LOG_LEVEL", "loud")
    assert main(["--root", str(tmp_path)]) == INVALID
    assert capsys.readouterr().err == f"init: TARN_LOG_LEVEL is 'loud', allowed: {LEVELS}{SEE}\n"

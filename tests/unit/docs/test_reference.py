"""docs/reference.md says what compose file and code do: users, ports, volumes, secrets, settings."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from pydantic_settings import BaseSettings

import tarn.cli.settings
from tarn.adapters.kafka_login import Login
from tarn.cli.hostenv import host_env
from tarn.core.credentials import UIDS, files_of
from tarn.core.kafka_users import ADMIN, EVERYBODY, RIGHTS
from tests.support import reference
from tests.support.compose import COMPOSE, SERVICES, user_of
from tests.support.pages import section
from tests.support.pages import tables as tables_of
from tests.support.reference import TEXT, table

ROOT = Path(__file__).parents[3]
SETTINGS: tuple[type[BaseSettings], ...] = tuple(
    importlib.import_module(".".join(path.relative_to(ROOT / folder).with_suffix("").parts)).Settings
    for folder in ("services", "catalog")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if re.search(r"^class Settings\(", path.read_text(encoding="utf-8"), re.MULTILINE)
)
VARIABLE = re.compile(r"\bTARN_[A-Z0-9_]*[A-Z0-9]\b")
NONE = "\u2013"


def tables(heading: str) -> list[list[dict[str, str]]]:
    """The tables below a heading, each as a list of rows by column."""
    return tables_of(section(TEXT, heading))


def rows_of_services() -> dict[str, dict[str, str]]:
    return {row["service"]: row for row in table("Services, users, ports")}


def test_the_services_are_those_of_the_compose_file_with_their_images():
    rows = rows_of_services()
    assert set(rows) == set(SERVICES)
    for name, row in rows.items():
        assert SERVICES[name]["image"] == f"{row['image']}:${{COMPOSE_PROJECT_NAME}}", name


def test_every_service_runs_as_the_user_of_the_table_and_its_secrets_belong_to_it():
    for name, row in rows_of_services().items():
        uid = int(row["uid"].split()[0])
        assert user_of(name) == uid, name
        if name in UIDS:
            assert UIDS[name] == uid, name
    with_secrets = {n for n, s in SERVICES.items() if f"secrets-{n}" in str(s.get("volumes"))}
    assert set(UIDS) == with_secrets
    uids = [row["uid"] for row in rows_of_services().values()]
    assert len(set(uids)) == len(uids)
    capabilities = re.search(r"\((.*) only\)", rows_of_services()["init"]["uid"])
    assert capabilities
    assert SERVICES["init"]["cap_add"] == capabilities[1].split(", ")
    assert not [name for name, service in SERVICES.items() if name != "init" and "cap_add" in service]


def test_every_published_port_is_on_loopback_with_the_variable_and_default_of_the_table():
    for name, row in rows_of_services().items():
        cell = row["on 127.0.0.1 (variable)"]
        wanted = {} if cell == NONE else {v: d for d, v in re.findall(r"(\d+) `(TARN_PORT_\w+)`", cell)}
        found = {}
        for port in SERVICES[name].get("ports", []):
            parts = re.fullmatch(r"127\.0\.0\.1:\$\{(\w+):-(\d+)\}:(\d+)", port)
            assert parts, f"{name}: {port}"
            found[parts[1]] = parts[2]
            assert parts[3] in re.findall(r"\d+", row["inside"]), f"{name}: {port}"
        assert found == wanted, name
        for variable, default in wanted.items():
            field = tarn.cli.settings.Settings.model_fields[variable.removeprefix("TARN_").lower()]
            assert str(field.default) == default, variable
            assert SERVICES["cli"]["environment"][variable] == f"${{{variable}:-{default}}}", variable


def test_every_secret_volume_is_mounted_by_init_and_by_its_one_consumer_read_only():
    mounted: dict[str, set[tuple[str, str]]] = {}
    for name, service in SERVICES.items():
        for volume in service.get("volumes", []):
            source, _, target = volume.partition(":")
            if not source.startswith("."):
                mounted.setdefault(source, set()).add((name, target))
    assert set(mounted) == set(COMPOSE["volumes"])
    for consumer in UIDS:
        assert mounted.pop(f"secrets-{consumer}") == {
            ("init", f"/secrets/{consumer}"),
            (consumer, "/run/tarn/secrets:ro"),
        }
    assert mounted == {
        "minio-data": {("minio", "/data")},
        "kafka-data": {("kafka", "/data")},
        "notebooks-work": {("jupyter", "/notebooks/work")},
    }
    *listed, secrets = [row["volume"] for row in table("Volumes")]
    assert secrets.startswith("secrets-<consumer>, ")
    assert sorted([*listed, *(f"secrets-{consumer}" for consumer in UIDS)]) == sorted(COMPOSE["volumes"])


def test_every_consumer_holds_the_secrets_of_the_table_and_no_other():
    held = reference.secrets()
    assert held == {consumer: set(files_of(consumer)) for consumer in UIDS}
    explained = {name for row in reference.table("Secrets", "file") for name in reference.words(row["file"])}
    assert explained == set().union(*held.values())


def test_every_user_of_kafka_has_the_rights_of_the_table_and_no_other():
    rows = table("Kafka's users and what they may do")
    admin, *found = [(r["user"], r["resource"], r["names"], r["may"]) for r in rows]
    assert admin[0] == ADMIN
    assert sorted(found) == sorted(
        (
            "everybody" if user == EVERYBODY else user,
            right.resource,
            "all" if right.name == "*" else f"`{right.name}{'…' if right.prefixed else ''}`",
            "nothing, whatever else is allowed" if right.denied else ", ".join(right.operations),
        )
        for user, rights in RIGHTS.items()
        for right in rights
    )


def documented() -> set[str]:
    cells = [line.split("|")[1] for line in TEXT.splitlines() if line.startswith("|")]
    ports = [row["on 127.0.0.1 (variable)"] for row in rows_of_services().values()]
    return {name for cell in (*cells, *ports) for name in VARIABLE.findall(cell)}


def used() -> dict[str, str]:
    """Variable -> a file that uses it: the compose file, everything that goes into an image, the settings."""
    found: dict[str, str] = {}
    paths = [ROOT / "docker-compose.yml"]
    for folder in ("services", "catalog", "spark", "trino", "minio", "notebooks"):
        paths += [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    for path in paths:
        if "__pycache__" in path.parts or path.stat().st_size > 1_000_000:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for name in VARIABLE.findall(text):
            found.setdefault(name, str(path.relative_to(ROOT)))
    for settings in SETTINGS:
        assert settings.model_config["env_prefix"] == "TARN_"
        for field in settings.model_fields:
            found.setdefault(f"TARN_{field.upper()}", settings.__module__)
    return found


@pytest.mark.long
def test_every_variable_that_is_used_is_documented_and_no_other():
    found = used()
    assert {name: found[name] for name in sorted(set(found) - documented())} == {}
    assert sorted(documented() - set(found)) == []


def test_the_scan_sees_variables_of_every_kind():
    found = used()
    assert len(SETTINGS) >= 5
    for name in (
        "TARN_MEM_TRINO",
        "TARN_BUCKET",
        "TARN_INGEST_LISTEN",
        "TARN_TRINO_HEAP",
        "TARN_KAFKA_PASSWORD",
    ):
        assert name in found
    assert len(found) > 40


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: s.__module__)
def test_the_defaults_in_the_code_are_those_of_the_table(settings: type[BaseSettings]):
    defaults = {row["variable"]: row["default"] for row in table("Settings")}
    checked = 0
    for field, info in settings.model_fields.items():
        name = f"TARN_{field.upper()}"
        if name in defaults:
            assert str(info.default) == defaults[name], name
            checked += 1
    assert checked >= 3, "the fewest: level of logging, folder of secrets, and one of its own"


def test_the_defaults_in_the_compose_file_are_those_of_the_table():
    (rows,) = tables_of(TEXT.partition("### For Compose")[2].partition("###")[0])
    given: dict[str, set[str]] = {}
    for variable, default in re.findall(r"\$\{(\w+):?-([^}]*)\}", (ROOT / "docker-compose.yml").read_text()):
        given.setdefault(variable, set()).add(default)
    stated = {row["variable"]: row["default"] for row in rows}
    found = {name: given[name] for name in stated if name in given}
    assert len(found) > 15
    assert found == {name: {stated[name]} for name in found}


ENTRY_POINTS = ("services/kafka", "spark", "trino", "catalog/reference")
IN_WORDS = {"the class archive"}


@pytest.mark.parametrize("folder", ENTRY_POINTS)
def test_the_defaults_in_an_entry_point_are_those_of_the_table(folder: str):
    text = (ROOT / folder / "entrypoint").read_text(encoding="utf-8")
    written: dict[str, str] = {}
    for name, default in re.findall(r"\$\{(TARN_[A-Z0-9_]+):-([^}]*)\}", text):
        written.setdefault(name, default)
    rows = (row for rows in tables("Settings") for row in rows if "default" in row)
    defaults = {name: row["default"] for row in rows for name in VARIABLE.findall(row["variable"])}
    found = {n: defaults[n].split(", ")[0] for n in written if defaults[n] not in IN_WORDS}
    assert found == {n: written[n] for n in found}
    assert len(found) >= 3


def test_env_prints_the_documented_variables():
    section = tables("Settings")[-1]
    named = {name for row in section for name in re.findall(r"[A-Z0-9_]{6,}", row["variable"])}
    secrets = tarn.cli.settings.Secrets(
        access_key="a", secret_key="s", credential="c", jupyter_token="j", spark_token="t"
    )
    assert set(host_env(tarn.cli.settings.Settings(), secrets, Login())) == named

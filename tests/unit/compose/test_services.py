"""Compose file, table of services, images and documents agree on each service; a failure says what to add."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import proxy_bypass_environment

import pytest
import yaml
from tarn_host.bench.classroom import STUDENTS_MAX

from tarn.core.services import SERVICES as ROWS
from tarn.core.services import Right, Service
from tests.support import compose, reference
from tests.support.compose import SERVICES, addresses, dockerfile_of, probe_of, user_of
from tests.support.pages import section, tables, text_of

TABLE = dict(ROWS)
FILE = "docker-compose.yml"
MODULE = "services/tarn/core/services.py"
REPLICAS = compose.ROOT / "catalog/replicas/compose.yml"
REFERENCE = compose.ROOT / "catalog/reference/compose.yml"
STORE_USERS = "Store users and what they may do (bucket `tarn`)"
KAFKA_USERS = "Kafka's users and what they may do"
# The store's root user, and who sets its users up; what no setting can make larger.
ROOT_USERS = ("minio", "bootstrap")
FIXED_LIMIT = ("init", "bootstrap")
TOKENS = ("catalog", "spark", "jupyter")
# One that has read tables has 22 or more (counted).
THREADS_PER_KERNEL = 40
# Held to be shown to people, not to log in.
SHOWN = {("cli", "jupyter")}


def services_of(file: Path) -> dict[str, Any]:
    """The services of a compose file that goes on top of the stack's own."""
    text = re.sub(r"!\w+", "", file.read_text(encoding="utf-8"))
    found: dict[str, Any] = yaml.safe_load(text)["services"]
    return found


DOCKERFILES = {
    service["build"]["dockerfile"]
    for services in (SERVICES, services_of(REPLICAS), services_of(REFERENCE))
    for service in services.values()
    if "build" in service
}


def missing(name: str) -> list[str]:
    """What a service lacks, as `file: what to do`; empty if it is complete."""
    if name not in SERVICES:
        return [f"{FILE}: add the service {name}, or remove its row from {MODULE}"]
    parts = (_confinement, _proxies, _secrets, _image, _reach, _rows)
    return [said for part in parts for said in part(name)]


def _confinement(name: str) -> Iterator[str]:
    service = SERVICES[name]
    wanted: dict[str, Any] = {"init": True, "read_only": True, "cap_drop": ["ALL"]}
    wanted["security_opt"] = ["no-new-privileges:true"]
    if any(service.get(key) != value for key, value in wanted.items()) or not service.get("pids_limit"):
        yield f"{FILE}: {name} needs `<<: *hardened`, or `<<: *long-running` if it does not end"
    limit = service.get("mem_limit", "")
    if name not in FIXED_LIMIT and not str(limit).startswith(f"${{TARN_MEM_{name.upper()}:-"):
        yield f"{FILE}: {name} needs `mem_limit: ${{TARN_MEM_{name.upper()}:-…}}`, which doctor names"
    if service.get("memswap_limit") != limit:
        yield f"{FILE}: {name} needs a `memswap_limit` that is its `mem_limit`"
    if not any(str(mount).startswith("/tmp:") for mount in service.get("tmpfs", [])):
        yield f'{FILE}: {name} needs `tmpfs: ["/tmp:size=…"]`'


def _proxies(name: str) -> Iterator[str]:
    environment = SERVICES[name].get("environment") or {}
    for variable in ("NO_PROXY", "no_proxy"):
        if environment.get(variable) != compose.COMPOSE["x-inside"]["NO_PROXY"]:
            yield f"{FILE}: {name} needs {variable}: `<<: *inside` in its environment"


def _secrets(name: str) -> Iterator[str]:
    own = f"secrets-{name}:/run/tarn/secrets:ro"
    has_volume = own in SERVICES[name].get("volumes", [])
    if has_volume and name not in TABLE:
        yield f"{MODULE}: add a row for {name}, which has a volume of secrets"
    if name not in TABLE:
        return
    if not has_volume:
        yield f"{FILE}: {name} needs the volume `{own}`, as it has a row in {MODULE}"
    if f"secrets-{name}:/secrets/{name}" not in SERVICES["init"]["volumes"]:
        yield f"{FILE}: init needs the volume `secrets-{name}:/secrets/{name}`"
    if f"secrets-{name}" not in compose.COMPOSE["volumes"]:
        yield f"{FILE}: declare the volume `secrets-{name}:` at the end"
    if user_of(name) != TABLE[name].uid:
        yield f'{FILE}: {name} runs as {user_of(name)}; give it `user: "{TABLE[name].uid}:{TABLE[name].uid}"`'


def _image(name: str) -> Iterator[str]:
    dockerfile = SERVICES[name]["build"]["dockerfile"]
    uid = user_of(name)
    if uid and not re.search(rf"useradd [^&|]*--uid {uid} [^&|]*\b{name}\b", dockerfile_of(name)):
        yield f"{dockerfile}: add the user {name} with uid {uid} (useradd)"
    if name in compose.LONG_RUNNING:
        try:
            probe = probe_of(name)
        except AssertionError as error:
            yield str(error)
        else:
            if not probe.is_file():
                yield f"{probe.relative_to(compose.ROOT)}: write the probe of {name}"


def _reach(name: str) -> Iterator[str]:
    row = TABLE.get(name)
    used = {address.partition(":")[0] for address in addresses(name)}
    holds = {
        "minio": row is not None and (row.store is not None or name in ROOT_USERS),
        "kafka": row is not None and bool(row.kafka),
        **{server: row is not None and server in row.credentials_for for server in TOKENS},
    }
    for server, has_credential in holds.items():
        if server == name or (name, server) in SHOWN:
            continue
        if has_credential and server not in used:
            yield f"{FILE}: {name} has a credential for {server} and no setting with its address"
        if server in used and not has_credential:
            yield f"{MODULE}: {name} uses {server} and has no credential for it"


def _rows(name: str) -> Iterator[str]:
    row, limit = TABLE.get(name), f"TARN_MEM_{name.upper()}"
    wanted = {"Services, users, ports": "service", "Who uses whom": "service"}
    if name not in FIXED_LIMIT:
        wanted["Settings"] = "variable"
    if row is not None:
        wanted["Secrets"] = "consumer"
        wanted |= {STORE_USERS: "user"} if row.store is not None else {}
        wanted |= {KAFKA_USERS: "user"} if row.kafka else {}
    for heading, column in wanted.items():
        entry = limit if column == "variable" else name
        rows = [one for rows in tables(section(reference.TEXT, heading)) for one in rows]
        if entry not in {word for one in rows for word in reference.words(one.get(column, ""))}:
            yield f"docs/reference.md, {heading}: add a row for {entry}"
    parts = tables(section(text_of("docs/architecture.md"), "Parts"))[0]
    if name not in [part["part"] for part in parts]:
        yield f"docs/architecture.md, Parts: add a row for {name}"


@pytest.mark.parametrize("name", sorted({*SERVICES, *TABLE}))
def test_a_service_is_complete(name: str) -> None:
    found = missing(name)
    assert not found, "\n" + "\n".join(found)


def aliases(services: Mapping[str, Any]) -> set[str]:
    """The names of services, and the aliases that they have in their networks."""
    networks = [service.get("networks") for service in services.values()]
    own = [one for each in networks if isinstance(each, dict) for one in each.values() if one]
    return {*services, *(alias for one in own for alias in one.get("aliases", ()))}


def test_no_name_of_the_stack_goes_through_a_proxy() -> None:
    """Docker's client puts the proxies of its own settings into every container."""
    found = compose.COMPOSE["x-inside"]["NO_PROXY"].split(",")
    loopback = {"localhost", "127.0.0.1", "::1"}
    names = aliases(SERVICES) | aliases(services_of(REPLICAS))
    assert {"catalog.own", "catalog-front.own", "minio"} <= names
    assert sorted(found) == sorted(names | loopback)


def test_a_proxy_of_the_environment_is_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"http_proxy": "http://proxy:1", **SERVICES["cli"]["environment"]})
    hosts = sorted({urlsplit(f"//{each}").hostname for name in SERVICES for each in addresses(name)}, key=str)
    assert len(hosts) >= 6
    assert [
        host for host in [*hosts, "127.0.0.1", "catalog.own"] if not proxy_bypass_environment(str(host))
    ] == []
    assert not proxy_bypass_environment("example.com")


def built_from(text: str) -> str:
    """The lines of a Dockerfile that its last stage consists of, those of the stages below it included."""
    stages: dict[str, str] = {}
    base, lines = "", ""
    for line in text.replace("\\\n", " ").splitlines():
        if begin := re.match(r"FROM (\S+)(?: AS (\S+))?$", line):
            lines = stages.get(begin[1], "")
            base = begin[2] or ""
        else:
            lines += line + "\n"
        stages[base] = lines
    return lines


@pytest.mark.parametrize("name", sorted(DOCKERFILES))
def test_every_image_has_the_python_that_doctor_and_sbom_run_in_it(name: str) -> None:
    text = built_from((compose.ROOT / name).read_text(encoding="utf-8"))
    packages = " ".join(re.findall(r"apt-get (?:-\w+ )?install ([^&]*)", text)).split()
    assert "python3" in packages, f"{name}: install python3"


def test_a_class_of_kernels_has_threads_enough() -> None:
    """Twenty kernels met a limit of 512: some died, and one waited in a scan for ever."""
    assert SERVICES["jupyter"]["pids_limit"] >= STUDENTS_MAX * THREADS_PER_KERNEL


def test_uids_are_used_once() -> None:
    uids = [row.uid for row in TABLE.values()]
    assert len(set(uids)) == len(uids)


def test_a_new_service_is_told_all_that_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe of CONTRIBUTING, as the test says it to somebody who began with the compose file."""
    begun = {
        "image": "tarn/services:x",
        "build": {"dockerfile": "services/Dockerfile"},
        "user": "10099:10099",
        "restart": "unless-stopped",
        "environment": {"TARN_S3_ENDPOINT": "http://minio:9000"},
        "healthcheck": {"test": ["CMD", "/opt/tarn/probe/runner.py", "newcomer"]},
        "volumes": ["secrets-newcomer:/run/tarn/secrets:ro"],
    }
    monkeypatch.setitem(SERVICES, "newcomer", begun)
    monkeypatch.setattr(compose, "LONG_RUNNING", (*compose.LONG_RUNNING, "newcomer"))
    places = [line.partition(":")[0] for line in missing("newcomer")]
    assert set(places) == {
        *("docker-compose.yml", "services/tarn/core/services.py", "services/Dockerfile"),
        *(f"docs/reference.md, {one}" for one in ("Services, users, ports", "Who uses whom", "Settings")),
        "docs/architecture.md, Parts",
    }
    row = Service(uid=10098, store={}, kafka=(Right(resource="TOPIC", name="*", operations=("READ",)),))
    monkeypatch.setitem(TABLE, "newcomer", row)
    said = "\n".join(missing("newcomer"))
    for part in (
        "newcomer needs NO_PROXY: `<<: *inside`",
        "init needs the volume `secrets-newcomer:/secrets/newcomer`",
        "declare the volume `secrets-newcomer:`",
        "newcomer runs as 10099",
        "newcomer has a credential for kafka and no setting",
        "docs/reference.md, Secrets: add a row",
        f"docs/reference.md, {STORE_USERS}: add a row",
        f"docs/reference.md, {KAFKA_USERS}: add a row",
    ):
        assert part in said, part


def test_a_row_without_a_service_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLE, "newcomer", Service(uid=10099))
    assert missing("newcomer") == [
        "docker-compose.yml: add the service newcomer, or remove its row from services/tarn/core/services.py"
    ]

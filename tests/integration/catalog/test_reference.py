"""Apache's reference server in the place of Tarn's catalog: where it answers alike; a table that moves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError
from testcontainers.core.container import DockerContainer

from tests.integration.catalog.conftest import REPOSITORY, Serve, StoreServer, write_secrets
from tests.support.healthy import HEALTHY_WITHIN_S, await_health

SUITE = "tests/contract/catalog/test_pyiceberg.py"
SUITE_TIMEOUT_S = 600
BUILD_TIMEOUT_S = 900
ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
INSIDE = "it looks behind the REST interface"
NAMES = "the reference server takes names that Tarn refuses"
ELSEWHERE = {
    "test_a_table_from_birth_to_death": INSIDE,
    "test_what_cannot_be_registered_is_named": INSIDE,
    "test_a_purged_table_is_gone_and_its_files_are_marked": INSIDE,
    "test_locations_are_chosen_by_the_catalog": INSIDE,
    "test_bad_names_are_refused": NAMES,
    "test_namespaces_come_and_go": "a level with a space in it is listed under another name",
    "test_odd_but_good_names_work": "a percent sign in a name is refused by its HTTP server",
    "test_namespace_properties": "a namespace has the property location, which nobody set",
    "test_a_dropped_table_is_registered_again": "a table can be registered under two names",
    "test_properties_of_a_table_that_are_not_properties": "reserved properties are taken for ordinary ones",
    "test_missing_namespaces_and_tables_are_named": "tables of a namespace that does not exist are none",
}
SLOW = "test_32_writers_at_once_lose_nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The running reference server.

    Attributes:
        properties: properties of pyiceberg's REST catalog for it.
        state: its SQLite file.
    """

    properties: dict[str, str]
    state: Path


@pytest.fixture(scope="module")
def image() -> str:
    name = f"tarn/reference:{os.environ.get('TARN_TEST_PROJECT', 'dev')}"
    base = os.environ.get("TARN_BASE", "debian:trixie-slim")
    command = ["docker", "build", "--quiet", "--build-arg", f"BASE={base}", "--tag", name]
    command += ["-f", str(REPOSITORY / "catalog/reference/Dockerfile"), str(REPOSITORY)]
    environ = {**os.environ, "DOCKER_BUILDKIT": "1"}
    done = subprocess.run(
        command, env=environ, timeout=BUILD_TIMEOUT_S, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    return name


@pytest.fixture
def reference(image: str, minio: StoreServer, tmp_path: Path) -> Iterator[Reference]:
    """The image as in Compose: the catalog's rights in the store, its state in a folder of the test."""
    key, client_key = minio.user("catalog"), minio.user("spark")
    secrets, state = tmp_path / "reference-secrets", tmp_path / "state"
    secrets.mkdir()
    state.mkdir()
    write_secrets(secrets, s3_access_key_id=key[0], s3_secret_access_key=key[1])
    for path in secrets.iterdir():
        path.chmod(0o444)
    container = DockerContainer(image).with_network(minio.network)
    container.with_volume_mapping(str(secrets), "/run/tarn/secrets", "ro")
    container.with_volume_mapping(str(state), "/state", "rw")
    container.with_tmpfs_mount("/tmp", "exec,size=256m")
    container.with_env("REFERENCE_STATE", "/state")
    container.with_kwargs(
        user=f"{os.getuid()}:{os.getgid()}",
        init=True,
        read_only=True,
        cap_drop=["ALL"],
        security_opt=["no-new-privileges:true"],
        mem_limit="1g",
        pids_limit=512,
    )
    container.ports["8181/tcp"] = ("127.0.0.1", None)  # type: ignore[assignment]
    with container:
        await_health(container.get_wrapped_container(), what="the reference server")
        yield Reference(
            properties={
                "type": "rest",
                "uri": f"http://127.0.0.1:{container.get_exposed_port(8181)}",
                "s3.endpoint": minio.endpoint,
                "s3.access-key-id": client_key[0],
                "s3.secret-access-key": client_key[1],
            },
            state=state / "catalog.db",
        )


@pytest.mark.in_turn(6, "our suite asks for what the reference server does not do, unlisted")
@pytest.mark.timeout(BUILD_TIMEOUT_S + SUITE_TIMEOUT_S + 3 * HEALTHY_WITHIN_S)
def test_our_suite_passes_on_it_but_for_what_is_listed(reference: Reference, tmp_path: Path) -> None:
    """The suite is ours, so what is listed is a difference, not a fault of theirs."""
    report = tmp_path / "report.xml"
    named = {"properties": reference.properties, "state": str(reference.state)}
    command = [sys.executable, "-m", "pytest", SUITE, "-q", "-p", "no:cacheprovider", "-k", f"not {SLOW}"]
    done = subprocess.run(
        [*command, f"--junitxml={report}"],
        cwd=REPOSITORY,
        env={**os.environ, "TARN_REFERENCE": json.dumps(named)},
        timeout=SUITE_TIMEOUT_S,
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.is_file(), done.stdout[-3_000:]
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    failed = {
        str(case.get("name")).partition("[")[0]
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    }
    assert failed == set(ELSEWHERE), done.stdout[-3_000:]
    passed = {str(case.get("name")).partition("[")[0] for case in cases} - failed
    assert "test_a_stale_commit_is_a_conflict_and_changes_nothing" in passed
    assert len(passed) >= 9


def test_a_table_moves_over_and_back(reference: Reference, serve: Serve) -> None:
    ours, theirs = serve(1)[0].open(), load_catalog("theirs", **reference.properties)
    for catalog in (ours, theirs):
        catalog.create_namespace("move")
    born = ours.create_table("move.t", schema=ROWS.schema)
    born.append(ROWS)
    ours.drop_table("move.t")

    there = theirs.register_table("move.t", born.metadata_location)
    assert there.metadata.table_uuid == born.metadata.table_uuid
    there.append(ROWS)
    theirs.drop_table("move.t")
    with pytest.raises(NoSuchTableError):
        theirs.load_table("move.t")

    back = ours.register_table("move.t", there.metadata_location)
    back.append(ROWS)
    assert back.metadata.table_uuid == born.metadata.table_uuid
    assert back.scan().to_arrow().num_rows == 9
    assert len(back.metadata.snapshots) == 3
    assert back.metadata_location.rpartition("/")[0] == born.metadata_location.rpartition("/")[0]

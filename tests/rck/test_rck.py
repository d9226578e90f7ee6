"""Apache's REST Compatibility Kit against the catalog: every test passes, or is listed here with its reason.

The catalog runs in this process over a folder that the kit's container sees as /tmp, because the kit asks for
tables at `file:/tmp/…`: on the lake in the store those tests could only be refused. Apache's reference server
(catalog/reference) is scored by the same kit beside it, over such a folder too.
"""

from __future__ import annotations

import os
import subprocess
import time
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tarn.adapters.store import FileStore
from tarn.core.naming import WarehouseLayout
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.testing.server import serving
from tarn_testkit.started import free_ports

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TAG = os.environ.get("TARN_TEST_PROJECT", "dev")
IMAGE = f"tarn/rck:{TAG}"
REFERENCE_IMAGE = f"tarn/reference:{TAG}"
TESTS = 157
BUILD_TIMEOUT_S = 900
RUN_TIMEOUT_S = 480
STARTED_WITHIN_S = 180
COMMON_SWITCHES = (
    "-Drck.local=false",
    "-Drck.requires-namespace-create=true",
    "-Drck.supports-names-with-dot=true",
)
# A requested location is the folder that a table or view gets its own folder in.
SWITCHES = (*COMMON_SWITCHES, "-Drck.overrides-requested-location=true")
MOVES = "a table does not move: the test replaces it with a new location, which does not end in its uuid"
EMPTY = "the kit: for catalogs whose namespaces may have an empty name"
SLASH = "the kit: for catalogs whose names may contain a slash"
NESTED = "the kit has no switch for nested namespaces over REST; tests/contract/catalog has tests of them"
KNOWN = {
    "testCompleteReplaceTransaction": ("error", MOVES),
    "testCompleteCreateOrReplaceTransactionReplace": ("error", MOVES),
    "testNamespaceWithSlash": ("skipped", SLASH),
    "testTableNameWithSlash": ("skipped", SLASH),
    "createAndDropEmptyNamespace": ("skipped", EMPTY),
    "listNamespacesWithEmptyNamespace": ("skipped", EMPTY),
    "listTablesInEmptyNamespace": ("skipped", EMPTY),
    "listViewsInEmptyNamespace": ("skipped", EMPTY),
    "namespacePropertiesOnEmptyNamespace": ("skipped", EMPTY),
    "testListNestedNamespaces": ("skipped", NESTED),
    "testDropNamespaceWithNestedNamespace": ("skipped", NESTED),
    "createTableInUniqueLocation": ("skipped", "the kit: only against its own server"),
}
DOTS = "a name with a dot in it comes back as two levels"
CREATED = "a table is created in a namespace that does not exist"
SKIPPED_BY_BOTH = {name: why for name, why in KNOWN.items() if why[0] == "skipped"}
KNOWN_OF_REFERENCE = {
    **SKIPPED_BY_BOTH,
    "testNamespaceWithDot": ("failure", DOTS),
    "tableCreationWithoutNamespace": ("failure", CREATED),
}


class WholeFolder(WarehouseLayout):
    """A layout whose warehouse is the whole folder: the kit's locations begin with `file:/tmp/`."""

    @property
    def warehouse(self) -> str:
        return self.base


def built(name: str, *words: str) -> str:
    """Build an image of this clone and return its name."""
    base = os.environ.get("TARN_BASE", "debian:trixie-slim")
    command = ["docker", "build", "--quiet", "--build-arg", f"BASE={base}", "--tag", name, *words]
    environ = {**os.environ, "DOCKER_BUILDKIT": "1"}
    done = subprocess.run(
        command, env=environ, timeout=BUILD_TIMEOUT_S, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    return name


@pytest.fixture(scope="module")
def image() -> str:
    return built(IMAGE, str(HERE))


def results(reports: Path) -> dict[str, tuple[str, str]]:
    """Return name -> (outcome, message) of every test that the kit reports."""
    found: dict[str, tuple[str, str]] = {}
    for report in reports.glob("TEST-*.xml"):
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            bad = next(
                (case.find(k) for k in ("skipped", "error", "failure") if case.find(k) is not None), None
            )
            outcome = ("passed", "") if bad is None else (bad.tag, (bad.get("message") or "")[:500])
            name = str(case.get("name"))
            assert name not in found, name
            found[name] = outcome
    return found


def run_kit(
    image: str, folder: Path, target: Path, client: Mapping[str, str], switches: tuple[str, ...]
) -> dict[str, tuple[str, str]]:
    """Run the kit against the server that `client` names; name -> (outcome, message).

    Args:
        image: image of the kit.
        folder: folder that the kit sees as /tmp.
        target: folder for its reports.
        client: properties of its client, in the kit's spelling.
        switches: what the server promises.
    """
    command = ["docker", "run", "--rm", "--network=host", f"--user={os.getuid()}:{os.getgid()}"]
    command += [word for name, value in client.items() for word in ("-e", f"CATALOG_{name}={value}")]
    command += ["-v", f"{folder}:/tmp", "-v", f"{target}:/rck/target", image]
    ran = subprocess.run(
        [*command, f"-DargLine={' '.join(switches)}"],
        timeout=RUN_TIMEOUT_S,
        capture_output=True,
        text=True,
        check=False,
    )
    found = results(target / "surefire-reports")
    assert len(found) == TESTS, ran.stdout[-3_000:]
    return found


def unexpected(
    found: Mapping[str, tuple[str, str]], known: Mapping[str, tuple[str, str]]
) -> dict[str, tuple[str, str]]:
    """The tests whose outcome is not the listed one; without an entry that is `passed`."""
    return {
        name: (outcome, message)
        for name, (outcome, message) in found.items()
        if outcome != known.get(name, ("passed", ""))[0]
    }


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """The folder that both sides see as /tmp, and the one for the reports."""
    made = tmp_path / "tmp", tmp_path / "target"
    for one in made:
        one.mkdir()
    return made


@pytest.mark.timeout(BUILD_TIMEOUT_S + RUN_TIMEOUT_S + 60)
def test_the_kit_passes_but_for_what_is_listed(
    image: str, folders: tuple[Path, Path], tmp_path: Path, record_property
) -> None:
    folder, target = folders
    catalog = Catalog(FileStore(folder), WholeFolder(base="file:/tmp"))
    with serving(catalog, tmp_path / "secrets") as running:
        client = {
            "URI": running.published,
            "WAREHOUSE": "tarn",
            "CREDENTIAL": running.credential,
            "OAUTH2__SERVER__URI": f"{running.published}/v1/oauth/tokens",
            "IO__IMPL": "org.apache.iceberg.hadoop.HadoopFileIO",
        }
        found = run_kit(image, folder, target, client, SWITCHES)
    record_property("outcomes", dict(Counter(outcome for outcome, _ in found.values())))
    assert unexpected(found, KNOWN) == {}


@pytest.fixture
def reference_port(folders: tuple[Path, Path]) -> Iterator[int]:
    """The port of the reference server over the folder."""
    name = f"tarn-reference-{TAG}-{os.getpid()}"
    port = int(free_ports(["reference"])["reference"])
    server = {"REST_PORT": str(port), "WAREHOUSE": "/tmp/warehouse", "URI": "jdbc:sqlite:/tmp/catalog.db"}
    image = built(REFERENCE_IMAGE, "-f", str(ROOT / "catalog/reference/Dockerfile"), str(ROOT))
    command = ["docker", "run", "--rm", "--detach", "--name", name, "--network=host", "--entrypoint", "java"]
    command += [f"--user={os.getuid()}:{os.getgid()}", "-v", f"{folders[0]}:/tmp"]
    command += [word for key, value in server.items() for word in ("-e", f"CATALOG_{key}={value}")]
    command += [image, "-cp", "/opt/reference/*", "org.apache.iceberg.rest.RESTCatalogServer"]
    subprocess.run(command, check=True, timeout=180, capture_output=True)
    try:
        until = time.monotonic() + STARTED_WITHIN_S
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/config", timeout=5):
                    break
            except OSError:
                assert time.monotonic() < until, "the reference server does not answer"
                time.sleep(0.5)
        yield port
    finally:
        subprocess.run(["docker", "rm", "--force", name], check=False, timeout=60, capture_output=True)


@pytest.mark.timeout(2 * BUILD_TIMEOUT_S + RUN_TIMEOUT_S + STARTED_WITHIN_S + 60)
def test_the_score_of_the_reference_server(
    image: str, folders: tuple[Path, Path], reference_port: int, record_property
) -> None:
    client = {
        "URI": f"http://127.0.0.1:{reference_port}",
        "WAREHOUSE": "/tmp/warehouse",
        "IO__IMPL": "org.apache.iceberg.hadoop.HadoopFileIO",
    }
    switches = (*COMMON_SWITCHES, "-Drck.overrides-requested-location=false")
    found = run_kit(image, *folders, client, switches)
    record_property("outcomes", dict(Counter(outcome for outcome, _ in found.values())))
    assert unexpected(found, KNOWN_OF_REFERENCE) == {}

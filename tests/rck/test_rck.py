"""Apache's REST Compatibility Kit against the catalog: every test passes, or is listed here with its reason.

The catalog runs in this process over a folder that the kit's container sees as /tmp, because the kit asks for
tables at `file:/tmp/…`: on the lake in the store those tests could only be refused.
"""

from __future__ import annotations

import os
import subprocess
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import pytest

from tarn.adapters.store import FileStore
from tarn.core.naming import WarehouseLayout
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.testing.server import serving

HERE = Path(__file__).parent
IMAGE = f"tarn/rck:{os.environ.get('TARN_TEST_PROJECT', 'dev')}"
TESTS = 157
BUILD_TIMEOUT_S = 900
RUN_TIMEOUT_S = 240
SWITCHES = (
    "-Drck.local=false",
    "-Drck.requires-namespace-create=true",
    # A requested location is the folder that a table or view gets its own folder in.
    "-Drck.overrides-requested-location=true",
    "-Drck.supports-names-with-dot=true",
)
MOVES = "a table does not move: the test replaces it with the folder above its location as its new location"
EMPTY = "the kit: for catalogs whose namespaces may have an empty name"
SLASH = "the kit: for catalogs whose names may contain a slash"
NESTED = "the kit has no switch for nested namespaces over REST; tests/contract/catalog has tests of them"
KNOWN = {
    "testCompleteReplaceTransaction": ("error", MOVES),
    "testCompleteCreateOrReplaceTransactionReplace": ("error", MOVES),
    "testLoadTableWithMissingMetadataFile(Path)": (
        "failure",
        "it removes a metadata file by hand; such files never change, so the catalog answers from its cache",
    ),
    "createViewWithCustomMetadataLocation": (
        "error",
        "it asks for metadata outside of the view's own location, which is refused",
    ),
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


class WholeFolder(WarehouseLayout):
    """A layout whose warehouse is the whole folder: the kit's locations begin with `file:/tmp/`."""

    @property
    def warehouse(self) -> str:
        return self.base


@pytest.fixture(scope="module")
def image() -> str:
    base = os.environ.get("TARN_BASE", "debian:trixie-slim")
    command = ["docker", "build", "--quiet", "--build-arg", f"BASE={base}", "--tag", IMAGE, str(HERE)]
    environ = {**os.environ, "DOCKER_BUILDKIT": "1"}
    built = subprocess.run(
        command, env=environ, timeout=BUILD_TIMEOUT_S, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr[-3_000:]
    return IMAGE


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


@pytest.mark.timeout(BUILD_TIMEOUT_S + RUN_TIMEOUT_S + 60)
def test_the_kit_passes_but_for_what_is_listed(image: str, tmp_path: Path, record_property) -> None:
    folder, target = tmp_path / "tmp", tmp_path / "target"
    folder.mkdir()
    target.mkdir()
    catalog = Catalog(FileStore(folder), WholeFolder(base="file:/tmp"))
    with serving(catalog, tmp_path / "secrets") as running:
        client = {
            "URI": running.published,
            "WAREHOUSE": "tarn",
            "CREDENTIAL": running.credential,
            "OAUTH2__SERVER__URI": f"{running.published}/v1/oauth/tokens",
            "IO__IMPL": "org.apache.iceberg.hadoop.HadoopFileIO",
        }
        command = ["docker", "run", "--rm", "--network=host", f"--user={os.getuid()}:{os.getgid()}"]
        command += [word for name, value in client.items() for word in ("-e", f"CATALOG_{name}={value}")]
        command += ["-v", f"{folder}:/tmp", "-v", f"{target}:/rck/target", image]
        ran = subprocess.run(
            [*command, f"-DargLine={' '.join(SWITCHES)}"],
            timeout=RUN_TIMEOUT_S,
            capture_output=True,
            text=True,
            check=False,
        )
    found = results(target / "surefire-reports")
    assert len(found) == TESTS, ran.stdout[-3_000:]
    record_property("outcomes", dict(Counter(outcome for outcome, _ in found.values())))
    other = {
        name: (outcome, message)
        for name, (outcome, message) in found.items()
        if outcome != KNOWN.get(name, ("passed", ""))[0]
    }
    assert other == {}

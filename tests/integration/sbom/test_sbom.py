"""Content of each image's SBOM: valid CycloneDX, with every component that the build pinned."""

from __future__ import annotations

import json
import subprocess
import tomllib
from datetime import UTC, datetime
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from tarn_host.sbom import command
from tarn_host.stack import project

from tests.support.images import IMAGES, image
from tests.support.turns import one_after_the_other

VERSIONS = dict(
    row.split("=", 1) for row in (project.ROOT / "versions.env").read_text().splitlines() if "=" in row[:40]
)
PINNED = {
    "minio": [
        f"pkg:golang/github.com/minio/minio@{VERSIONS['MINIO_MODULE_VERSION']}",
        "pkg:golang/stdlib@1.",
    ],
    "kafka": [f"pkg:generic/kafka_{VERSIONS['KAFKA_SCALA']}@{VERSIONS['KAFKA_VERSION']}"],
    "trino": [f"pkg:maven/io.trino/trino-main@{VERSIONS['TRINO_VERSION']}"],
    "spark": [
        f"pkg:maven/org.apache.spark/spark-connect_2.13@{VERSIONS['SPARK_VERSION']}",
        f"pkg:pypi/pyspark@{VERSIONS['SPARK_VERSION']}",
    ],
    "catalog": ["pkg:pypi/pyiceberg@"],
    "services": ["pkg:pypi/kafka-python@", "pkg:pypi/pyiceberg@", "pkg:pypi/trino@"],
    "jupyter": ["pkg:pypi/jupyterlab@"],
}
NOTES = command.read_notes(command.NOTES.read_text(encoding="utf-8"))


def bill_of(name: str) -> dict[str, Any]:
    return command.document(name, image(name), command.inventory(image(name)), NOTES, datetime.now(UTC))


def debian_listed(name: str) -> set[str]:
    command = ["docker", "run", "--rm", "--network", "none", "--entrypoint", "cat", image(name)]
    told = subprocess.run(
        [*command, "/usr/share/tarn/packages.txt"], capture_output=True, text=True, check=True, timeout=240
    )
    rows = (row.split() for row in told.stdout.splitlines())
    return {f"{package.partition(':')[0]} {version}" for package, version in rows}


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_tells_what_it_holds(name: str) -> None:
    bill = bill_of(name)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(bill)) is None
    refs = {c["bom-ref"] for c in bill["components"]}
    for pinned in PINNED[name]:
        assert any(ref.startswith(pinned) for ref in refs), pinned
    debian = {f"{c['name']} {c['version']}" for c in bill["components"] if c["purl"].startswith("pkg:deb/")}
    assert debian == debian_listed(name)
    assert [v["id"] for v in bill["vulnerabilities"]] == [n["id"] for n in NOTES if name in n["images"]]


def test_minio_is_built_without_what_no_lake_needs() -> None:
    """minio/without: two fifths of the build time, half of the binary, and their vulnerabilities."""
    held = {c["purl"].partition("@")[0] for c in bill_of("minio")["components"] if "pkg:golang/" in c["purl"]}
    assert "pkg:golang/github.com/minio/minio" in held
    left_out = ("cloud.google.com/", "elastic/go-elasticsearch", "minio/console", "goccy/go-json", "azblob")
    assert [purl for purl in held for name in left_out if name in purl] == []


LOCKED = one_after_the_other(
    ("catalog", "services", "jupyter", "spark"), "an image has a Python package that is not in uv.lock"
)


@pytest.mark.parametrize("name", [pytest.param(name, marks=mark) for name, mark in LOCKED.items()])
def test_every_python_package_comes_from_the_lock(name: str) -> None:
    lock = tomllib.loads((project.ROOT / "uv.lock").read_text(encoding="utf-8"))
    locked = {f"pkg:pypi/{p['name']}@{p['version']}" for p in lock["package"] if "version" in p}
    held = {c["purl"]: c["properties"] for c in bill_of(name)["components"] if "pkg:pypi/" in c["purl"]}
    assert len(held) > 10
    # A package may contain another one; that one is listed too, but the lock knows only the outer one.
    carried = {purl for purl, facts in held.items() if "/_vendor/" in facts[0]["value"]}
    assert set(held) - carried <= locked

"""A version that must be repeated elsewhere equals the one in versions.env."""

from __future__ import annotations

import re
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MAVEN = "{http://maven.apache.org/POM/4.0.0}"


def versions() -> dict[str, str]:
    """The content of versions.env: `KEY=value` lines and comments, no shell syntax."""
    found: dict[str, str] = {}
    for number, line in enumerate((ROOT / "versions.env").read_text().splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        match = re.fullmatch(r"([A-Z][A-Z0-9_]*)=([A-Za-z0-9._:/@+-]+)", line)
        assert match, f"versions.env:{number}: {line!r} is not KEY=value"
        assert match[1] not in found, f"versions.env:{number}: {match[1]} stands twice"
        found[match[1]] = match[2]
    return found


def dockerfiles() -> list[Path]:
    return [*sorted(path for path in ROOT.glob("*/Dockerfile")), ROOT / "services/kafka/Dockerfile"]


def pom_property(path: str, name: str) -> str:
    found = ET.parse(ROOT / path).getroot().find(f"{MAVEN}properties/{MAVEN}{name}")
    assert found is not None, f"{path} has no property {name}"
    assert found.text is not None
    return found.text


def locked(name: str) -> dict[str, object]:
    packages = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    (found,) = [package for package in packages if package["name"] == name]
    return dict(found)


def test_minio_module() -> None:
    text = (ROOT / "minio/go.mod").read_text()
    assert f"\nrequire github.com/minio/minio {versions()['MINIO_MODULE_VERSION']}\n" in text
    assert f"\ngo {versions()['MINIO_GO_TOOLCHAIN'].removeprefix('go')}\n" in text


def test_kafka_pom() -> None:
    assert pom_property("services/kafka/pom.xml", "kafka.version") == versions()["KAFKA_VERSION"]
    assert pom_property("services/kafka/pom.xml", "kafka.scala") == versions()["KAFKA_SCALA"]


def test_kafka_jars() -> None:
    version, scala = versions()["KAFKA_VERSION"], versions()["KAFKA_SCALA"]
    lines = (ROOT / "services/kafka/jars.sha256").read_text().splitlines()
    assert all(re.fullmatch(r"[0-9a-f]{64}  \./[\w.-]+\.jar", line) for line in lines)
    assert any(line.endswith(f"  ./kafka_{scala}-{version}.jar") for line in lines)


def test_kafka_java() -> None:
    assert f" {versions()['KAFKA_JAVA_PACKAGE']} " in (ROOT / "services/kafka/Dockerfile").read_text()


def test_the_wheel_of_kafkas_health_check_is_the_locked_one() -> None:
    text = (ROOT / "services/kafka/requirements.txt").read_text()
    package = locked("kafka-python")
    assert f"kafka-python=={package['version']} " in text
    wheels = package["wheels"]
    assert isinstance(wheels, list)
    assert re.findall(r"--hash=(\S+)", text) == [wheel["hash"] for wheel in wheels]


def test_base() -> None:
    found = versions()
    assert found["BASE_IMAGE"] == f"debian:{found['BASE_SUITE']}-slim"
    assert re.fullmatch(r"\d{8}", found["BASE_DATE"])


@pytest.mark.parametrize("path", dockerfiles(), ids=lambda path: str(path.parent.relative_to(ROOT)))
def test_dockerfile_takes_its_base_and_versions_from_one_place(path: Path) -> None:
    text = path.read_text()
    assert f"ARG BASE={versions()['BASE_IMAGE']}\n" in text
    prefixes = re.findall(r"grep -E '\^\(?([A-Z_|]+?)\)?_' /versions\.env", text)
    pinned_uv = "--require-hashes -r /uv.txt" in text
    assert prefixes or pinned_uv, f"{path} takes neither a line of versions.env nor uv.txt"
    for prefix in filter(None, "|".join(prefixes).split("|")):
        assert any(key.startswith(f"{prefix}_") for key in versions()), (
            f"{path}: no key starts with {prefix}_"
        )
    assert "# syntax=" not in text

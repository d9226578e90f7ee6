"""Maven in the image builds: the proxies that Docker puts into the environment, in Maven's own words."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from tarn_host.stack.project import ROOT

MVN = ROOT / "services/maven/mvn"
BUILT_BY_USERS = ("spark", "trino", "services/kafka", "catalog/reference")


@pytest.fixture
def maven(tmp_path: Path) -> Path:
    """A program that keeps its settings and arguments, and where it found them, and fails."""
    program = tmp_path / "mvn"
    program.write_text(
        '#!/bin/sh\ncd "${0%/*}"\ncp "$2" settings.xml\nshift\nprintf "%s\\n" "$@" > arguments\nexit 3\n'
    )
    program.chmod(0o755)
    return program


def settings(maven: Path, *arguments: str, **environment: str) -> list[dict[str, Any]]:
    """Run the wrapper with such an environment; the proxies of the settings that Maven gets."""
    own = {"PATH": "/usr/bin:/bin", "MVN": str(maven), "TMPDIR": str(maven.parent), **environment}
    done = subprocess.run([str(MVN), *arguments], env=own, capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")
    found = ElementTree.parse(maven.parent / "settings.xml").getroot()
    assert found.tag == "settings"
    return [{one.tag: one.text for one in proxy} for proxy in found.iterfind("proxies/proxy")]


def test_without_a_proxy_maven_gets_its_arguments_alone(maven: Path) -> None:
    assert settings(maven, "-B", "a b", "--x=$y*") == []
    file, *arguments = (maven.parent / "arguments").read_text().splitlines()
    assert arguments == ["-B", "a b", "--x=$y*"]
    assert not Path(file).exists(), "the file may hold a password"


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("http://proxy.corp:3128", {"host": "proxy.corp", "port": "3128"}),
        ("http://proxy.corp:3128/", {"host": "proxy.corp", "port": "3128"}),
        ("proxy.corp", {"host": "proxy.corp", "port": "80"}),
        ("http://10.0.0.1", {"host": "10.0.0.1", "port": "80"}),
        ("http://[fd00::1]:8080", {"host": "[fd00::1]", "port": "8080"}),
        ("http://ada@p:1", {"host": "p", "port": "1", "username": "ada"}),
        (
            r"http://corp%5Cada:p%40s%3A%2F%26%3C\n@p:1",
            {"host": "p", "port": "1", "username": r"corp\ada", "password": r"p@s:/&<\n"},
        ),
        ("http://a:50%off%21@p:1", {"host": "p", "port": "1", "username": "a", "password": "50%off!"}),
    ],
)
@pytest.mark.parametrize("name", ["https_proxy", "HTTPS_PROXY", "http_proxy"])
def test_a_proxy_is_one_of_mavens_settings(maven: Path, name: str, url: str, found: dict[str, str]) -> None:
    protocol = name.lower().removesuffix("_proxy")
    expected = {"id": protocol, "protocol": protocol, "nonProxyHosts": None, **found}
    assert settings(maven, **{name: url}) == [expected]


def test_both_proxies_and_what_goes_past_them(maven: Path) -> None:
    http, https = settings(
        maven, http_proxy="http://a:1", https_proxy="http://b:2", no_proxy="localhost, .corp,*.lab,10.0.0.1"
    )
    assert (http["protocol"], http["host"]) == ("http", "a")
    assert (https["protocol"], https["host"]) == ("https", "b")
    hosts = "localhost|*.localhost|corp|*.corp|lab|*.lab|10.0.0.1|*.10.0.0.1"
    assert http["nonProxyHosts"] == https["nonProxyHosts"] == hosts
    for value, found in (
        ("*", "*"),
        ("a:8081,[fd00::1]:1", "a|*.a|[fd00::1]|*.[fd00::1]"),
        ("::1", "::1|*.::1"),
    ):
        assert settings(maven, http_proxy="http://a:1", NO_PROXY=value)[0]["nonProxyHosts"] == found


@pytest.mark.parametrize("folder", BUILT_BY_USERS)
def test_every_stage_of_a_users_image_that_runs_maven_has_it(folder: str) -> None:
    stages = re.split(r"(?m)^FROM ", (ROOT / folder / "Dockerfile").read_text())
    running = [stage for stage in stages if re.search(r"(?m)^[^#\n]*\bmvn -", stage)]
    assert running
    for stage in running:
        before = stage[: stage.index("mvn -")]
        assert "COPY --chmod=0755 services/maven/mvn /usr/local/bin/" in before

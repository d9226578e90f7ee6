"""Parsing of this machine's mirrors from apt's own files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tarn_host.console import StopError
from tarn_host.stack import apt
from tarn_host.stack.apt import Mirrors, sources

ONE_LINE = """
# deb http://old.example/debian bookworm main
deb [arch=amd64 signed-by=/usr/share/keyrings/x.gpg] http://mirror.example/debian/ bookworm main contrib
deb-src http://mirror.example/debian bookworm main
deb http://mirror.example/debian-security bookworm-security main
deb https://packages.example/tool nodistro main
"""

DEB822 = """Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs:
 https://secure.example/debian-security
Suites: bookworm-security
Components: main
"""


def test_one_line_sources() -> None:
    assert sources([("sources.list", ONE_LINE)]) == Mirrors(
        main="http://mirror.example/debian", security="http://mirror.example/debian-security"
    )


def test_deb822_sources_with_a_folded_field() -> None:
    assert sources([("debian.sources", DEB822)]) == Mirrors(
        main="http://mirror.example/debian", security="https://secure.example/debian-security"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "deb http://packages.example/tool nodistro main",
        "deb cdrom:[disc] bookworm main",
        "deb http://mirror.example/debian bookworm contrib",
        "deb-src http://mirror.example/debian bookworm main",
    ],
)
def test_no_debian_mirror(text: str) -> None:
    assert sources([("sources.list", text)]) is None


def test_a_disabled_stanza_does_not_count() -> None:
    assert sources([("debian.sources", DEB822.replace("Types:", "Enabled: no\nTypes:"))]) is None


def test_without_a_security_line() -> None:
    assert sources([("sources.list", "deb http://m.example/debian trixie main\n")]) == Mirrors(
        main="http://m.example/debian", security=None
    )


def test_a_home_that_cannot_be_written_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], *_: object, **options: Any) -> None:
        """Download a package, or unpack it."""
        if command[-1] == "docker-buildx":
            (options["cwd"] / "compose.deb").touch()
        if command[0] == "dpkg":
            plugins = Path(command[-1]) / "usr/libexec/docker/cli-plugins"
            plugins.mkdir(parents=True)
            (plugins / "docker-compose").touch()

    monkeypatch.setattr(apt.shell, "logged", run)
    monkeypatch.setattr(apt, "mirrors", lambda: Mirrors(main="http://m", security=None))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    apt.unpack_compose(tmp_path / "log", timeout_s=1)
    assert [path.name for path in (tmp_path / "docker/cli-plugins").iterdir()] == ["docker-compose"]
    (tmp_path / "closed").touch()
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "closed"))
    with pytest.raises(StopError, match=r"Compose could not be put into .*/closed/cli-plugins: ") as caught:
        apt.unpack_compose(tmp_path / "log", timeout_s=1)
    assert "DOCKER_CONFIG" in caught.value.fix

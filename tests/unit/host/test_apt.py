"""Parsing of this machine's mirrors from apt's own files."""

from __future__ import annotations

import pytest
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

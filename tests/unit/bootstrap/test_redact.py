"""Secrets are removed from texts by value, in every encoding in which they may occur."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarn.bootstrap import redact
from tarn.core.redaction import needles, redact_all, values

SECRET = "qX7-Fv_w0Zr9LkT2"
OTHER = "Mn8bVc5xZl1KjHg/+="


@pytest.mark.parametrize(
    "text",
    [
        f"plain {SECRET}.",
        f"Basic {base64.b64encode(f'spark-abc:{SECRET}'.encode()).decode()}",
        f"Basic {base64.b64encode(f'spark-abcd:{SECRET}'.encode()).decode()}",
        f"Basic {base64.b64encode(f'spark-abcde:{SECRET}x'.encode()).decode()}",
        base64.b64encode(SECRET.encode()).decode(),
        base64.urlsafe_b64encode(f"?{SECRET}".encode()).decode(),
        f"a%3A{quote(OTHER, safe='')}",
        json.dumps({"x": OTHER}),
    ],
)
def test_every_form_goes(text: str) -> None:
    cleaned, count = redact_all({"t": text}, [SECRET, OTHER])
    assert count >= 1
    for secret in (SECRET, OTHER):
        assert secret not in cleaned["t"]
    assert "[secret]" in cleaned["t"]


@given(
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=60),
    st.binary(max_size=7),
)
def test_base64_of_anything_with_the_secret_inside_is_found(secret: str, before: bytes) -> None:
    text = base64.b64encode(before + secret.encode() + b"tail").decode()
    assert redact_all({"t": text}, [secret])[1] >= 1


def test_values_of_files_of_every_kind() -> None:
    users = json.dumps({"spark": {"access_key": "TARNSPARK00000000000", "secret_key": SECRET}})
    assert values(users) >= {SECRET, "TARNSPARK00000000000"}
    assert values(f"client-1:{SECRET}") == {f"client-1:{SECRET}", "client-1", SECRET}
    assert values(f"{SECRET}\n") == {SECRET}
    assert values("short") == frozenset()


def test_names_of_services_are_spared_and_longer_secrets_go_first() -> None:
    assert "bootstrap" not in needles(["bootstrap"], spared=["bootstrap"])
    cleaned, _ = redact_all({"t": f"{SECRET}{SECRET[:8]}-more"}, [SECRET, SECRET[:8]])
    assert cleaned["t"] == "[secret][secret]-more"


def test_the_command_reads_every_file_of_every_volume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spark").mkdir()
    (tmp_path / "spark" / "any-name").write_text(SECRET)
    (tmp_path / "spark" / "link").symlink_to("/etc/hostname")
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({"a": f"x {SECRET}", "b": "y"})))
    assert redact.main(["--root", str(tmp_path)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {"texts": {"a": "x [secret]", "b": "y"}, "replaced": 1, "files": 1}


def test_what_is_no_object_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("[1]"))
    assert redact.main([]) == 2
    assert "not a JSON object" in capsys.readouterr().err

"""Shared checks of store and catalog in the probes: their requests, and how they judge the responses."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from minio.credentials import Credentials
from minio.signer import sign_v4_s3

from tarn.probe import lake

ACCESS_KEY = "TARNTRINO0000000001"
SECRET_KEY = "a-secret-key-of-forty-characters-0123456"


class Peer:
    """Replaces `tarn.probe.runner.http`: records the requests, answers from a list."""

    def __init__(self, *answers: tuple[int, dict[str, str], bytes]) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[str, str, str, dict[str, str], bytes]] = []

    def __call__(
        self,
        method: str,
        address: str,
        path: str,
        *,
        headers: dict[str, str] | None = None,
        body: bytes = b"",
        timeout_s: float = 4.0,
    ) -> tuple[int, dict[str, str], bytes]:
        self.requests.append((method, address, path, headers or {}, body))
        return self.answers.pop(0)


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {
        "s3_access_key_id": ACCESS_KEY,
        "s3_secret_access_key": SECRET_KEY + "\n",
        "catalog_credential": "trino:p&ss=word",
    }.items():
        (tmp_path / name).write_text(value)
    monkeypatch.setenv("TARN_SECRETS_DIR", str(tmp_path))
    for name in ("TARN_S3_ENDPOINT", "TARN_BUCKET", "TARN_REGION", "TARN_CATALOG_URI", "TARN_WAREHOUSE"):
        monkeypatch.delenv(name, raising=False)


def use(monkeypatch: pytest.MonkeyPatch, *answers: tuple[int, dict[str, str], bytes]) -> Peer:
    peer = Peer(*answers)
    monkeypatch.setattr(lake, "http", peer)
    return peer


def test_the_signature_is_the_one_that_the_stores_own_client_makes() -> None:
    time_s = 1_795_252_000.0
    ours = lake.signed_headers(
        "HEAD",
        "minio:9000",
        "/tarn/warehouse/no-such-object",
        region="eu-west-1",
        access_key=ACCESS_KEY,
        secret_key=SECRET_KEY,
        time_s=time_s,
    )
    date = datetime.fromtimestamp(time_s, UTC)
    empty = hashlib.sha256(b"").hexdigest()
    theirs = sign_v4_s3(
        method="HEAD",
        url=urlsplit("http://minio:9000/tarn/warehouse/no-such-object"),
        region="eu-west-1",
        headers={
            "Host": "minio:9000",
            "x-amz-content-sha256": empty,
            "x-amz-date": date.strftime("%Y%m%dT%H%M%SZ"),
        },
        credentials=Credentials(access_key=ACCESS_KEY, secret_key=SECRET_KEY),
        content_sha256=empty,
        date=date,
    )
    assert ours["authorization"] == theirs["Authorization"]


@pytest.mark.parametrize("status", [200, 404])
def test_a_store_that_answers_the_own_key_is_usable(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    peer = use(monkeypatch, (status, {}, b""))
    lake.check_store(timeout_s=2.0)
    (method, address, path, headers, body) = peer.requests[0]
    assert (method, address, path, body) == ("HEAD", "minio:9000", "/tarn/warehouse/no-such-object", b"")
    assert f"Credential={ACCESS_KEY}/" in headers["authorization"]
    assert SECRET_KEY not in str(headers)


def test_a_revoked_key_is_named_by_the_stores_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, (403, {"x-minio-error-code": "InvalidAccessKeyId"}, b""))
    with pytest.raises(RuntimeError, match=r"^the store at minio:9000 answers 403 \(InvalidAccessKeyId\)"):
        lake.check_store(timeout_s=2.0)


def test_an_address_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARN_S3_ENDPOINT", "minio:9000")
    with pytest.raises(RuntimeError, match=r"^'minio:9000' is not an http address"):
        lake.check_store(timeout_s=2.0)


def test_the_catalog_is_asked_with_a_token_of_the_own_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARN_CATALOG_URI", "http://catalog:8181/")
    monkeypatch.setenv("TARN_WAREHOUSE", "a lake")
    token = json.dumps({"access_token": "t0ken"}).encode()
    peer = use(monkeypatch, (200, {}, token), (200, {}, b"{}"))
    lake.check_catalog(timeout_s=2.0)
    (first, second) = peer.requests
    assert first[:3] == ("POST", "catalog:8181", "/v1/oauth/tokens")
    assert parse_qs(first[4].decode()) == {
        "grant_type": ["client_credentials"],
        "client_id": ["trino"],
        "client_secret": ["p&ss=word"],
        "scope": ["catalog"],
    }
    assert second[:3] == ("GET", "catalog:8181", "/v1/config?warehouse=a%20lake")
    assert second[3] == {"authorization": "Bearer t0ken"}


def test_a_revoked_credential_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, (401, {}, b"{}"))
    with pytest.raises(RuntimeError, match="answers 401 to this service's own credential"):
        lake.check_catalog(timeout_s=2.0)


def test_a_token_that_the_catalog_then_refuses_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, (200, {}, b'{"access_token": "t0ken"}'), (403, {}, b"{}"))
    with pytest.raises(RuntimeError, match="answers 403 to a configuration request"):
        lake.check_catalog(timeout_s=2.0)

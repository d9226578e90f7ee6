"""A token service (STS) over HTTP with the rules of MinIO's, and the contract that both keep."""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

import pytest
from minio.credentials import Credentials
from minio.signer import sign_v4_sts

from tarn.adapters.sts import StoreTokenService
from tarn.bootstrap.policies import policies
from tarn.core.credentials import VENDING_USER
from tarn.core.errors import InvalidError, UnavailableError
from tarn.core.temporary_keys import DURATION_S_MIN, KeysRefusedError, TemporaryKeys
from tests.support.policies import opens

BUCKET, REGION = "tarn", "us-east-1"
NAMESPACE = "https://sts.amazonaws.com/doc/2011-06-15/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    keys: TemporaryKeys
    policy: dict[str, Any]
    text: str


class FakeSts:
    """Issues keys as MinIO does; `attempt` decides as its store would.

    Attributes:
        key: the keys of the one user that it knows, which has the policy of the store user `vending`.
        issued: access key id -> what was issued.
        broken: answers each request instead, with a status and a body; or, as None, cuts it off.
        now_s: its clock.
    """

    def __init__(self) -> None:
        self.key = ("TARNVENDING" + secrets.token_hex(4).upper(), secrets.token_urlsafe(32))
        self.parent: dict[str, Any] = policies(BUCKET)[VENDING_USER]
        self.issued: dict[str, Issued] = {}
        self.broken: Callable[[], tuple[int, bytes] | None] | None = None
        self.requests = 0
        self.now_s: Callable[[], float] = time.time
        self.endpoint = ""

    def service(self, key: tuple[str, str] | None = None, **more: Any) -> StoreTokenService:
        access, secret = key or self.key
        return StoreTokenService(
            endpoint=self.endpoint, region=REGION, access_key_id=access, secret_access_key=secret, **more
        )

    def attempt(self, keys: Mapping[str, str], action: str, key: str) -> bool:
        """Whether the store allows what a client asks with keys from its configuration."""
        found = self.issued.get(keys["s3.access-key-id"])
        given = (keys["s3.secret-access-key"], keys["s3.session-token"])
        if found is None or given != (found.keys.secret_access_key, found.keys.session_token):
            return False
        if self.now_s() * 1000 >= found.keys.expires_ms:
            return False
        return all(opens(one, BUCKET, action, key) for one in (found.policy, self.parent))

    def answer(self, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        """Answer a request, by its headers with lower-case names."""
        access, secret = self.key
        if f"Credential={access}/" not in headers.get("authorization", ""):
            return _error(
                403, "InvalidClientTokenId", "The security token included in the request is invalid"
            )
        sent = datetime.strptime(headers["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        if abs(sent.timestamp() - self.now_s()) > 900:
            return _error(403, "AccessDenied", "Request skewed")
        signed = headers["authorization"].split("SignedHeaders=")[1].split(",")[0].split(";")
        wanted = sign_v4_sts(
            method="POST",
            url=urlsplit(f"{self.endpoint}/"),
            region=REGION,
            headers={name: headers[name] for name in signed},
            credentials=Credentials(access, secret),
            content_sha256=hashlib.sha256(body).hexdigest(),
            date=sent,
        )
        if wanted["Authorization"] != headers["authorization"]:
            return _error(
                403, "InvalidClientTokenId", "The security token included in the request is invalid"
            )
        form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        if (form.get("Action"), form.get("Version")) != ("AssumeRole", "2011-06-15"):
            return _error(400, "InvalidParameterValue", f"Unsupported action {form.get('Action')}")
        duration_s = int(form.get("DurationSeconds", "3600"))
        if not DURATION_S_MIN <= duration_s <= 365 * 86_400:
            return _error(400, "InvalidParameterValue", "invalid token expiry")
        text = form.get("Policy", "")
        if len(text) > 2048:
            return _error(400, "InvalidParameterValue", "Session policy should not exceed 2048 characters")
        try:
            policy = json.loads(text)
        except ValueError as e:
            return _error(400, "InvalidParameterValue", str(e))
        keys = TemporaryKeys(
            access_key_id=secrets.token_hex(10).upper(),
            secret_access_key=secrets.token_urlsafe(30),
            session_token=secrets.token_urlsafe(100),
            expires_ms=int(self.now_s() + duration_s) * 1000,
        )
        self.issued[keys.access_key_id] = Issued(keys=keys, policy=policy, text=text)
        expires = datetime.fromtimestamp(keys.expires_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return 200, (
            f'<?xml version="1.0" encoding="UTF-8"?>\n<AssumeRoleResponse xmlns="{NAMESPACE}">'
            "<AssumeRoleResult><AssumedRoleUser><Arn></Arn><AssumeRoleId></AssumeRoleId></AssumedRoleUser>"
            f"<Credentials><AccessKeyId>{keys.access_key_id}</AccessKeyId>"
            f"<SecretAccessKey>{keys.secret_access_key}</SecretAccessKey>"
            f"<Expiration>{expires}</Expiration><SessionToken>{keys.session_token}</SessionToken></Credentials>"
            "</AssumeRoleResult><ResponseMetadata><RequestId>1</RequestId></ResponseMetadata>"
            "</AssumeRoleResponse>"
        ).encode()


def _error(status: int, code: str, message: str) -> tuple[int, bytes]:
    return status, (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<ErrorResponse xmlns="{NAMESPACE}"><Error><Type></Type>'
        f"<Code>{code}</Code><Message>{escape(message)}</Message></Error><RequestId>1</RequestId>"
        "</ErrorResponse>"
    ).encode()


@contextmanager
def fake_sts() -> Iterator[FakeSts]:
    """A fake token service on a port of 127.0.0.1."""
    fake = FakeSts()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            fake.requests += 1
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            found = fake.broken() if fake.broken is not None else fake.answer(headers, body)
            if found is None:
                self.close_connection = True
                return
            self.send_response(found[0])
            self.send_header("content-length", str(len(found[1])))
            self.end_headers()
            self.wfile.write(found[1])

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Served(Protocol):
    """A token service with its store, real or fake."""

    endpoint: str
    key: tuple[str, str]

    def attempt(self, keys: Mapping[str, str], action: str, key: str) -> bool: ...


def config_of(keys: TemporaryKeys) -> dict[str, str]:
    return {
        "s3.access-key-id": keys.access_key_id,
        "s3.secret-access-key": keys.secret_access_key,
        "s3.session-token": keys.session_token,
    }


def _policy(*statements: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


def _allow(action: str, pattern: str) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": [action], "Resource": [f"arn:aws:s3:::{BUCKET}/{pattern}"]}


def check_contract(served: Served) -> int:
    """What the catalog relies on in a token service; returns the number of statements that were checked."""

    def service(key: tuple[str, str] = served.key, **more: Any) -> StoreTokenService:
        return StoreTokenService(
            endpoint=served.endpoint, region=REGION, access_key_id=key[0], secret_access_key=key[1], **more
        )

    reads = _policy(_allow("s3:GetObject", "warehouse/a/*"))
    one, other = (service().assume(reads, duration_s=DURATION_S_MIN) for _ in range(2))
    assert one.access_key_id != other.access_key_id
    left_s = one.expires_ms / 1000 - time.time()
    assert DURATION_S_MIN - 30 < left_s <= DURATION_S_MIN + 1

    # The inline policy limits, and so do the rights of the user in whose name the keys are.
    assert served.attempt(config_of(one), "get", "warehouse/a/x")
    assert not served.attempt(config_of(one), "put", "warehouse/a/x")
    assert not served.attempt(config_of(one), "get", "warehouse/b/x")
    everything = _policy({"Effect": "Allow", "Action": ["s3:*"], "Resource": ["arn:aws:s3:::*"]})
    most = config_of(service().assume(everything.replace("s3:*", "s3:GetObject"), duration_s=DURATION_S_MIN))
    assert served.attempt(most, "get", "warehouse/b/x")
    assert not served.attempt(most, "get", "catalog/v1/probe/x")
    puts = _policy(_allow("s3:PutObject", "*"), _allow("s3:DeleteObject", "*"))
    writer = config_of(service().assume(puts, duration_s=DURATION_S_MIN))
    assert served.attempt(writer, "put", "warehouse/a/x")
    assert not served.attempt(writer, "put", "warehouse/a/x.metadata.json")
    assert not served.attempt(writer, "delete", "warehouse/a/x")
    assert not served.attempt(writer, "put", "catalog/v1/probe/x")
    # Half of the keys is nothing.
    assert not served.attempt(
        {**writer, "s3.session-token": most["s3.session-token"]}, "put", "warehouse/a/x"
    )

    long = _policy(*(_allow("s3:GetObject", f"warehouse/{number:0100}/*") for number in range(20)))
    with pytest.raises(InvalidError, match="too long"):
        service().assume(long, duration_s=DURATION_S_MIN)
    status, answer = service()._post(f"Action=AssumeRole&Version=2011-06-15&Policy={long}".encode())
    assert status == 400, answer
    with pytest.raises(KeysRefusedError, match="says"):
        service().assume(reads, duration_s=DURATION_S_MIN - 1)
    with pytest.raises(KeysRefusedError, match="says"):
        service().assume('{"Version": "2012-10-17", "Statement": [', duration_s=DURATION_S_MIN)
    for key in ((served.key[0], "x" * 32), ("TARNVENDINGNOBODY123", served.key[1])):
        with pytest.raises(UnavailableError, match="does not know the store user"):
            service(key).assume(reads, duration_s=DURATION_S_MIN)
    with pytest.raises(UnavailableError, match="no temporary keys"):
        service(now_s=lambda: time.time() - 3600).assume(reads, duration_s=DURATION_S_MIN)
    return 18

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import time
from pathlib import Path

import jwt
import pytest
from structlog.testing import capture_logs

from tarn.core.errors import InvalidSettingError, UnauthenticatedError, UnavailableError
from tarn_catalog.rest.auth import (
    ACCESS_TOKEN,
    AUDIENCE,
    CHECKED_MAX,
    LEEWAY_S,
    LIFETIME_S,
    TOKEN_EXCHANGE,
    Authenticator,
    OAuthError,
)

KEY = bytes(range(32))


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now_s = time.time()
        self.clock_s = 0.0
        (folder / "token_key").write_text(base64.urlsafe_b64encode(KEY).decode().rstrip("="))
        self.principals({"spark": "s3cret", "trino": "other"})
        self.access = Authenticator(folder, now_s=lambda: self.now_s, clock=lambda: self.clock_s)

    def principals(self, secrets: dict[str, str]) -> None:
        text = json.dumps(
            {
                name: {"name": name, "secret_sha256": hashlib.sha256(secret.encode()).hexdigest()}
                for name, secret in secrets.items()
            }
        )
        scratch = self.folder / "principals.new"
        scratch.write_text(text)
        scratch.replace(self.folder / "principals.json")

    def login(self, client_id: str = "spark", secret: str = "s3cret", **more: str) -> str:
        form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": secret, **more}
        return self.access.token(form, None)["access_token"]

    def accepts(self, token: str) -> bool:
        try:
            self.access.principal(f"Bearer {token}")
        except UnauthenticatedError:
            return False
        return True

    def forge(self, key: bytes | str = KEY, algorithm: str = "HS256", **claims: object) -> str:
        mark = hashlib.sha256(b"s3cret").hexdigest()[:8]
        whole = {
            "iss": "tarn-catalog",
            "aud": "tarn-catalog",
            "sub": "spark",
            "iat": int(self.now_s),
            "exp": 4_000_000_000,
            "mark": mark,
            **claims,
        }
        return jwt.encode({k: v for k, v in whole.items() if v is not None}, key, algorithm=algorithm)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_client_credentials_in_form_and_header(world: World) -> None:
    answer = world.access.token(
        {
            "grant_type": "client_credentials",
            "client_id": "spark",
            "client_secret": "s3cret",
            "scope": "catalog",
        },
        None,
    )
    assert answer["token_type"] == "bearer"
    assert answer["expires_in"] == LIFETIME_S == 3600
    assert answer["issued_token_type"] == ACCESS_TOKEN
    assert world.access.principal(f"Bearer {answer['access_token']}").name == "spark"
    basic = base64.b64encode(b"trino:other").decode()
    token = world.access.token({"grant_type": "client_credentials"}, f"Basic {basic}")["access_token"]
    assert world.access.principal(f"bearer {token}").name == "trino"


@pytest.mark.parametrize(
    ("form", "authorization", "error", "status"),
    [
        ({"client_id": "spark", "client_secret": "wrong"}, None, "invalid_client", 401),
        ({"client_id": "nobody", "client_secret": "s3cret"}, None, "invalid_client", 401),
        ({"client_id": "spark"}, None, "invalid_client", 401),
        ({}, None, "invalid_client", 401),
        ({}, "Basic %%%", "invalid_request", 400),
        ({}, "Basic " + base64.b64encode(b"spark:wrong").decode(), "invalid_client", 401),
        ({"grant_type": "password"}, None, "unsupported_grant_type", 400),
        ({"grant_type": TOKEN_EXCHANGE, "subject_token": "x"}, None, "invalid_grant", 401),
        ({"grant_type": TOKEN_EXCHANGE, "subject_token_type": "saml"}, None, "invalid_request", 400),
    ],
)
def test_no_token_for_the_wrong(world: World, form, authorization, error: str, status: int) -> None:
    with pytest.raises(OAuthError) as caught:
        world.access.token({"grant_type": "client_credentials", **form}, authorization)
    assert (caught.value.error, caught.value.status) == (error, status)
    assert "s3cret" not in caught.value.message
    assert len(caught.value.message) > 20, "the text says what to do"


def test_own_tokens_can_be_exchanged(world: World) -> None:
    token = world.forge()
    answer = world.access.token({"grant_type": TOKEN_EXCHANGE, "subject_token": token}, f"Bearer {token}")
    assert answer["expires_in"] == LIFETIME_S
    assert answer["access_token"] != token


def test_forged_tokens_are_refused(world: World) -> None:
    good = world.forge()
    assert world.accepts(good)
    head, body, signature = good.split(".")
    none_head = base64.urlsafe_b64encode(b'{"alg":"none","typ":"JWT"}').decode().rstrip("=")
    other = bytes(reversed(KEY))
    forged = {
        "alg none": f"{none_head}.{body}.",
        "alg none, kept signature": f"{none_head}.{body}.{signature}",
        "no signature": f"{head}.{body}.",
        "another key": world.forge(key=other),
        "another algorithm": world.forge(key=KEY * 2, algorithm="HS512"),
        "issuer": world.forge(iss="https://elsewhere"),
        "no issuer": world.forge(iss=None),
        "audience": world.forge(aud="tarn-catalog-probe"),
        "no audience": world.forge(aud=None),
        "expired": world.forge(exp=1_000_000_000),
        "no expiry": world.forge(exp=None),
        "no mark": world.forge(mark=None),
        "another secret's mark": world.forge(mark="00000000"),
        "unknown principal": world.forge(sub="nobody"),
        "rubbish": "x.y.z",
        "empty": "",
    }
    assert [name for name, token in forged.items() if world.accepts(token)] == []
    for header in (None, "", "Basic abc", good):
        with pytest.raises(UnauthenticatedError, match="no bearer token"):
            world.access.principal(header)
    with pytest.raises(UnauthenticatedError):
        world.access.principal(f"Bearer {good}", probe=True)


def test_a_token_of_a_clock_that_is_ahead_is_accepted_until_its_end(world: World) -> None:
    """The clock was set back since, or is that of another replica: until it came up, clients were refused."""
    assert world.accepts(world.forge(iat=int(world.now_s) + 300, exp=int(world.now_s) + 300 + LIFETIME_S))
    assert not world.accepts(world.forge(iat=int(world.now_s) - 2 * LIFETIME_S, exp=int(world.now_s) - 60))


def test_a_revoked_principal_and_a_new_secret_end_tokens_within_a_second(world: World) -> None:
    token = f"Bearer {world.forge()}"
    world.access.principal(token)
    world.principals({"trino": "other"})
    world.clock_s += 1.0
    with pytest.raises(UnauthenticatedError, match="gone or has a new secret"):
        world.access.principal(token)
    world.principals({"spark": "s3cret"})
    world.clock_s += 1.0
    world.access.principal(token)
    world.principals({"spark": "rotated"})
    world.clock_s += 1.0
    with pytest.raises(UnauthenticatedError, match="gone or has a new secret"):
        world.access.principal(token)


def test_a_signature_is_checked_once_and_the_time_of_a_token_every_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, checked, decode = world.login(), [], jwt.decode

    def counted(*what: object, **more: object) -> object:
        checked.append(what[0])
        return decode(*what, **more)

    monkeypatch.setattr(jwt, "decode", counted)
    assert all(world.accepts(token) for _ in range(3))
    assert checked == [token]
    with pytest.raises(UnauthenticatedError):
        world.access.principal(f"Bearer {token}", probe=True)
    ends_s = decode(token, KEY, algorithms=["HS256"], audience=AUDIENCE)["exp"]
    monkeypatch.setattr(jwt, "decode", refuse_as_expired)
    world.now_s = ends_s + LEEWAY_S - 1
    assert world.accepts(token)
    world.now_s = ends_s + LEEWAY_S
    assert not world.accepts(token)


def refuse_as_expired(*_: object, **__: object) -> None:
    raise jwt.ExpiredSignatureError


def test_what_is_remembered_of_tokens_goes_with_the_key_and_has_a_limit(world: World) -> None:
    tokens = [world.login() for _ in range(CHECKED_MAX + 2)]
    assert all(world.accepts(token) for token in tokens)
    assert len(world.access._known.checked) == 2
    (world.folder / "token_key").write_text(base64.urlsafe_b64encode(bytes(32)).decode())
    world.clock_s += 1.0
    assert not world.accepts(tokens[-1])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("principals.json", "{"),
        ("principals.json", '{"a": {"name": "a"}}'),
        ("principals.json", '{"a": {"name": "a", "secret_sha256": "00"}}'),
        ("principals.json", "[]"),
        ("token_key", "c2hvcnQ="),
        ("token_key", ""),
    ],
)
def test_unusable_secret_files_are_named(world: World, name: str, text: str) -> None:
    (world.folder / name).write_text(text)
    with pytest.raises(InvalidSettingError, match=name.split(".")[0]):
        Authenticator(world.folder)
    os.unlink(world.folder / name)
    with pytest.raises(InvalidSettingError, match="init service"):
        Authenticator(world.folder)


@pytest.mark.parametrize("spoil", [lambda path: path.write_text('{"spark": {"na'), os.unlink])
@pytest.mark.parametrize("name", ["principals.json", "token_key"])
def test_files_that_are_being_written_hold_for_ten_seconds(world: World, name: str, spoil) -> None:
    token, path = f"Bearer {world.forge()}", world.folder / name
    good = path.read_bytes()
    spoil(path)
    with capture_logs() as logs:
        for _ in range(10):
            world.clock_s += 1.0
            assert world.access.principal(token).name == "spark"
        world.clock_s += 1.0
        with pytest.raises(UnavailableError, match="for 11 s; see its log") as caught:
            world.access.principal(token)
    assert [line["seconds"] for line in logs] == [float(n) for n in range(1, 12)]
    assert str(world.folder) not in caught.value.message
    path.write_bytes(good)
    world.clock_s += 1.0
    assert world.access.principal(token).name == "spark"


def test_the_probes_token_opens_the_health_routes_only(world: World) -> None:
    path = Path(__file__).parents[3] / "catalog" / "probe.py"
    spec = importlib.util.spec_from_file_location("catalog_probe", path)
    probe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(probe)
    token = f"Bearer {probe.token(KEY, now_s=time.time())}"
    assert world.access.principal(token, probe=True).probe
    with pytest.raises(UnauthenticatedError):
        world.access.principal(token)
    old = f"Bearer {probe.token(KEY, now_s=time.time() - 3600)}"
    with pytest.raises(UnauthenticatedError, match="expired"):
        world.access.principal(old, probe=True)

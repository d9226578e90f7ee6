"""Authentication: OAuth2 client credentials, and bearer tokens signed by this catalog.

There is one algorithm, one issuer and one audience. A token names its principal and a fingerprint of the
client secret, so it becomes invalid when either changes (security checks 2 and 10 of the design notes).

The principals of the lake's own services are in a file of the init service and have the role `admin`, but for
those that the table of services limits (`tarn.core.services`). All others are in the store, among the grants:
a request's head is judged without them, by the signature alone, because reading them may wait for the store;
`Authenticator.caller` asks for them before anything is done.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jwt
import orjson
import structlog

from tarn.adapters.service_settings import read_secret
from tarn.core.errors import InvalidSettingError, UnauthenticatedError, UnavailableError
from tarn_catalog.operations.access import Access, Caller, service

log = structlog.get_logger()

ISSUER = "tarn-catalog"
AUDIENCE = "tarn-catalog"
PROBE_AUDIENCE = "tarn-catalog-probe"
ALGORITHM = "HS256"
LIFETIME_S = 3600
LEEWAY_S = 10
KEY_BYTES_MIN = 32
REREAD_S = 1.0
UNREADABLE_S_MAX = 10.0
CHECKED_MAX = 256
CLIENT_CREDENTIALS = "client_credentials"
TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105
PROBE = "tarn-probe"


class OAuthError(UnauthenticatedError):
    """An error response in the OAuth2 format.

    Args:
        error: an error code of RFC 6749, section 5.2.
        description: the message, with the remedy.
        status: HTTP status of the response.
    """

    def __init__(self, error: str, description: str, *, status: int = 400) -> None:
        super().__init__(description)
        self.error = error
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The authenticated client of a request.

    Attributes:
        client_id: the id it authenticated with.
        name: the principal's name, for logs.
        mark: a fingerprint of its secret.
        probe: whether it is the health probe, which may only use the health routes.
        stored: whether it is, or was, in the store, where nobody has looked yet.
    """

    client_id: str
    name: str
    mark: str
    probe: bool = False
    stored: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    stamp: tuple[tuple[int, int, int], ...]
    key: bytes
    principals: Mapping[str, Mapping[str, str]]
    services: Mapping[str, str]
    # Claims of valid tokens, by audience and digest: a verification takes a fifth of a small request.
    checked: dict[tuple[str, bytes], Mapping[str, Any]] = field(default_factory=dict)


def read_key(path: Path) -> bytes:
    """Return the key that signs tokens.

    Raises:
        InvalidSettingError: the file cannot be read, or the key is too short.
    """
    try:
        key = base64.urlsafe_b64decode(read_secret(path) + "==")
    except (binascii.Error, ValueError) as e:
        raise InvalidSettingError(f"Cannot read the token key {path}: {e}; run the init service") from e
    if len(key) < KEY_BYTES_MIN:
        raise InvalidSettingError(
            f"The token key {path} has {len(key)} bytes, at least {KEY_BYTES_MIN} are needed; remove it and "
            "run the init service"
        )
    return key


class Authenticator:
    """Issues and verifies tokens; the files are read again when they change.

    While the files cannot be read, for example during a write, their last valid content is used for up to 10
    s.

    Args:
        secrets_dir: the folder of `principals.json` and `token_key`.
        access: the principals in the store; None if there are none.
        now_s: wall clock, seconds since the epoch.
        clock: monotonic clock, seconds.
    """

    def __init__(
        self,
        secrets_dir: Path,
        *,
        access: Access | None = None,
        now_s: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._principals_path = secrets_dir / "principals.json"
        self._key_path = secrets_dir / "token_key"
        self._access = access
        self._now_s = now_s
        self._clock = clock
        self._lock = threading.Lock()
        self._known = self._read()
        self._looked = self._good = clock()

    def _stamp(self) -> tuple[tuple[int, int, int], ...]:
        stats = [path.stat() for path in (self._principals_path, self._key_path)]
        return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in stats)

    def _read(self) -> _Known:
        try:
            stamp = self._stamp()
            principals = orjson.loads(self._principals_path.read_bytes())
            good = all(
                isinstance(one["name"], str) and len(bytes.fromhex(one["secret_sha256"])) == 32
                for one in principals.values()
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
            raise InvalidSettingError(
                f"Cannot read the principals {self._principals_path}: {e}; run the init service"
            ) from e
        if not good:
            raise InvalidSettingError(
                f"{self._principals_path} holds a bad secret_sha256; run the init service"
            )
        services = {client_id: one["name"] for client_id, one in principals.items()}
        return _Known(stamp=stamp, key=read_key(self._key_path), principals=principals, services=services)

    def _current(self) -> _Known:
        """Return the current key and principals.

        Raises:
            UnavailableError: the files have been unreadable or invalid for over ten seconds.
        """
        with self._lock:
            now = self._clock()
            if now - self._looked >= REREAD_S:
                self._looked = now
                try:
                    if self._stamp() != self._known.stamp:
                        self._known = self._read()
                    self._good = now
                except (InvalidSettingError, OSError) as e:
                    log.warning(
                        "principals cannot be read", reason=str(e), seconds=round(now - self._good, 1)
                    )
            if now - self._good > UNREADABLE_S_MAX:
                raise UnavailableError(
                    f"The catalog has not been able to read its principals for {now - self._good:.0f} s; see "
                    "its log, and run the init service"
                )
            return self._known

    @property
    def services(self) -> Mapping[str, str]:
        """Client id to name of the principals in the file.

        Raises:
            UnavailableError: the principals cannot be read.
        """
        return self._current().services

    def caller(self, principal: Principal) -> Caller:
        """Return the caller that a principal is, with its rights. May wait for the store.

        Raises:
            UnauthenticatedError: the principal is gone, or has a new secret.
            UnavailableError: the store did not answer.
        """
        if not principal.stored:
            return service(principal.name, principal.client_id)
        assert self._access is not None, principal
        caller = self._access.caller(principal.client_id)
        stored = caller.grants.principals[principal.client_id]
        marks = [_mark(one) for one in stored.secrets(int(self._now_s() * 1000))]
        if not any(hmac.compare_digest(mark, principal.mark) for mark in marks):
            raise _gone()
        return caller

    @staticmethod
    def _principal(known: _Known, client_id: str) -> Principal | None:
        found = known.principals.get(client_id)
        if found is None:
            return None
        return Principal(client_id=client_id, name=found["name"], mark=_mark(found["secret_sha256"]))

    def _secrets(self, known: _Known, client_id: str) -> list[tuple[str, Principal]]:
        """Return the SHA-256 of each valid secret of a principal, and the principal that it makes.

        May wait for the store.
        """
        principal = self._principal(known, client_id)
        if principal is not None:
            return [(known.principals[client_id]["secret_sha256"], principal)]
        stored = self._access.stored(client_id) if self._access is not None else None
        if stored is None:
            return []
        return [
            (one, Principal(client_id=client_id, name=stored.name, mark=_mark(one), stored=True))
            for one in stored.secrets(int(self._now_s() * 1000))
        ]

    def token(self, form: Mapping[str, str], authorization: str | None) -> dict[str, Any]:
        """Return the JSON response to a token request (RFC 6749, section 4.4; RFC 8693 for exchange).

        Args:
            form: the form fields of the request.
            authorization: the Authorization header, or None.

        Raises:
            OAuthError: the request is not valid or not authorised.
            UnavailableError: the principals cannot be read.
        """
        known = self._current()
        grant = form.get("grant_type")
        if grant == CLIENT_CREDENTIALS:
            return self._answer(known, self._by_secret(known, form, authorization))
        if grant == TOKEN_EXCHANGE:
            if form.get("subject_token_type", ACCESS_TOKEN) != ACCESS_TOKEN:
                raise OAuthError("invalid_request", f"only {ACCESS_TOKEN} can be exchanged here")
            try:
                principal = self._by_token(known, form.get("subject_token", ""), AUDIENCE)
                self.caller(principal)
            except UnauthenticatedError as e:
                raise OAuthError(
                    "invalid_grant",
                    f"the token cannot be exchanged: {e.message}; log in with client id and secret again",
                    status=401,
                ) from e
            return self._answer(known, principal)
        raise OAuthError(
            "unsupported_grant_type",
            f"grant_type {grant!r} is not supported; use {CLIENT_CREDENTIALS}, or {TOKEN_EXCHANGE} with a "
            "token of this catalog",
        )

    def _by_secret(self, known: _Known, form: Mapping[str, str], authorization: str | None) -> Principal:
        client_id, secret = form.get("client_id"), form.get("client_secret")
        if authorization is not None and authorization.lower().startswith("basic "):
            try:
                text = base64.b64decode(authorization[6:], validate=True).decode()
            except ValueError as e:
                raise OAuthError("invalid_request", "the Basic authorization header cannot be decoded") from e
            client_id, _, secret = text.partition(":")
        if not client_id or not secret:
            raise OAuthError(
                "invalid_client",
                "client id or client secret is missing; set `credential` to client_id:client_secret, as "
                "printed by `scripts/tarn env`",
                status=401,
            )
        digest = hashlib.sha256(secret.encode()).hexdigest()
        for held, principal in self._secrets(known, client_id):
            if hmac.compare_digest(digest, held.lower()):
                return principal
        raise OAuthError(
            "invalid_client",
            "client id or client secret is wrong; take the credential (client_id:client_secret) that "
            "belongs to this catalog, it changes when its volumes are removed and when it is rotated",
            status=401,
        )

    def _answer(self, known: _Known, principal: Principal) -> dict[str, Any]:
        now_s = int(self._now_s())
        claims = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": principal.client_id,
            "iat": now_s,
            "exp": now_s + LIFETIME_S,
            "jti": str(uuid.uuid4()),
            "mark": principal.mark,
        }
        return {
            "access_token": jwt.encode(claims, known.key, algorithm=ALGORITHM),
            "token_type": "bearer",
            "expires_in": LIFETIME_S,
            "issued_token_type": ACCESS_TOKEN,
            "scope": "catalog",
        }

    def principal(self, authorization: str | None, *, probe: bool = False) -> Principal:
        """Return the principal of an Authorization header; one in the store is to be looked up by `caller`.

        Args:
            authorization: the header, or None.
            probe: whether to accept the health probe's tokens instead of clients' tokens.

        Raises:
            UnauthenticatedError: there is no valid bearer token.
            UnavailableError: the principals cannot be read.
        """
        if authorization is None or not authorization.lower().startswith("bearer "):
            raise UnauthenticatedError("Not authorized: no bearer token; get one from /v1/oauth/tokens")
        audience = PROBE_AUDIENCE if probe else AUDIENCE
        return self._by_token(self._current(), authorization[7:].strip(), audience)

    def _by_token(self, known: _Known, token: str, audience: str) -> Principal:
        claims = self._claims(known, token, audience)
        if audience == PROBE_AUDIENCE:
            return Principal(client_id=PROBE, name=PROBE, mark="", probe=True)
        client_id, mark = str(claims["sub"]), str(claims["mark"])
        principal = self._principal(known, client_id)
        if principal is None and self._access is not None:
            return Principal(client_id=client_id, name=client_id, mark=mark, stored=True)
        if principal is None or not hmac.compare_digest(principal.mark, mark):
            raise _gone()
        return principal

    def _claims(self, known: _Known, token: str, audience: str) -> Mapping[str, Any]:
        """Return the claims of a valid token; the signature is verified once, the expiry on every use.

        Raises:
            UnauthenticatedError: the token is not valid.
        """
        digest = audience, hashlib.sha256(token.encode()).digest()
        claims = known.checked.get(digest)
        if claims is not None and self._now_s() < int(claims["exp"]) + LEEWAY_S:
            return claims
        try:
            claims = jwt.decode(
                token,
                known.key,
                algorithms=[ALGORITHM],
                issuer=ISSUER,
                audience=audience,
                leeway=LEEWAY_S,
                # When it was issued says nothing: clocks are set back, and another replica's may be ahead.
                options={"require": ["iss", "aud", "sub", "iat", "exp", "mark"], "verify_iat": False},
            )
        except jwt.ExpiredSignatureError as e:
            raise UnauthenticatedError("Not authorized: the token has expired; get a new one") from e
        except jwt.InvalidTokenError as e:
            raise UnauthenticatedError(f"Not authorized: the token is not valid ({e}); get a new one") from e
        if len(known.checked) >= CHECKED_MAX:
            known.checked.clear()
        known.checked[digest] = claims
        return claims


def _mark(secret_sha256: str) -> str:
    """Return the fingerprint of a secret that its tokens have."""
    return secret_sha256[:8]


def _gone() -> UnauthenticatedError:
    return UnauthenticatedError(
        "Not authorized: the principal of this token is gone or has a new secret; log in again"
    )

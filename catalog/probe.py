"""Health probe of the catalog: shallow is a store read through the catalog, deep is a real commit.

The commit goes to an internal table that has no name (docs/catalog.md, Health). The probe signs its own
tokens with the catalog's key, for an audience that grants these two routes and nothing else.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import time

from tarn.probe.look import answers, http, own_host, secret

SERVICE = "catalog"
ALIVE_BUDGET_S = 9.0
HOST = own_host("TARN_CATALOG_HOST")
ADDRESS = f"{HOST}:{os.environ.get('TARN_CATALOG_PORT_INSIDE', '8181')}"
PUBLISHED = f"{HOST}:{os.environ.get('TARN_CATALOG_PORT_PUBLISHED', '8182')}"
LIFETIME_S = 60
SHALLOW_TIMEOUT_S = 4.0
DEEP_TIMEOUT_S = 15.0


def _part(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def token(key: bytes, *, now_s: float) -> str:
    """Return a signed token for the health routes (RFC 7519, HS256), valid for 60 s from `now_s`."""
    claims = {
        "iss": "tarn-catalog",
        "aud": "tarn-catalog-probe",
        "sub": "tarn-probe",
        "iat": int(now_s),
        "exp": int(now_s) + LIFETIME_S,
        "mark": "",
    }
    signed = _part(b'{"alg":"HS256","typ":"JWT"}') + b"." + _part(json.dumps(claims).encode())
    return (signed + b"." + _part(hmac.digest(key, signed, "sha256"))).decode()


def _ask(method: str, address: str, path: str, timeout_s: float) -> None:
    key = base64.urlsafe_b64decode(secret("token_key") + "==")
    headers = {"host": "localhost", "authorization": f"Bearer {token(key, now_s=time.time())}"}
    status, _, body = http(method, address, path, headers=headers, timeout_s=timeout_s)
    if status != 200:
        try:
            message = json.loads(body)["error"]["message"]
        except (ValueError, KeyError, TypeError):
            message = body[:200].decode(errors="replace")
        raise RuntimeError(f"{method} {path} answered {status}: {message}")


def alive() -> None:
    """Require that each listener answers, with any status; without a token the store is not read."""
    for address in (ADDRESS, PUBLISHED):
        answers(address, "/v1/config", timeout_s=4.0)


def shallow() -> None:
    """Make an authenticated read that reaches the store, through the two listeners in turn."""
    _ask("GET", ADDRESS if int(time.time()) % 2 else PUBLISHED, "/health", SHALLOW_TIMEOUT_S)


def deep() -> None:
    """Commit: write, swap and read back through one listener, then make a shallow read through the other."""
    _ask("POST", ADDRESS, "/health/deep", DEEP_TIMEOUT_S)
    _ask("GET", PUBLISHED, "/health", SHALLOW_TIMEOUT_S)

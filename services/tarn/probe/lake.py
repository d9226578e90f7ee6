"""Checks shared by the probes of services that use both store and catalog: one cheap, real request to each.

Stdlib only. Addresses and names come from the service's own settings, keys and credential from its own secret
files, so that a revoked one is noticed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import time
from urllib.parse import quote, urlencode, urlsplit

from tarn.probe.look import http, secret

EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()


def setting(name: str, default: str) -> str:
    """Value of an environment variable, or the default if it is unset or empty."""
    return os.environ.get(name) or default


def address(url: str) -> tuple[str, str]:
    """Split an http URL into `host:port` and path (without a trailing slash).

    Raises:
        RuntimeError: the text is not an http URL with a host.
    """
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.netloc:
        raise RuntimeError(f"'{url}' is not an http address; write it like http://host:port")
    return parts.netloc, parts.path.rstrip("/")


def signed_headers(
    method: str, host: str, path: str, *, region: str, access_key: str, secret_key: str, time_s: float
) -> dict[str, str]:
    """Headers that sign one S3 request without query and body (AWS Signature Version 4).

    Args:
        method: HTTP method.
        host: `host:port`.
        path: path of the URL.
        region: region of the store.
        access_key: access key id.
        secret_key: secret access key.
        time_s: time of signing, in seconds since the epoch.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time_s))
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    names = "host;x-amz-content-sha256;x-amz-date"
    canonical = (
        f"{method}\n{path}\n\nhost:{host}\nx-amz-content-sha256:{EMPTY_SHA256}\nx-amz-date:{stamp}\n\n"
        f"{names}\n{EMPTY_SHA256}"
    )
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.new(key, text.encode(), "sha256").hexdigest()
    return {
        "host": host,
        "x-amz-date": stamp,
        "x-amz-content-sha256": EMPTY_SHA256,
        "authorization": (
            f"AWS4-HMAC-SHA256 Credential={access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
        ),
    }


def check_store(timeout_s: float) -> None:
    """Request an object that does not exist from the store, signed with the service's own key.

    Raises:
        RuntimeError: no response, or the key may not read the warehouse.
    """
    host, base = address(setting("TARN_S3_ENDPOINT", "http://minio:9000"))
    path = quote(f"{base}/{setting('TARN_BUCKET', 'tarn')}/warehouse/no-such-object")
    headers = signed_headers(
        "HEAD",
        host,
        path,
        region=setting("TARN_REGION", "us-east-1"),
        access_key=secret("s3_access_key_id"),
        secret_key=secret("s3_secret_access_key"),
        time_s=time.time(),
    )
    status, answer, _ = http("HEAD", host, path, headers=headers, timeout_s=timeout_s)
    if status not in {200, 404}:
        reason = answer.get("x-minio-error-code", "no reason given")
        raise RuntimeError(f"the store at {host} answers {status} ({reason}) to this service's own key")


def check_catalog(timeout_s: float) -> None:
    """Get a token with the service's own credential, and the catalog's configuration with that token.

    Raises:
        RuntimeError: no response, or a rejection.
    """
    host, base = address(setting("TARN_CATALOG_URI", "http://catalog:8181"))
    client_id, _, client_secret = secret("catalog_credential").partition(":")
    form = {
        "grant_type": "client_credentials",
        "client_id": client_id,
        "client_secret": client_secret,
        "scope": "catalog",
    }
    status, _, body = http(
        "POST",
        host,
        f"{base}/v1/oauth/tokens",
        headers={"content-type": "application/x-www-form-urlencoded"},
        body=urlencode(form).encode(),
        timeout_s=timeout_s,
    )
    if status != 200:
        raise RuntimeError(f"the catalog at {host} answers {status} to this service's own credential")
    token = json.loads(body)["access_token"]
    warehouse = quote(setting("TARN_WAREHOUSE", "tarn"), safe="")
    status, _, _ = http(
        "GET",
        host,
        f"{base}/v1/config?warehouse={warehouse}",
        headers={"authorization": f"Bearer {token}"},
        timeout_s=timeout_s,
    )
    if status != 200:
        raise RuntimeError(f"the catalog at {host} answers {status} to a configuration request with a token")

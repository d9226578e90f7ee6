"""MinIO's health probe: shallow is a signed read of one object; deep writes, reads back and swaps it.

Uses Python's standard library only and the server's own root credentials, in a bucket of its own.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import os

from tarn.probe.look import answers, http, secret

SERVICE = "minio"
ADDRESS = "127.0.0.1:9000"
BUCKET = "tarn-health"
KEY = f"/{BUCKET}/beat"
REGION = os.environ.get("MINIO_REGION", "us-east-1")


def signed(
    method: str, path: str, body: bytes, extra: dict[str, str], *, now: datetime.datetime
) -> dict[str, str]:
    """Return the headers of an S3 request signed with Signature Version 4.

    Args:
        method: the HTTP method.
        path: the path; needs no encoding, has no query.
        body: the body.
        extra: additional headers to sign.
        now: the time of the request, UTC.
    """
    payload = hashlib.sha256(body).hexdigest()
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    headers = {"host": ADDRESS, "x-amz-content-sha256": payload, "x-amz-date": stamp}
    headers.update({name.lower(): value for name, value in extra.items()})
    names = sorted(headers)
    canonical = [
        method,
        path,
        "",
        *(f"{name}:{headers[name]}" for name in names),
        "",
        ";".join(names),
        payload,
    ]
    scope = f"{stamp[:8]}/{REGION}/s3/aws4_request"
    digest = hashlib.sha256("\n".join(canonical).encode()).hexdigest()
    to_sign = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"
    key = f"AWS4{secret('root_password')}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={secret('root_user')}/{scope}, "
        f"SignedHeaders={';'.join(names)}, Signature={signature}"
    )
    return headers


def ask(
    method: str, path: str, *expected: int, body: bytes = b"", extra: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    """Send a signed request; return (status, headers, body).

    Args:
        method: the HTTP method.
        path: the path; needs no encoding, has no query.
        *expected: the accepted HTTP statuses.
        body: the body.
        extra: additional headers.

    Raises:
        RuntimeError: there is no response, or its status is not accepted.
    """
    headers = signed(method, path, body, extra or {}, now=datetime.datetime.now(datetime.UTC))
    status, found, content = http(method, ADDRESS, path, headers=headers, body=body)
    if status not in expected:
        code = content.partition(b"<Code>")[2].partition(b"</Code>")[0].decode() or "no code"
        wanted = " or ".join(str(number) for number in expected)
        raise RuntimeError(f"{method} {path} answered {status} ({code}), expected {wanted}")
    return status, found, content


def alive() -> None:
    """Require that the server answers, with any status."""
    answers(ADDRESS, "/minio/health/live", timeout_s=4.0)


def shallow() -> None:
    """Require a signed read; a missing object (none was written yet) is accepted."""
    ask("GET", KEY, 200, 404)


def deep() -> None:
    """Write, read back, and check that conditional writes fail or succeed as they must.

    Raises:
        RuntimeError: a result is not the expected one.
    """
    ask("PUT", f"/{BUCKET}", 200, 409)
    body = os.urandom(16).hex().encode()
    _, headers, _ = ask("PUT", KEY, 200, body=body)
    _, _, found = ask("GET", KEY, 200)
    if found != body:
        raise RuntimeError(f"GET {KEY}: {len(found)} bytes that differ from the {len(body)} just written")
    ask("PUT", KEY, 412, body=body, extra={"If-None-Match": "*"})
    ask("PUT", KEY, 412, body=body, extra={"If-Match": '"00000000000000000000000000000000"'})
    ask("PUT", KEY, 200, body=body + b".", extra={"If-Match": headers.get("etag", "")})

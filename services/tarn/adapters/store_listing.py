"""A listing of a bucket whose keys have any characters, by plain HTTP.

The library refuses a listing as a whole if one key in it has a control character, which S3 allows. Whoever
may write below a prefix would hide everything else in it. Such keys are none of the lake's; they are left
out.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote, unquote_plus, urlsplit
from xml.etree import ElementTree

from tarn.core.object_store import Listed, StoreDeniedError, StoreUnavailableError, is_key

PAGE_BYTES_MAX = 16 << 20
NOTHING = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketAccess:
    """A bucket of an S3-compatible store, by path, and the keys of a user of it.

    Attributes:
        endpoint: `http://host:port` or `https://…`.
        region: region of the store.
        bucket: name of the bucket.
        access_key_id: keys of the store user.
        secret_access_key: the same.
        timeout_s: how long a connection, and an answer, may take.
    """

    endpoint: str
    region: str
    bucket: str
    access_key_id: str
    secret_access_key: str = field(repr=False)
    timeout_s: float


def list_keys(access: BucketAccess, prefix: str, *, after: str | None = None) -> Iterator[Listed]:
    """Yield the objects below a folder in the order of their keys, without those of strange keys.

    Args:
        access: the bucket.
        prefix: the folder, with or without a slash at its end.
        after: the listing begins after this key.

    Raises:
        StoreDeniedError: the user may not list it.
        StoreUnavailableError: no usable answer.
    """
    folder = f"{prefix.rstrip('/')}/" if prefix else ""
    query = {"encoding-type": "url", "list-type": "2", "prefix": folder}
    if after is not None:
        query["start-after"] = after
    while True:
        root = _page(access, prefix, query)
        encoded = _text(root, "EncodingType") == "url"
        try:
            found = [_listed(entry, encoded=encoded) for entry in _all(root, "Contents")]
        except ValueError as e:
            raise _unusable(access, prefix, f"{type(e).__name__}: {e}") from e
        yield from (one for one in found if is_key(one.key))
        token = _text(root, "NextContinuationToken")
        if not token:
            return
        query["continuation-token"] = token


def _listed(entry: ElementTree.Element, *, encoded: bool) -> Listed:
    """An object of a listing.

    Raises:
        ValueError: its size or its time is none.
    """
    key = _text(entry, "Key")
    return Listed(
        key=unquote_plus(key) if encoded else key,
        etag=_text(entry, "ETag"),
        size_bytes=int(_text(entry, "Size")),
        modified_ms=int(datetime.fromisoformat(_text(entry, "LastModified")).timestamp() * 1000),
    )


def authorization(
    access: BucketAccess, query: Mapping[str, str], *, host: str, stamp: str, digest: str = NOTHING
) -> str:
    """The header that signs a GET of the bucket, by AWS Signature Version 4.

    Args:
        access: the bucket.
        query: parameters of the request.
        host: its header `host`.
        stamp: its header `x-amz-date`.
        digest: its header `x-amz-content-sha256`.
    """
    names = "host;x-amz-content-sha256;x-amz-date"
    lines = f"host:{host}\nx-amz-content-sha256:{digest}\nx-amz-date:{stamp}\n"
    canonical = f"GET\n/{access.bucket}\n{_encoded(query)}\n{lines}\n{names}\n{digest}"
    scope = f"{stamp[:8]}/{access.region}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{access.secret_access_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    return (
        f"AWS4-HMAC-SHA256 Credential={access.access_key_id}/{scope}, SignedHeaders={names}, "
        f"Signature={signature}"
    )


def _encoded(query: Mapping[str, str]) -> str:
    return "&".join(
        f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in sorted(query.items())
    )


def _page(access: BucketAccess, prefix: str, query: Mapping[str, str]) -> ElementTree.Element:
    """One page of a listing, as XML."""
    parts = urlsplit(access.endpoint)
    stamp = datetime.fromtimestamp(time.time(), UTC).strftime("%Y%m%dT%H%M%SZ")
    headers = {
        "host": parts.netloc,
        "x-amz-content-sha256": NOTHING,
        "x-amz-date": stamp,
        "authorization": authorization(access, query, host=parts.netloc, stamp=stamp),
    }
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.netloc, timeout=access.timeout_s)
    try:
        connection.request("GET", f"/{access.bucket}?{_encoded(query)}", headers=headers)
        answer = connection.getresponse()
        status, body = answer.status, answer.read(PAGE_BYTES_MAX)
        root = ElementTree.fromstring(body) if status == 200 else None  # noqa: S314 - of the lake's own store
    except (OSError, http.client.HTTPException, ElementTree.ParseError) as e:
        raise _unusable(access, prefix, f"{type(e).__name__}: {e}") from e
    finally:
        connection.close()
    if root is not None:
        if root.tag.rpartition("}")[2] != "ListBucketResult":
            raise _unusable(access, prefix, f"the answer is no listing, but {root.tag}")
        return root
    if status in (401, 403):
        raise StoreDeniedError(
            f"may not list {prefix} at {access.endpoint} in bucket {access.bucket}: status {status}; check "
            "the store user and its policy",
            endpoint=access.endpoint,
            bucket=access.bucket,
        )
    raise _unusable(access, prefix, f"status {status}")


def _unusable(access: BucketAccess, prefix: str, reason: str) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"could not list {prefix} at {access.endpoint}: {reason[:300]}; wait for the store and try again",
        endpoint=access.endpoint,
    )


def _all(element: ElementTree.Element, name: str) -> Iterator[ElementTree.Element]:
    return (one for one in element if one.tag.rpartition("}")[2] == name)


def _text(element: ElementTree.Element, name: str) -> str:
    return next((one.text or "" for one in _all(element, name)), "")

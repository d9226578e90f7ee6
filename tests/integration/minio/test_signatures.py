"""A write without a valid signature is rejected, on every path by which a body can arrive."""

from __future__ import annotations

import secrets
import uuid

import pytest
from minio import Minio, MinioAdmin
from minio.credentials.providers import StaticProvider

from tests.integration.minio.conftest import Server
from tests.integration.minio.requests_by_hand import (
    UNSIGNED_TRAILER,
    archive,
    credential_in_query,
    forge,
    forged_extract,
    send,
    sign,
    signed_by_one_for_another,
    unsigned_by_query,
    with_trailer,
)


@pytest.fixture
def bucket(server: Server) -> str:
    """A new bucket."""
    name = f"b-{uuid.uuid4().hex}"
    Minio(server.address, server.user, server.password, secure=False, region="us-east-1").make_bucket(name)
    return name


def keys(server: Server, bucket: str) -> list[str]:
    client = Minio(server.address, server.user, server.password, secure=False, region="us-east-1")
    return sorted(found.object_name for found in client.list_objects(bucket, recursive=True))


def test_a_forged_extract_is_refused_and_writes_nothing(server: Server, bucket: str) -> None:
    assert forged_extract(server.address, bucket, server.user) == 403
    assert keys(server, bucket) == []


def test_a_signed_extract_with_an_unsigned_trailer_still_works(server: Server, bucket: str) -> None:
    headers, body = with_trailer(archive("inside", b"rows"))
    headers["X-Amz-Meta-Snowball-Auto-Extract"] = "true"
    target = f"/{bucket}/good.tar"
    signed = sign(
        "PUT",
        server.address,
        target,
        user=server.user,
        password=server.password,
        headers=headers,
        payload=UNSIGNED_TRAILER,
    )
    assert send("PUT", server.address, target, signed, body)[0] == 200
    assert keys(server, bucket) == ["inside"]


def test_a_signed_upload_with_an_unsigned_trailer_still_works(server: Server, bucket: str) -> None:
    headers, body = with_trailer(b"rows")
    target = f"/{bucket}/good"
    who = {"user": server.user, "password": server.password}
    signed = sign("PUT", server.address, target, **who, headers=headers, payload=UNSIGNED_TRAILER)
    assert send("PUT", server.address, target, signed, body)[0] == 200
    assert send("GET", server.address, target, sign("GET", server.address, target, **who))[2] == "rows"


def test_a_forged_upload_is_refused(server: Server, bucket: str) -> None:
    headers, body = with_trailer(b"forged")
    target = f"/{bucket}/forged"
    signed = sign(
        "PUT",
        server.address,
        target,
        user=server.user,
        password="not-the-password",
        headers=headers,
        payload=UNSIGNED_TRAILER,
    )
    assert send("PUT", server.address, target, forge(signed), body)[0] == 403
    assert keys(server, bucket) == []


def test_a_name_in_the_query_is_no_signature(server: Server, bucket: str) -> None:
    assert unsigned_by_query(server.address, bucket, server.user) == 403
    assert keys(server, bucket) == []


def test_a_part_with_a_name_in_the_query_is_refused(server: Server, bucket: str) -> None:
    who = {"user": server.user, "password": server.password}
    start = f"/{bucket}/parts?uploads="
    status, _, answer = send("POST", server.address, start, sign("POST", server.address, start, **who))
    assert status == 200
    upload = answer.partition("<UploadId>")[2].partition("</UploadId>")[0]
    headers, body = with_trailer(b"forged")
    headers["x-amz-content-sha256"] = UNSIGNED_TRAILER
    query = f"partNumber=1&uploadId={upload}&{credential_in_query(server.user)}"
    assert send("PUT", server.address, f"/{bucket}/parts?{query}", headers, body)[0] == 403


def test_a_user_cannot_act_as_the_one_its_query_names(server: Server, bucket: str) -> None:
    admin = MinioAdmin(
        endpoint=server.address,
        credentials=StaticProvider(server.user, server.password),
        region="us-east-1",
        secure=False,
    )
    reader, password = f"reader-{secrets.token_hex(4)}", secrets.token_urlsafe(30)
    admin.user_add(reader, password)
    policy = {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": ["arn:aws:s3:::*"]}],
    }
    admin.policy_add("only-read", policy=policy)
    admin.attach_policy(["only-read"], user=reader)
    target = f"/{bucket}/taken"
    status = signed_by_one_for_another(
        server.address, target, user=reader, password=password, other=server.user
    )
    assert status == 400  # two credentials in one request: rejected before either is used
    assert keys(server, bucket) == []


def test_a_presigned_write_still_works(server: Server, bucket: str) -> None:
    client = Minio(server.address, server.user, server.password, secure=False, region="us-east-1")
    url = client.presigned_put_object(bucket, "presigned")
    target = url.removeprefix(f"http://{server.address}")
    assert send("PUT", server.address, target, {}, b"rows")[0] == 200
    assert keys(server, bucket) == ["presigned"]


def test_nobody_writes_without_a_name(server: Server, bucket: str) -> None:
    headers, body = with_trailer(b"forged")
    headers["x-amz-content-sha256"] = UNSIGNED_TRAILER
    assert send("PUT", server.address, f"/{bucket}/nobody", headers, body)[0] == 403

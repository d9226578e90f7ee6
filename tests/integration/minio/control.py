"""Control for test_signatures: a build without Tarn's patches accepts the same requests.

It is not collected automatically, because it builds a second image (half a minute with a warm build cache,
else three minutes). Run it after changing the patches or MinIO's version:

    TARN_BASE=<the base image> .venv/bin/pytest tests/integration/minio/control.py
"""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from minio import Minio

from tests.integration.minio.conftest import Server
from tests.integration.minio.requests_by_hand import forged_extract, unsigned_by_query

ROOT = Path(__file__).resolve().parents[3]
IMAGE = "tarn/minio:unpatched"

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module", autouse=True)
def unpatched() -> Iterator[None]:
    """Replace Tarn's image by the one without patches."""
    base = os.environ.get("TARN_BASE", "debian:trixie-slim")
    command = ["docker", "build", "-q", "--build-arg", f"BASE={base}", "--build-arg", "MINIO_PATCHED=no"]
    command += ["-f", "minio/Dockerfile", "-t", IMAGE, "."]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "DOCKER_BUILDKIT": "1"}, timeout=800)
    os.environ["TARN_TEST_MINIO_IMAGE"] = IMAGE
    yield
    del os.environ["TARN_TEST_MINIO_IMAGE"]


@pytest.fixture
def bucket(server: Server) -> str:
    """A new bucket."""
    name = f"b-{uuid.uuid4().hex}"
    Minio(server.address, server.user, server.password, secure=False, region="us-east-1").make_bucket(name)
    return name


def test_unpatched_a_forged_extract_is_let_in(server: Server, bucket: str) -> None:
    assert forged_extract(server.address, bucket, server.user) == 200


def test_unpatched_a_name_in_the_query_is_enough(server: Server, bucket: str) -> None:
    assert unsigned_by_query(server.address, bucket, server.user) == 200

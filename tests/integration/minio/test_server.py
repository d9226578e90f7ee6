"""MinIO as the stack relies on it: credentials, hardening, conditional writes, rights, health."""

from __future__ import annotations

import json
import re
import secrets
import threading
import time
import uuid
from pathlib import Path

import pytest
from minio import Minio
from minio.error import S3Error

from tarn.bootstrap.minio_store import MinioStore
from tarn.bootstrap.policies import policies
from tarn.bootstrap.store import set_up_users, verify
from tarn.core.credentials import STORE_USERS, StoreUser
from tarn.probe.runner import Limits
from tests.integration.minio.conftest import Server, hardened, write_secrets
from tests.integration.minio.requests_by_hand import send, sign
from tests.support.healthy import ENDED_WITHIN_S
from tests.support.inside import said_inside

UNHEALTHY_WITHIN_S = 60.0
RACERS = 12
ROUNDS = 25
LIMITS = Limits()


@pytest.fixture(scope="module")
def bucket(server: Server) -> str:
    """A bucket for this module."""
    name = f"b-{uuid.uuid4().hex}"
    Minio(server.address, server.user, server.password, secure=False, region="us-east-1").make_bucket(name)
    return name


def put(server: Server, target: str, body: bytes, **condition: str) -> tuple[int, str]:
    """Status and ETag of a conditional write (`if_match` or `if_none_match`)."""
    headers = {name.replace("_", "-"): value for name, value in condition.items()}
    signed = sign("PUT", server.address, target, user=server.user, password=server.password, headers=headers)
    status, found, _ = send("PUT", server.address, target, signed, body)
    return status, found.get("etag", "")


@pytest.mark.parametrize(("size", "files"), [(1 << 20, ["xl.meta"]), ((1 << 20) + 1, ["part.1", "xl.meta"])])
def test_an_object_of_up_to_a_mebibyte_is_one_file_on_the_drive(
    server: Server, bucket: str, size: int, files: list[str]
) -> None:
    body = secrets.token_bytes(size)
    assert put(server, f"/{bucket}/of-{size}", body)[0] == 200
    client = Minio(server.address, server.user, server.password, secure=False, region="us-east-1")
    answer = client.get_object(bucket, f"of-{size}")
    try:
        assert answer.read() == body
    finally:
        answer.close()
    container = server.container.get_wrapped_container()
    found = said_inside(container, ["find", f"/data/{bucket}/of-{size}", "-type", "f", "-printf", "%f\n"])
    assert sorted(found.output.decode().split()) == files
    assert "inline block" not in container.logs().decode(), "the server's warning of it is patched out"


@pytest.mark.parametrize(
    ("user", "password", "line"),
    [
        ("minioadmin", "x" * 40, "root_user holds a well-known default; write a random value"),
        ("tarn-root-1", "minioadmin", "root_password holds a well-known default; write a random value"),
        (
            "tarn-root-1",
            "n7Rk2p",
            "root_password holds 6 characters, 20 are needed; write a longer random value",
        ),
        ("abc", "x" * 40, "root_user holds 3 characters, 8 are needed; write a longer random value"),
        ("s" * 24, "s" * 24, "hold the same value; make them differ"),
        (None, "x" * 40, "root_user: no such file or directory; the init service writes it"),
    ],
)
def test_credentials_that_cannot_protect_are_refused(
    tmp_path: Path, user: str | None, password: str, line: str
) -> None:
    values = {"root_password": password} if user is None else {"root_user": user, "root_password": password}
    write_secrets(tmp_path, **values)
    with hardened(tmp_path) as container:
        wrapped = container.get_wrapped_container()
        assert wrapped.wait(timeout=ENDED_WITHIN_S)["StatusCode"] == 64
        said = wrapped.logs().decode()
    assert "minio: refused to start:" in said
    assert line in said
    assert password not in said


def test_credentials_from_the_environment_are_refused(tmp_path: Path) -> None:
    write_secrets(tmp_path, root_user="tarn-root-1", root_password="x" * 40)
    container = hardened(tmp_path).with_env("MINIO_ROOT_PASSWORD", "from-outside-" + "x" * 20)
    with container:
        wrapped = container.get_wrapped_container()
        assert wrapped.wait(timeout=ENDED_WITHIN_S)["StatusCode"] == 64
        said = wrapped.logs().decode()
    assert "MINIO_ROOT_PASSWORD is set; credentials are read from files" in said
    assert "from-outside-" not in said


def test_the_root_secret_is_in_no_description_of_the_container(server: Server) -> None:
    wrapped = server.container.get_wrapped_container()
    wrapped.reload()
    assert server.password not in json.dumps(wrapped.attrs)
    inside = (
        "for p in /proc/[0-9]*; do tr '\\0' '\\n' < $p/environ; tr '\\0' '\\n' < $p/cmdline; done 2>/dev/null"
    )
    found = said_inside(wrapped, ["sh", "-c", inside]).output.decode()
    assert "MINIO_BROWSER=off" in found
    assert server.password not in found
    assert server.user not in found


def test_it_runs_as_nobody_special_on_a_root_it_cannot_write(server: Server) -> None:
    wrapped = server.container.get_wrapped_container()
    status, who = said_inside(wrapped, ["id"])
    assert (status, who.decode().split()[0]) == (0, "uid=10001(minio)")
    code, said = said_inside(wrapped, ["sh", "-c", "echo x > /usr/local/bin/x"])
    assert code != 0
    assert b"Read-only file system" in said
    caps = said_inside(wrapped, ["sh", "-c", "grep CapEff /proc/1/status"]).output.decode().split()
    assert caps == ["CapEff:", "0000000000000000"]


def test_there_is_no_console(server: Server) -> None:
    status, headers, _ = send(
        "GET", server.address, "/", {"User-Agent": "Mozilla/5.0", "Accept": "text/html"}
    )
    assert status == 403
    assert "location" not in headers


def test_one_of_many_creates(server: Server, bucket: str) -> None:
    for number in range(ROUNDS):
        target = f"/{bucket}/created-{number}"
        answers = race(lambda body, target=target: put(server, target, body, if_none_match="*"))
        assert sorted(status for status, _ in answers) == [200] + [412] * (RACERS - 1)


def test_one_of_many_swaps(server: Server, bucket: str) -> None:
    target = f"/{bucket}/swapped"
    status, tag = put(server, target, b"start", if_none_match="*")
    assert status == 200
    for _ in range(ROUNDS):
        answers = race(lambda body, tag=tag: put(server, target, body, if_match=tag))
        won = [found for status, found in answers if status == 200]
        assert len(won) == 1, answers
        assert {status for status, _ in answers} == {200, 412}
        (tag,) = won


def test_a_swap_of_what_is_not_there_is_refused(server: Server, bucket: str) -> None:
    status, _ = put(
        server, f"/{bucket}/absent-{uuid.uuid4().hex}", b"x", if_match='"00000000000000000000000000000000"'
    )
    assert status in (404, 412)


def race(write):
    """The responses to `RACERS` writes of different bodies, started together."""
    barrier, answers = threading.Barrier(RACERS), []

    def racer() -> None:
        body = secrets.token_bytes(64)
        barrier.wait(timeout=60)
        answers.append(write(body))

    threads = [threading.Thread(target=racer) for _ in range(RACERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert len(answers) == RACERS
    return answers


def test_each_store_user_may_do_what_the_table_says(server: Server) -> None:
    users = {
        name: StoreUser(
            access_key=f"tarn-{name}-{secrets.token_hex(4)}", secret_key=secrets.token_urlsafe(30)
        )
        for name in STORE_USERS
    }
    root = StoreUser(access_key=server.user, secret_key=server.password)
    store = MinioStore(endpoint=f"http://{server.address}", region="us-east-1", bucket="tarn", root=root)
    store.ensure_bucket()
    set_up_users(store, users, policies("tarn"))
    assert verify(store, users, uuid.uuid4().hex) >= 90
    intruder = users["spark"]
    client = Minio(server.address, intruder.access_key, intruder.secret_key, secure=False, region="us-east-1")
    with pytest.raises(S3Error, match="AccessDenied"):
        client.make_bucket("another")
    with pytest.raises(S3Error, match="AccessDenied"):
        list(client.list_objects("tarn-health"))


@pytest.mark.in_turn(2, "a frozen store alone stays healthy")
def test_a_frozen_server_is_unhealthy_in_time_and_healthy_again(server: Server) -> None:
    wrapped = server.container.get_wrapped_container()
    assert server.health() == "healthy"
    pid = said_inside(
        wrapped, ["sh", "-c", "pidof minio || grep -lx minio /proc/[0-9]*/comm"]
    ).output.decode()
    number = re.findall(r"\d+", pid)[0]
    assert wrapped.exec_run(["sh", "-c", f"kill -STOP {number}"]).exit_code == 0
    server.await_health("unhealthy", UNHEALTHY_WITHIN_S)
    assert server.health_line() == "shallow: GET http://127.0.0.1:9000/tarn-health/beat: no answer within 4 s"
    assert wrapped.exec_run(["sh", "-c", f"kill -CONT {number}"]).exit_code == 0
    server.await_health()


def test_a_revoked_key_is_unhealthy_in_time_and_healthy_again(server: Server) -> None:
    write_secrets(server.secrets_dir, root_user=server.user, root_password=secrets.token_urlsafe(30))
    server.await_health("unhealthy", UNHEALTHY_WITHIN_S)
    line = "shallow: GET /tarn-health/beat answered 403 (SignatureDoesNotMatch), expected 200 or 404"
    assert server.health_line() == line
    write_secrets(server.secrets_dir, root_user=server.user, root_password=server.password)
    server.await_health()


def test_a_paused_server_is_healthy_soon_after(server: Server) -> None:
    wrapped = server.container.get_wrapped_container()
    wrapped.pause()
    time.sleep(LIMITS.gap_s_max)  # the engine's own pauses are shorter than this
    server.await_health("unhealthy", UNHEALTHY_WITHIN_S)
    wrapped.unpause()
    server.await_health()
    wrapped.reload()
    assert wrapped.status == "running"
    assert wrapped.attrs["RestartCount"] == 0, "it was thawed, not started again"


def test_a_kill_loses_nothing_that_was_acknowledged(server: Server, bucket: str) -> None:
    wrapped = server.container.get_wrapped_container()
    acknowledged = 0
    for number in range(50):
        acknowledged += put(server, f"/{bucket}/kept-{number}", str(number).encode())[0] == 200
    assert acknowledged == 50
    wrapped.kill("SIGKILL")
    wrapped.start()
    wrapped.reload()
    address = f"127.0.0.1:{wrapped.ports['9000/tcp'][0]['HostPort']}"
    server.await_health()
    for number in range(50):
        target = f"/{bucket}/kept-{number}"
        signed = sign("GET", address, target, user=server.user, password=server.password)
        assert send("GET", address, target, signed)[2] == str(number)

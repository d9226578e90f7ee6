"""What somebody without a token can make the catalog hold: bounded, and it answers its clients meanwhile."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from tarn.adapters.connections import CONNECTIONS_MAX
from tarn_catalog.rest.app import STRANGERS_BODY_BYTES_MAX
from tarn_catalog.rest.server import HEADER_BYTES_MAX
from tarn_catalog.testing.server import write_secrets
from tests.support.replicas import Replica

GROWTH_MIB_MAX = 150
WAIT_S_MAX = 60.0
HEAD = b"POST /v1/oauth/tokens HTTP/1.1\r\nhost: 127.0.0.1\r\n"
FORM = HEAD + b"content-type: application/x-www-form-urlencoded\r\n"
SENT = {
    "half a head": HEAD + b"x: " + b"y" * (HEADER_BYTES_MAX - 1_024),
    "an endless head": HEAD + b"x: " + b"y" * 8 * HEADER_BYTES_MAX,
    "many small headers": HEAD + b"".join(b"x%d: y\r\n" % n for n in range(6_000)),
    "half a form": FORM + b"content-length: %d\r\n\r\n" % STRANGERS_BODY_BYTES_MAX + b"a" * 16_000,
    "a chunked form": FORM + b"transfer-encoding: chunked\r\n\r\n3000\r\n" + b"a" * 0x3000,
    "requests in a row": b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * 1_000,
    "a long body after a refusal": FORM + b"content-length: 10000000\r\n\r\n" + b"a" * 1_000_000,
}


def held_mib(pid: int) -> float:
    """The memory that a process holds, MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (kib,) = (line.split()[1] for line in lines if line.startswith("VmRSS"))
    return int(kib) / 1024


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    folder = tmp_path_factory.mktemp("strangers")
    write_secrets(folder / "secrets")
    one = Replica(folder / "lake", folder / "secrets")
    try:
        yield one
    finally:
        one.close()


@pytest.mark.skipif("not __import__('pathlib').Path('/proc/self/status').exists()", reason="reads /proc")
@pytest.mark.may_skip("reads /proc, which Linux has")
@pytest.mark.parametrize("what", SENT)
def test_connections_without_a_token_hold_little_and_block_nobody(
    replica: Replica, what: str, record_property
) -> None:
    before = held_mib(replica.process.pid)
    with ExitStack() as stack:
        for _ in range(CONNECTIONS_MAX + 50):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", replica.port), timeout=60))
            one.setblocking(False)
            with suppress(OSError):
                one.send(SENT[what])
        answer = httpx.get(f"{replica.uri}/health", timeout=WAIT_S_MAX)
        most = held_mib(replica.process.pid)
    record_property("mib", round(most - before))
    assert answer.status_code in (200, 503)
    assert most - before < GROWTH_MIB_MAX
    assert replica.process.poll() is None
    assert httpx.get(f"{replica.uri}/health", timeout=WAIT_S_MAX).status_code == 200

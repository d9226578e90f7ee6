"""One MinIO from Tarn's image per module, run as in the stack: not root, only /data and /tmp writable."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from testcontainers.core.container import DockerContainer

from tests.support.healthy import HEALTHY_WITHIN_S, await_health, health_of
from tests.support.images import image

UID = 10001


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running MinIO.

    Attributes:
        container: the container.
        address: `host:port` for use by the test.
        user: the root user.
        password: its password.
        secrets_dir: the folder mounted as secrets.
    """

    container: DockerContainer
    address: str
    user: str
    password: str
    secrets_dir: Path

    def health(self) -> str:
        """Its health, as the engine reports it."""
        return health_of(self.container.get_wrapped_container())

    def await_health(self, status: str = "healthy", timeout_s: float = HEALTHY_WITHIN_S) -> None:
        """Return as soon as the engine reports this status."""
        await_health(self.container.get_wrapped_container(), status, timeout_s=timeout_s)

    def health_line(self) -> str:
        """The output of the last finished health check."""
        wrapped = self.container.get_wrapped_container()
        wrapped.reload()
        log = wrapped.attrs["State"]["Health"]["Log"]
        return str(log[-1]["Output"]).strip() if log else ""


def eventually(what: str, holds: Callable[[], bool], *, timeout_s: float) -> float:
    """Seconds until the condition held. The last look begins when the time is over.

    Args:
        what: name of the condition, for the error message.
        holds: the condition.
        timeout_s: the timeout, in seconds.

    Raises:
        AssertionError: it did not hold before the timeout.
    """
    start_s = time.monotonic()
    while True:
        is_last = time.monotonic() - start_s >= timeout_s
        if holds():
            return time.monotonic() - start_s
        if is_last:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.2)


def write_secrets(folder: Path, **values: str) -> None:
    """Write secret files readable by uid 10001, although the test may not change their owner."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    for name, value in values.items():
        path = folder / name
        path.unlink(missing_ok=True)
        path.write_text(value)
        path.chmod(0o444)


def hardened(secrets_dir: Path) -> DockerContainer:
    """A container of Tarn's image with the hardening of docker-compose.yml."""
    container = DockerContainer(os.environ.get("TARN_TEST_MINIO_IMAGE") or image("minio"))
    container.with_volume_mapping(str(secrets_dir), "/run/tarn/secrets", "ro")
    container.with_tmpfs_mount("/tmp", "size=64m")
    container.with_kwargs(
        init=True,
        read_only=True,
        cap_drop=["ALL"],
        security_opt=["no-new-privileges:true"],
        mem_limit="768m",
        pids_limit=512,
    )
    container.ports["9000/tcp"] = ("127.0.0.1", None)  # type: ignore[assignment]
    return container


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A healthy MinIO with credentials of its own."""
    folder = tmp_path_factory.mktemp("secrets")
    user, password = f"tarn-root-{secrets.token_hex(4)}", secrets.token_urlsafe(30)
    write_secrets(folder, root_user=user, root_password=password)
    with hardened(folder) as container:
        address = f"127.0.0.1:{container.get_exposed_port(9000)}"
        running = Server(
            container=container, address=address, user=user, password=password, secrets_dir=folder
        )
        running.await_health()
        yield running

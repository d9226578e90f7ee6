"""Containers of testcontainers: their logs are saved and checked for errors, and all are removed."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.support.logs import Finding, load_allowed, unexpected


def artifacts() -> Path:
    """Folder for this run's files: TARN_ARTIFACTS, set by scripts/test, or artifacts/ when run by hand."""
    default = Path(__file__).resolve().parents[2] / "artifacts" / "by-hand"
    folder = Path(os.environ.get("TARN_ARTIFACTS") or default)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class LogKeeper:
    """Saves container logs as the containers end, and collects their unexpected ERROR lines."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.findings: list[Finding] = []
        self.kept = 0
        self._broken: set[str] = set()
        self._allowed = load_allowed()

    def expect_errors(self, name: str) -> None:
        """Exempt a container's log from the error check, for a test that breaks it on purpose."""
        self._broken.add(name)

    def keep(self, service: str, name: str, text: str) -> None:
        """Save one container's log and check it for errors."""
        self.kept += 1
        self.folder.mkdir(parents=True, exist_ok=True)
        safe = re.sub(r"[^A-Za-z0-9_.-]", "_", f"{self.kept:03}-{service}-{name}")
        (self.folder / f"{safe}.log").write_text(text, encoding="utf-8")
        if name not in self._broken:
            self.findings += unexpected(service, text.splitlines(), self._allowed)


KEEPER = pytest.StashKey[LogKeeper]()


def service_of(image: str) -> str:
    """The service that an image belongs to: `minio` for tarn/minio:dev."""
    return image.rpartition("/")[2].partition(":")[0]


def keep_logs_of_testcontainers(keeper: LogKeeper) -> None:
    """Patch testcontainers so that every container's log is saved before it is removed.

    The alternative is a subclass that every test must remember to use; one place is worth a patch.
    """
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.labels import SESSION_ID

    (artifacts() / "session-id").write_text(SESSION_ID)
    stop = DockerContainer.stop

    def keep_and_stop(self: DockerContainer, force: bool = True, delete_volume: bool = True) -> None:
        if self._container is not None:
            out, err = self.get_logs()
            text = (out + err).decode(errors="replace")
            keeper.keep(service_of(self.image), self._container.short_id, text)
        stop(self, force=force, delete_volume=delete_volume)

    DockerContainer.stop = keep_and_stop  # type: ignore[method-assign]


def remove_leftovers() -> int:
    """Remove containers and networks left over from this session; returns the number of containers."""
    import docker
    from testcontainers.core.labels import LABEL_SESSION_ID, SESSION_ID

    client = docker.from_env()
    try:
        condition = {"label": f"{LABEL_SESSION_ID}={SESSION_ID}"}
        containers = client.containers.list(all=True, filters=condition)
        for container in containers:
            container.remove(force=True, v=True)
        for network in client.networks.list(filters=condition):
            network.remove()
        return len(containers)
    finally:
        client.close()

"""Catalogs as real processes over one folder, behind a port of their own that takes turns between them."""

from __future__ import annotations

import argparse
import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

START_S_MAX = 60.0
CHUNK_BYTES = 64 * 1024
GRANTS_MAX_AGE_S = 1


class Front:
    """A port that passes each connection on to the next replica, or to another if that one does not answer.

    Args:
        ports: the replicas' ports on 127.0.0.1.
    """

    def __init__(self, ports: list[int]) -> None:
        self._ports = ports
        self._turn = count()
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.uri = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Accept no more connections."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(timeout=START_S_MAX)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client, next(self._turn)), daemon=True).start()

    def _serve(self, client: socket.socket, turn: int) -> None:
        with client:
            for step in range(len(self._ports)):
                port = self._ports[(turn + step) % len(self._ports)]
                try:
                    replica = socket.create_connection(("127.0.0.1", port), timeout=START_S_MAX)
                except OSError:
                    continue
                with replica:
                    back = threading.Thread(target=_pass_on, args=(replica, client), daemon=True)
                    back.start()
                    _pass_on(client, replica)
                    back.join()
                return


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(CHUNK_BYTES):
            sink.sendall(data)
    for one in (source, sink):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


class Replica:
    """A catalog in a process of its own.

    Attributes:
        process: the process.
        port: its published port.
    """

    def __init__(self, folder: Path, secrets_dir: Path) -> None:
        command = [sys.executable, "-m", "tests.support.replicas", str(folder), str(secrets_dir)]
        root = Path(__file__).resolve().parents[2]
        self.process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.uri = f"http://127.0.0.1:{self.port}"
        deadline = time.monotonic() + START_S_MAX
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert time.monotonic() < deadline, "the replica did not start"
                time.sleep(0.05)

    def kill(self) -> None:
        """End it at once, as a machine does that fails."""
        self.process.kill()
        self.process.wait(START_S_MAX)

    def close(self) -> None:
        """End it, if it has not ended."""
        self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def replicas(folder: Path, secrets_dir: Path, *, number: int = 2) -> Iterator[list[Replica]]:
    """Run so many catalogs over the lake in a folder for the duration of the block."""
    running: list[Replica] = []
    try:
        for _ in range(number):
            running.append(Replica(folder, secrets_dir))
        yield running
    finally:
        for one in running:
            one.close()


def main() -> None:
    """Serve the lake in a folder; print the published port."""
    from tarn.adapters.logging import configure
    from tarn.adapters.store import FileStore
    from tarn_catalog.rest.server import bound, listeners, make_routes, serve
    from tarn_catalog.settings import Settings

    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("secrets_dir")
    given = parser.parse_args()
    configure("error", service="catalog")
    settings = Settings.model_construct(
        **{
            **Settings().model_dump(),
            "secrets_dir": Path(given.secrets_dir),
            "catalog_host": "127.0.0.1",
            "catalog_port_inside": 0,
            "catalog_port_published": 0,
            "catalog_grants_max_age_s": GRANTS_MAX_AGE_S,
        }
    )
    sockets = bound(settings)
    sys.stdout.write(f"{sockets[1].getsockname()[1]}\n")
    sys.stdout.flush()
    asyncio.run(serve(listeners(settings, make_routes(settings, FileStore(given.folder))), sockets))


if __name__ == "__main__":
    main()

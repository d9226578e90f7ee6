"""Another machine on the same network: a network namespace with a route to this machine."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tarn_host.stack import apt

from tests.support.stack import Answer, run

# Addresses reserved for documentation (RFC 5737), used by no real host.
OURS, THEIRS = "198.51.100.1", "198.51.100.2"
INSTALL_S = 300
PROBE = """
import concurrent.futures, json, socket, sys
def reached(target):
    try:
        socket.create_connection(target, timeout=2).close()
        return True
    except OSError:
        return False
targets = [tuple(one) for one in json.loads(sys.argv[1])]
with concurrent.futures.ThreadPoolExecutor(64) as pool:
    print(json.dumps([one for one, found in zip(targets, pool.map(reached, targets)) if found]))
"""
LISTEN = """
import socket, sys
with socket.create_server((sys.argv[1], 0)) as server:
    print(server.getsockname()[1], flush=True)
    while True:
        server.accept()[0].close()
"""


def can_be_made() -> bool:
    """Whether this machine and user can create one."""
    return sys.platform.startswith("linux") and os.geteuid() == 0


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A neighbour connected to this machine.

    Attributes:
        name: name of its namespace.
    """

    name: str

    def reaches(self, targets: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        """The addresses that it can connect to."""
        command = ["ip", "netns", "exec", self.name, sys.executable, "-I", "-c", PROBE, json.dumps(targets)]
        answer = run(command, timeout_s=120)
        assert answer.code == 0, answer.text
        return [(host, port) for host, port in json.loads(answer.text.splitlines()[-1])]

    @contextlib.contextmanager
    def listening(self) -> Iterator[int]:
        """A port on which it accepts connections, as any server outside would."""
        command = ["ip", "netns", "exec", self.name, sys.executable, "-I", "-c", LISTEN, THEIRS]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                yield int(server.stdout.readline())
            finally:
                server.kill()


@contextlib.contextmanager
def neighbour(subnets: Sequence[str]) -> Iterator[Neighbour]:
    """A neighbour that routes packets for these subnets to this machine; removed at the end.

    Raises:
        AssertionError: it cannot be created.
    """
    if shutil.which("ip") is None:
        apt.install(["iproute2"], Path(os.devnull), timeout_s=INSTALL_S)
    name, device = f"tarn-nb-{os.getpid()}", f"tnb{os.getpid()}"[:14]

    def ip(*words: str) -> Answer:
        answer = run(["ip", *words], timeout_s=120)
        assert answer.code == 0, f"ip {' '.join(words)}: {answer.text}"
        return answer

    ip("netns", "add", name)
    try:
        ip("link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("address", "add", f"{OURS}/30", "dev", device)
        ip("link", "set", device, "up")
        for words in (
            ("address", "add", f"{THEIRS}/30", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            *(("route", "add", subnet, "via", OURS) for subnet in subnets),
        ):
            ip("-netns", name, *words)
        yield Neighbour(name)
    finally:
        # The veth pair is deleted with the namespace.
        run(["ip", "link", "delete", device], timeout_s=120)
        run(["ip", "netns", "delete", name], timeout_s=120)

"""Probe run inside a container by `python3 -I -c`: prints clock, peers, limits and disk as one JSON object.

Arguments: `host:port` of every service that this one uses. It imports nothing of Tarn and changes nothing.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

CONNECT_S = 3.0


def peer(address: str) -> str:
    """Why a peer cannot be reached, starting with `dns:` or `tcp:`; empty if it can."""
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host, int(port), family=socket.AF_INET, type=socket.SOCK_STREAM)
    except OSError as error:
        return f"dns: {error.strerror or error}"
    try:
        socket.create_connection((str(found[0][4][0]), int(port)), CONNECT_S).close()
    except OSError as error:
        return f"tcp: {error.strerror or error or 'no answer'}"
    return ""


def numbers(*paths: str) -> dict[str, int]:
    """`name number` lines of the first file that exists."""
    for path in paths:
        try:
            with open(path, encoding="ascii") as file:
                rows = [row.split() for row in file]
        except OSError:
            continue
        return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}
    return {}


def number(*paths: str) -> int | None:
    """The number in the first file that exists."""
    for path in paths:
        try:
            with open(path, encoding="ascii") as file:
                return int(file.read())
        except (OSError, ValueError):
            continue
    return None


def room(path: str) -> tuple[int, int] | None:
    """Free and total bytes of a file system."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def main(peers: list[str]) -> None:
    """Print the facts as JSON."""
    group = "/sys/fs/cgroup"
    used = number(f"{group}/memory.current", f"{group}/memory/memory.usage_in_bytes")
    stat = numbers(f"{group}/memory.stat", f"{group}/memory/memory.stat")
    if used is not None:
        used -= stat.get("total_inactive_file", stat.get("inactive_file", 0))
    events = numbers(f"{group}/memory.events", f"{group}/memory/memory.oom_control")
    found = {
        "time": time.time(),
        "peers": {address: peer(address) for address in peers},
        "memory": used,
        "oom_kills": events.get("oom_kill", 0),
        "pids_refused": numbers(f"{group}/pids.events", f"{group}/pids/pids.events").get("max", 0),
        "data": room("/data") if os.path.isdir("/data") else None,
        "tmp": room("/tmp"),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])

"""Where a secret appears in a service of a running stack."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile

from tests.support.stack import ENGINE_S, Stack, run


def mounted_files(stack: Stack, service: str) -> dict[str, bytes]:
    """Every file in a service's mounts, read through the engine."""
    found: dict[str, bytes] = {}
    for mount in stack.inspect(service)["Mounts"]:
        if mount["Destination"] == "/data":
            continue
        done = subprocess.run(
            ["docker", "cp", f"{stack.container(service)}:{mount['Destination']}", "-"],
            capture_output=True,
            timeout=ENGINE_S,
            check=True,
        )
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            for member in archive:
                if member.isfile():
                    file = archive.extractfile(member)
                    assert file is not None
                    found[f"{mount['Destination']}:{member.name}"] = file.read()
    return found


def holders(stack: Stack, service: str, secret: str) -> list[str]:
    """Where a secret appears in a service: mounts, inspect output, environment, command lines, log."""
    needle = secret.encode()
    found = [name for name, body in mounted_files(stack, service).items() if needle in body]
    if secret in json.dumps(stack.inspect(service)):
        found.append("docker inspect")
    lives = "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null"
    if secret in stack.said_inside(service, "sh", "-c", lives):
        found.append("a process's environment or arguments")
    if secret in run(["docker", "logs", stack.container(service)], timeout_s=ENGINE_S).text:
        found.append("the log")
    return found


def secret_values(text: str) -> set[str]:
    """The secret parts of a secret file: long texts; of a credential, the part after the colon."""
    try:
        content = json.loads(text)
    except ValueError:
        return {text.strip().rpartition(":")[2]}
    leaves = [content]
    found = set()
    while leaves:
        leaf = leaves.pop()
        if isinstance(leaf, dict):
            leaves += [v for key, v in leaf.items() if key not in ("access_key", "name", "secret_sha256")]
        elif isinstance(leaf, list):
            leaves += leaf
        elif isinstance(leaf, str) and len(leaf) >= 20:
            found.add(leaf)
    return found

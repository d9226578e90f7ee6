"""Inventory of an image's software, as JSON on stdout. Runs inside the image; standard library only."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

SKIPPED = {"/proc", "/sys", "/dev", "/tmp", "/run"}
GO_PROGRAMS = ("/usr/local/bin/minio",)
# See Go's package debug/buildinfo: the version follows 32 bytes after the start of this, its length first.
GO_MAGIC = b"\xff Go buildinf:"
GO_VERSION_AT = 32


def main() -> int:
    """Print the inventory."""
    jars, python = [], []
    for folder, names in walked("/"):
        for name in names:
            if name.endswith(".jar"):
                jars.append(jar(Path(folder, name)))
        if folder.endswith(".dist-info") and "METADATA" in names:
            python.append(distribution(Path(folder)))
    found = {
        "architecture": platform.machine(),
        "debian": debian(),
        "python": python,
        "jars": jars,
        "go": [
            program for path in GO_PROGRAMS if Path(path).is_file() for program in [go_program(Path(path))]
        ],
    }
    json.dump(found, sys.stdout)
    return 0


def walked(top: str) -> Iterator[tuple[str, list[str]]]:
    """Every folder below `top`, except those of SKIPPED, with its files."""
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(f for f in folders if os.path.join(folder, f) not in SKIPPED)
        yield folder, sorted(names)


def debian() -> list[dict[str, str]]:
    """The installed dpkg packages, each with the source package that it was built from."""
    form = "${Package}\t${Version}\t${Architecture}\t${source:Package}\t${source:Version}\n"
    listed = subprocess.run(
        ["/usr/bin/dpkg-query", "-W", "-f", form], capture_output=True, text=True, check=True, timeout=60
    )
    keys = ("name", "version", "architecture", "source", "source_version")
    return [dict(zip(keys, row.split("\t"))) for row in listed.stdout.splitlines()]


def distribution(folder: Path) -> dict[str, str]:
    """A Python package from its metadata."""
    metadata = importlib.metadata.PathDistribution(folder).metadata
    return {"name": metadata["Name"], "version": metadata["Version"], "path": str(folder)}


def jar(path: Path) -> dict[str, object]:
    """A jar: its checksum and the Maven artifacts that it declares."""
    held = []
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.startswith("META-INF/maven/") and name.endswith("/pom.properties"):
                    rows = archive.read(name).decode("utf-8", "replace").splitlines()
                    facts = dict(r.strip().split("=", 1) for r in rows if "=" in r and not r.startswith("#"))
                    if {"groupId", "artifactId", "version"} <= set(facts):
                        held.append({k: facts[k].strip() for k in ("groupId", "artifactId", "version")})
    except zipfile.BadZipFile:
        held = []
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"path": str(path), "sha256": digest, "maven": held}


def go_program(path: Path) -> dict[str, object]:
    """A Go program: the modules listed in its build information, and `stdlib` of the Go that built it.

    Raises:
        SystemExit: it has no such list.
    """
    data = path.read_bytes()
    first = data.find(b"\ndep\t")
    start, end = data.rfind(b"path\t", 0, max(0, first)), data.find(b"\nbuild\t", first)
    if min(first, start, end) < 0:
        raise SystemExit(f"{path} holds no list of its Go modules; build it with `go build` in module mode")
    modules = [{"name": "stdlib", "version": go_version(data)}]
    for row in data[start:end].decode("utf-8", "replace").splitlines():
        words = row.split("\t")
        if words[0] in ("mod", "dep") and len(words) > 2:
            modules.append({"name": words[1], "version": words[2]})
        elif words[0] == "=>" and len(words) > 2:
            modules[-1] = {"name": words[1], "version": words[2]}
    return {"path": str(path), "modules": modules}


def go_version(data: bytes) -> str:
    """The version of Go that built a program, such as `1.26.8`.

    Raises:
        SystemExit: the program does not name it.
    """
    at = data.find(GO_MAGIC)
    length = data[at + GO_VERSION_AT] if 0 <= at < len(data) - GO_VERSION_AT else 0
    begin = at + GO_VERSION_AT + 1
    version = data[begin : begin + length].decode("ascii", "replace").split(" ")[0]
    if not version.startswith("go1."):
        raise SystemExit("a Go program does not name the version of Go that built it; use Go 1.18 or newer")
    return version[len("go") :]


if __name__ == "__main__":
    raise SystemExit(main())

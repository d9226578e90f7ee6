"""Support bundle: logs and state of a stack in one archive, without secrets."""

from __future__ import annotations

import io
import json
import os
import platform
import subprocess
import tarfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tarn_host import shell
from tarn_host.console import StopError
from tarn_host.doctor import redact
from tarn_host.doctor.facts import Facts
from tarn_host.doctor.look import as_root, secret_mounts, secret_volumes
from tarn_host.stack import project
from tarn_host.stack.project import ROOT, Project

LINES_MAX = 2000
TEXT_BYTES_MAX = 2_000_000
REDACT_TIMEOUT_S = 120
NEEDS_VALUES = ("logs/", "inspect.json", "compose-config.yaml", "ingest-status.json")
"""Files that can hold a secret of this copy: omitted if the secrets could not be searched for by value."""


@dataclass(frozen=True)
class Cleaned:
    """The texts of a bundle with secrets removed.

    Attributes:
        by_value: whether this copy's own secrets were searched for by value.
        replaced: number of secrets removed.
        left_out: files omitted because they could not be cleaned.
        why: why the secrets could not be searched for by value; empty if they were.
    """

    texts: Mapping[str, str]
    by_value: bool
    replaced: int
    left_out: tuple[str, ...] = ()
    why: str = ""


ByValue = Callable[[Mapping[str, str]], "tuple[Mapping[str, str], int]"]


def write(here: Project, facts: Facts, result: str, path: Path) -> Cleaned:
    """Write the bundle.

    Args:
        here: the project.
        facts: what the doctor found.
        result: the doctor's own JSON.
        path: the archive to write.

    Raises:
        StopError: the file exists already, or cannot be written.
    """
    if path.exists():
        raise StopError(f"{path} is there already", "name another file, or remove that one first")
    if not path.name.endswith((".tar.gz", ".tgz")):
        raise StopError(f"{path.name}: a bundle is a .tar.gz", "give it such a name", 2)
    cleaned = clean({**gather(here, facts), "doctor.json": result}, values_of(here, facts))
    manifest = {
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "project": here.name,
        "files": sorted(cleaned.texts),
        "secrets_looked_for_by_value": cleaned.by_value,
        "replaced": cleaned.replaced,
        "left_out": cleaned.left_out,
        "why_left_out": cleaned.why,
        "still_in": "folder names, host name, image names, topic and table names, your SQL in logs",
    }
    part = path.with_name(f"{path.name}.part")
    try:
        with tarfile.open(part, "w:gz") as archive:
            for name, text in sorted(
                {**cleaned.texts, "manifest.json": json.dumps(manifest, indent=2)}.items()
            ):
                body = text.encode()
                entry = tarfile.TarInfo(f"tarn-support/{name}")
                entry.size, entry.mode, entry.mtime = len(body), 0o600, int(time.time())
                archive.addfile(entry, io.BytesIO(body))
        os.chmod(part, 0o600)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise StopError(
            f"{path} cannot be written: {error.strerror}", "name a file in a folder of yours"
        ) from None
    return cleaned


def clean(texts: Mapping[str, str], by_value: ByValue | str) -> Cleaned:
    """Remove secrets from all texts: by pattern always, by value if possible.

    Args:
        texts: name -> text.
        by_value: removes them by value; or the reason why that is impossible: then files that may hold
            such secrets are omitted.
    """
    left_out: tuple[str, ...] = ()
    why = ""
    replaced = 0
    if isinstance(by_value, str):
        why = by_value
    else:
        try:
            texts, replaced = by_value(texts)
        except StopError as error:
            why = error.what
    if why:
        left_out = tuple(sorted(name for name in texts if name.startswith(NEEDS_VALUES)))
    kept: dict[str, str] = {}
    for name, text in texts.items():
        if name not in left_out:
            kept[name], count = redact.redacted(text)
            replaced += count
    return Cleaned(texts=kept, by_value=not why, replaced=replaced, left_out=left_out, why=why)


def values_of(here: Project, facts: Facts) -> ByValue | str:
    """A function that removes this copy's secrets by value, in Tarn's own image as root; or why not."""
    if facts.engine.server is None:
        return "no engine answers"
    volumes = secret_volumes(here)
    if volumes is None:
        return "the engine does not list its volumes"
    if not volumes:
        if facts.containers or facts.config_error:
            return "no volume of secrets was found"
        return lambda texts: (texts, 0)
    mounts = secret_mounts(here, volumes)
    command = [*as_root(here, mounts), "tarn.bootstrap.redact"]

    def by_value(texts: Mapping[str, str]) -> tuple[Mapping[str, str], int]:
        try:
            done = subprocess.run(
                command,
                input=json.dumps(texts).encode(),
                capture_output=True,
                env=shell.environment(),
                timeout=REDACT_TIMEOUT_S,
                check=False,
            )
            said = json.loads(done.stdout) if done.returncode == 0 else {}
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            raise StopError(f"secrets could not be looked for: {type(error).__name__}") from None
        if said.get("texts", {}).keys() != texts.keys():
            words = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise StopError(f"secrets could not be looked for: {' '.join(words) or done.returncode}")
        return said["texts"], int(said["replaced"])

    return by_value


def gather(here: Project, facts: Facts) -> dict[str, str]:
    """Name -> text of everything that goes into the bundle, not cleaned yet."""
    mine = f"label=com.docker.compose.project={here.name}"
    compose = ["docker", "compose", "--profile", "*"]
    commands = {
        "versions.txt": ["docker", "version"],
        "compose-version.txt": ["docker", "compose", "version"],
        "engine.txt": ["docker", "info"],
        "compose-config.yaml": [*compose, "config"],
        "ps.txt": ["docker", "ps", "--all", "--no-trunc", "--filter", mine],
        "volumes.txt": ["docker", "volume", "ls", "--filter", mine],
        "networks.txt": ["docker", "network", "ls", "--filter", mine],
        "images.txt": ["docker", "image", "ls", "--no-trunc", "--filter", "reference=tarn/*"],
        "engine-disk.txt": ["docker", "system", "df"],
        "disk.txt": ["df", "-h"],
        "commit.txt": ["git", "log", "-1", "--format=%H %cI %s"],
        "changes.txt": ["git", "status", "--short"],
    }
    texts = {name: _said(here, command) for name, command in commands.items()}
    texts["machine.json"] = json.dumps(
        {"platform": platform.platform(), "python": platform.python_version(), "cpus": os.cpu_count()},
        indent=2,
    )
    files = {
        "versions.env": ROOT / "versions.env",
        "env.txt": project.ENV_FILE,
        "memory.txt": Path("/proc/meminfo"),
    }
    for log in sorted(project.LOG_DIR.glob("*.log")):
        files[f"scripts/{log.name}"] = log
    for name, path in files.items():
        if path.is_file():
            texts[name] = _end(path.read_bytes().decode(errors="replace"))
    names = _said(here, ["docker", "ps", "--all", "--format", "{{.Names}}", "--filter", mine]).split()
    if facts.engine.server and names:
        texts["inspect.json"] = _said(here, ["docker", "inspect", *names])
        running = [one.name for one in facts.containers if one.state == "running"]
        if running:
            texts["stats.txt"] = _said(here, ["docker", "stats", "--no-stream", *running])
        for name in names:
            texts[f"logs/{name}.log"] = _said(
                here, ["docker", "logs", "--timestamps", "--tail", str(LINES_MAX), name]
            )
    return texts


def _said(here: Project, command: list[str]) -> str:
    done = shell.capture(command, timeout_s=60, env=here.env(), cwd=ROOT)
    note = "" if done.ok else f"\n(exit code {done.code})\n"
    return _end(done.out + done.err + note)


def _end(text: str) -> str:
    """The end of the text, from a whole line on: the rest of a secret that is cut would not be recognised."""
    return text if len(text) <= TEXT_BYTES_MAX else f"(cut)\n{text[-TEXT_BYTES_MAX:].partition(chr(10))[2]}"

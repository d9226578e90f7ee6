"""scripts/tarn fsck, backup and restore: stream files of the host through a one-shot container.

No folder of the host is mounted: the container's user has no rights on the host, and needs none.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tarn_host import shell
from tarn_host.console import StopError, line
from tarn_host.stack import lifecycle, project, run_once
from tarn_host.stack.lock import only_one
from tarn_host.stack.project import ROOT, Project

SERVICE_OF = {"fsck": "keeper", "backup": "keeper", "restore": "bootstrap"}
END_NAME = b"tarn-backup-end.json"
BLOCK = 512
CHUNK_BYTES = 1 << 20
TAIL_BYTES_MAX = 64 << 20
START_TIMEOUT_S = 180
PREPARE_TIMEOUT_S = 180
MIB = 1 << 20
CLEAN, DAMAGED = 0, 1
LOG = project.LOG_DIR / "restore.log"
ALONE = ("minio", "init", "bootstrap", "keeper")


def service_of(words: Sequence[str]) -> str:
    """The service that runs a command of scripts/tarn. Pure."""
    return "cli" if "--help" in words else SERVICE_OF.get("".join(_plain(words)[:1]), "cli")


def on_host(words: Sequence[str]) -> Callable[[Project, Sequence[str]], int] | None:
    """The host-side function of a command that a container alone cannot run; None for all others. Pure."""
    if "--help" in words:
        return None
    return {"backup": backup, "restore": restore}.get("".join(_plain(words)[:1]))


def _plain(words: Sequence[str]) -> list[str]:
    return [word for word in words if word != "--debug"]


def backup(here: Project, words: Sequence[str]) -> int:
    """Write a backup to a file; the file appears under its name only once it is complete.

    Raises:
        StopError: the backup failed, and no partial file is left behind; or another file has its name by now.
    """
    target = _file(words, "backup")
    if target is None:
        return run_once.run(here, "keeper", ["backup"])
    if target.exists():
        raise StopError(f"{target} exists, and a backup overwrites nothing", "choose another name")
    if not target.parent.is_dir():
        raise StopError(f"the folder {target.parent} does not exist", "make it, or choose another")
    # A name of its own: two backups at once would write into one file.
    part = target.with_name(f"{target.name}.{secrets.token_hex(4)}.part")
    begin = time.monotonic()
    try:
        code, written = _take(here, part)
        end = closing_record(part)
        if end is None:
            raise StopError(
                f"the backup was cut short after {written / MIB:.1f} MiB (exit code {code}), and is removed",
                "see what it said above; the lake was not touched. Take it again",
                code=code or 1,
            )
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _name(part, target)
    seconds = time.monotonic() - begin
    line(f"{target}: {end['objects']} objects, {written / MIB:.1f} MiB, {seconds:.1f} s in all")
    return code


def _name(part: Path, target: Path) -> None:
    """Give a whole backup its name, and never that of a file that appeared since.

    Raises:
        StopError: such a file is there, or the name cannot be given; the backup keeps the name of its part.
    """
    try:
        if not _linked(part, target):
            # An empty file of this run holds the name until the backup takes its place.
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            try:
                part.replace(target)
            except OSError:
                target.unlink()
                raise
    except FileExistsError:
        raise StopError(
            f"{target} appeared while the backup was taken, and stays as it is",
            f"the backup is whole: it is {part}",
        ) from None
    except OSError as error:
        raise StopError(
            f"the backup could not get its name {target}: {error.strerror or error}",
            f"it is whole: it is {part}",
        ) from None


def _linked(part: Path, target: Path) -> bool:
    """Whether the file has its second name now, and only that; some file systems have no hard links.

    Raises:
        FileExistsError: another file has that name.
    """
    try:
        os.link(part, target)
    except FileExistsError:
        raise
    except OSError:
        return False
    part.unlink(missing_ok=True)
    return True


def _take(here: Project, part: Path) -> tuple[int, int]:
    """Stream a backup into a file; the container's exit code and the number of bytes written."""
    written = 0
    taking = run_once.started(here, "keeper", ["backup"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    with taking as process:
        assert process.stdout is not None
        try:
            with open(part, "xb", opener=project.private) as file:
                while True:
                    chunk = process.stdout.read(CHUNK_BYTES)
                    if not chunk:
                        break
                    file.write(chunk)
                    written += len(chunk)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StopError(
                f"could not write {part} after {written / MIB:.1f} MiB: {error.strerror or error}; it is "
                "removed",
                "free some space or name a file on another disk; the lake was not touched",
            ) from None
        finally:
            process.stdout.close()
    return process.returncode, written


def restore(here: Project, words: Sequence[str]) -> int:
    """Start only the store, restore a backup into it and run fsck on the result; holds the project's lock.

    Raises:
        StopError: the restore was refused or failed.
    """
    with only_one(here):
        return _restore(here, words)


def _restore(here: Project, words: Sequence[str]) -> int:
    source = _file(words, "restore")
    if source is not None:
        if not source.is_file():
            raise StopError(f"there is no file {source}", "name a backup, as scripts/tarn backup made it")
        if closing_record(source) is None:
            raise StopError(
                f"{source} ({source.stat().st_size} bytes) is cut short, or no backup: its closing record is "
                "not at its end. Nothing was changed",
                "use a whole copy of it, or take another backup",
                code=2,
            )
    running = [s.name for s in lifecycle.services(here) if s.state == "running" and s.name not in ALONE]
    if running:
        raise StopError(
            f"this stack runs ({', '.join(running)}), and a restore needs an empty lake that nobody uses. "
            "Nothing was changed",
            "for a fresh lake: scripts/down --purge (it removes the tables, log and secrets of this clone), "
            "then this again; to keep this lake, restore in another clone",
        )
    begin = time.monotonic()
    line("starting the store alone")
    up = ["docker", "compose", "up", "--detach", "--no-build", "--pull", "never"]
    up += ["--wait", "--wait-timeout", str(START_TIMEOUT_S), "minio"]
    _prepare(here, up, "starting the store", START_TIMEOUT_S + 60)
    once = ["docker", "compose", "run", "--rm", "--no-deps", "-T", "bootstrap"]
    _prepare(here, once, "preparing the store", PREPARE_TIMEOUT_S)
    options = ["--entrypoint", "tarn"]
    if source is None:
        code = run_once.run(here, "bootstrap", ["restore"], options=options)
    else:
        with source.open("rb") as file:
            code = run_once.run(here, "bootstrap", ["restore"], options=options, stdin=file)
    if code != 0:
        return code
    line(f"restored in {time.monotonic() - begin:.1f} s; looking at the copy")
    code = run_once.run(here, "keeper", ["fsck"], stdin=subprocess.DEVNULL)
    line(f"done in {time.monotonic() - begin:.1f} s; scripts/up starts everything else")
    return code


def _prepare(here: Project, command: list[str], what: str, timeout_s: float) -> None:
    shell.logged(
        command,
        LOG,
        timeout_s=timeout_s,
        what=what,
        fix="see docker compose logs minio bootstrap",
        env=here.env(),
        cwd=ROOT,
    )


def _file(words: Sequence[str], command: str) -> Path | None:
    """The file named on the command line; None for `-`, the standard streams."""
    plain = _plain(words)[1:]
    if len(plain) != 1 or (plain[0].startswith("-") and plain[0] != "-"):
        raise StopError(
            f"scripts/tarn {command} takes one file, not {' '.join(plain) or 'none'}",
            f"scripts/tarn {command} lake.tar, or - for {'stdout' if command == 'backup' else 'stdin'}",
            code=2,
        )
    if plain[0] == "-":
        stream = sys.stdout if command == "backup" else sys.stdin
        if stream is not None and stream.isatty():
            raise StopError("a backup is no text for a terminal", "name a file, or use a pipe", code=2)
        return None
    return Path(plain[0]).absolute()


def closing_record(path: Path) -> dict[str, Any] | None:
    """The closing record at the very end of a backup; None if there is none, so the backup is truncated."""
    size = path.stat().st_size
    length = 64 << 10
    with path.open("rb") as file:
        while True:
            start = max(0, size - length)
            file.seek(start)
            tail = file.read(length)
            at = tail.rfind(END_NAME.ljust(100, b"\0"))
            if at >= 0 or start == 0 or length >= TAIL_BYTES_MAX:
                break
            length *= 16
    if at < 0:
        return None
    body = tail[at + BLOCK :]
    text, newline, rest = body.partition(b"\n")
    padding = -(len(text) + 1) % BLOCK
    if not newline or rest != bytes(padding + 2 * BLOCK):
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "objects" in found else None

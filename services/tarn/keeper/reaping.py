"""`python -m tarn.keeper.reaping`: the service that runs the reaper, pass after pass; `--once` makes one.

`--folder` makes one pass over a lake in a folder, for which no service runs.

Exit codes: `tarn.core.exit_codes`.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import structlog
from pydantic import Field

from tarn.adapters import manifest_audit
from tarn.adapters.bulk import S3Bulk
from tarn.adapters.lean_process import without_pandas
from tarn.adapters.logging import configure
from tarn.adapters.service_settings import StoreSettings
from tarn.adapters.store import FileStore
from tarn.core.errors import ForbiddenError, InvalidSettingError, TarnError
from tarn.core.exit_codes import OK, exit_code
from tarn.core.naming import POINTERS_PREFIX
from tarn.core.object_store import GET_BYTES_MAX, Listed, ReapedStore, Stored
from tarn.core.reap import WAREHOUSE_PREFIX
from tarn.keeper.reaper import RETIRED_MAX, Graces, Pass, Reaper

TRIED_PATH = Path("/tmp/reaper-tried")  # noqa: S108 - the container's own tmpfs; read by the health check
ALIVE_PATH = Path("/tmp/reaper-alive")  # noqa: S108
ALIVE_EVERY_S = 1.0
WAIT_S_MAX = 60.0
TELL_EVERY_S = 300.0
CGROUP = Path("/sys/fs/cgroup")
OWN_BYTES = 128 * 1024 * 1024
"""Memory that the process has beside the object that it reads."""
READ_BYTES_MIN = 8 * 1024 * 1024

log = structlog.get_logger()


class Settings(StoreSettings):
    """Settings of the reaper; see docs/reference.md."""

    reaper_grace_s: int = Field(default=900, ge=60, le=30 * 86_400)
    reaper_metadata_grace_s: int = Field(default=120, ge=30, le=30 * 86_400)
    reaper_every_s: int = Field(default=15, ge=1, le=3_600)


class Alive:
    """A store whose use shows that the process is alive: files are touched, each at most once a second.

    Args:
        inner: underlying store.
        tried: file touched before each request.
        alive: file touched after each response.
    """

    def __init__(self, inner: ReapedStore, tried: Path = TRIED_PATH, alive: Path = ALIVE_PATH) -> None:
        self._inner = inner
        self._tried = tried
        self._alive = alive
        self._touched_s: dict[Path, float] = {}

    def _touch(self, path: Path) -> None:
        now_s = time.monotonic()
        if now_s - self._touched_s.get(path, -ALIVE_EVERY_S) >= ALIVE_EVERY_S:
            self._touched_s[path] = now_s
            path.touch()

    def get(self, key: str, *, known: Stored | None = None) -> Stored | None:
        """See `ObjectStore.get`."""
        self._touch(self._tried)
        found = self._inner.get(key, known=known)
        self._touch(self._alive)
        return found

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> str:
        """See `ObjectStore.put`."""
        return self._inner.put(key, data, if_absent=if_absent, if_match=if_match)

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        self._touch(self._tried)
        self._inner.delete(key)
        self._touch(self._alive)

    def delete_many(self, keys: Sequence[str]) -> None:
        """See `ReapedStore.delete_many`."""
        self._touch(self._tried)
        self._inner.delete_many(keys)
        self._touch(self._alive)

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[Listed]:
        """See `ObjectStore.list`; yields entries as they arrive, in the store's order."""
        self._touch(self._tried)
        for entry in self._inner.list(prefix, after=after):
            self._touch(self._alive)
            yield entry


def run(reaper: Reaper, *, every_s: float, stop: threading.Event) -> None:
    """Run passes until asked to stop; a failed pass is retried with increasing pauses.

    Args:
        reaper: the reaper.
        every_s: interval of the passes, in seconds.
        stop: ends the loop when set.

    Raises:
        ForbiddenError: the reaper's user lacks permission, which waiting does not help.
    """
    told_s = time.monotonic()
    total = failures = 0
    while not stop.is_set():
        wait_s = every_s
        try:
            done = reaper.run_once()
        except ForbiddenError:
            raise
        except TarnError as error:
            failures += 1
            wait_s = min(WAIT_S_MAX, every_s * 2 ** min(failures, 6))
            log.warning("pass did not end; it goes on later", reason=error.message, wait_s=wait_s)
        else:
            failures = 0
            total += done.deleted
            if done.metadata >= RETIRED_MAX:
                wait_s = 0.0
            for table, reason in done.failed.items():
                log.warning("nothing is deleted of a table", table=table, reason=reason)
            if time.monotonic() - told_s >= TELL_EVERY_S:
                told_s = time.monotonic()
                log.info("deleted what nothing reaches", objects=total, tables=done.tables)
                total = 0
        stop.wait(wait_s)


def read_bytes_max(cgroup: Path = CGROUP) -> int:
    """Longest object that is read whole, by the memory limit of this process: reading takes twice its size.

    A longer one is damage of its table alone. One that the memory is too small for would end the process
    again and again, so that nothing of any table is deleted.

    Args:
        cgroup: folder of the control groups, version 2 or 1.
    """
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            limit = (cgroup / name).read_text().strip()
        except OSError:
            continue
        if not limit.isdecimal():  # "max"
            return GET_BYTES_MAX
        return min(GET_BYTES_MAX, max(READ_BYTES_MIN, (int(limit) - OWN_BYTES) // 2))
    return GET_BYTES_MAX


def made(settings: Settings) -> Reaper:
    """The reaper of the store in the settings.

    Raises:
        InvalidSettingError: a secret file cannot be read.
    """
    most = read_bytes_max()
    store = S3Bulk(**settings.store_access(), get_bytes_max=most)
    graces = Graces(
        metadata_ms=settings.reaper_metadata_grace_s * 1_000, files_ms=settings.reaper_grace_s * 1_000
    )
    return Reaper(Alive(store), manifest_audit, bucket=settings.bucket, graces=graces, json_bytes_max=most)


class _Folder(FileStore):
    """The store of a lake in a folder: of a table's files it lists the names, and reads none for that."""

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[Listed]:
        """See `ObjectStore.list`; entity tags are those of the catalog's and the reaper's own objects."""
        if not prefix.startswith(WAREHOUSE_PREFIX):
            yield from super().list(prefix, after=after)
            return
        for key in self.keys(prefix):
            if after is None or key > after:
                try:
                    found = (self.root / key).stat()
                except FileNotFoundError:
                    continue  # deleted meanwhile
                modified_ms = int(found.st_mtime * 1_000)
                yield Listed(key=key, etag="", size_bytes=found.st_size, modified_ms=modified_ms)


def of_folder(folder: Path) -> Reaper:
    """The reaper of a lake in a folder of this machine, with the usual grace periods.

    It does not measure tables: that reads whole files here.

    Raises:
        InvalidSettingError: there is no lake.
    """
    if not (folder / POINTERS_PREFIX).is_dir():
        raise InvalidSettingError(f"there is no lake in {folder}, or no table was made in it yet")
    store = _Folder(folder)
    return Reaper(store, manifest_audit, bucket=f"file://{store.root}", measures=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the service and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tarn.keeper.reaping", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--once", action="store_true", help="make one pass, print what it did, and end")
    parser.add_argument("--folder", type=Path, help="make one pass over the lake in this folder instead")
    options = parser.parse_args(argv)
    try:
        if options.folder is not None:
            configure(service="reaper")
            print(_text(of_folder(options.folder).run_once()))  # noqa: T201
            return OK
        settings = Settings.read()
        configure(settings.log_level, service="reaper")
        reaper = made(settings)
        if options.once:
            print(_text(reaper.run_once()))  # noqa: T201
            return OK
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        log.info("reaper runs", grace_s=settings.reaper_grace_s, every_s=settings.reaper_every_s)
        run(reaper, every_s=settings.reaper_every_s, stop=stop)
    except TarnError as error:
        configure(service="reaper")
        log.error("reaper cannot go on", error=type(error).__name__, reason=error.message)
        return exit_code(error)
    return OK


def _text(done: Pass) -> str:
    return json.dumps({**asdict(done), "deleted": done.deleted})


if __name__ == "__main__":
    without_pandas()
    sys.exit(main())

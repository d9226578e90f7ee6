"""The secret volumes on disk: read all of them, write files atomically."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tarn.core.credentials import SECRET_CHARS_MAX, UIDS, SecretFile, files_of
from tarn.core.errors import InvalidError, UnavailableError

FILE_MODE = 0o400
FOLDER_MODE = 0o500
TEMPORARY_SUFFIX = ".tarn-tmp"

Own = Callable[[int, int, int], None]
Checkpoint = Callable[[str], None]


def _nothing(_: str) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretVolumes:
    """All consumers' volumes below one folder, `root/<consumer>`.

    Attributes:
        root: the folder.
        own: changes the owner of an open file or folder to (uid, gid); `os.fchown` except in tests.
        checkpoint: called with the name of every step just before it; a test may raise there.
    """

    root: Path
    own: Own = os.fchown
    checkpoint: Checkpoint = _nothing

    def read(self) -> dict[str, dict[str, str]]:
        """Return {consumer: {file name: content}} of every existing volume.

        Only the files that a consumer should have are read.

        Raises:
            InvalidError: a file is not a regular file, is too long or not UTF-8.
            UnavailableError: a file cannot be read.
        """
        found: dict[str, dict[str, str]] = {}
        for consumer in UIDS:
            if (self.root / consumer).is_dir():
                names = files_of(consumer)
                texts = {name: self._read_file(self.root / consumer / name) for name in names}
                found[consumer] = {name: text for name, text in texts.items() if text is not None}
        return found

    def write(self, file: SecretFile) -> None:
        """Write one file atomically: complete under its final name, owned by its consumer, synced to disk.

        Raises:
            UnavailableError: the volume cannot be written.
        """
        folder = self.root / file.consumer
        final, temporary = folder / file.name, folder / f"{file.name}{TEMPORARY_SUFFIX}"
        uid = UIDS[file.consumer]
        try:
            self.checkpoint(f"create {temporary}")
            temporary.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(temporary, flags, FILE_MODE), "wb") as stream:
                self.checkpoint(f"fill {temporary}")
                stream.write(file.content.encode())
                stream.flush()
                self.own(stream.fileno(), uid, uid)
                os.fchmod(stream.fileno(), FILE_MODE)
                self.checkpoint(f"sync {temporary}")
                os.fsync(stream.fileno())
            self.checkpoint(f"rename {temporary}")
            temporary.rename(final)
            self.checkpoint(f"sync folder {folder}")
            _sync_folder(folder)
        except OSError as error:
            raise _unwritable(final, error) from error

    def remove(self, consumer: str, name: str) -> None:
        """Remove one file, if it exists.

        Raises:
            UnavailableError: the volume cannot be changed.
        """
        folder = self.root / consumer
        try:
            self.checkpoint(f"remove {folder / name}")
            (folder / name).unlink(missing_ok=True)
            _sync_folder(folder)
        except OSError as error:
            raise _unwritable(folder / name, error) from error

    def tidy(self) -> tuple[str, ...]:
        """Correct owner and mode of every volume and remove temporary files of a crash; returns the changes.

        Raises:
            UnavailableError: a volume cannot be changed.
        """
        changed: list[str] = []
        for consumer, uid in UIDS.items():
            folder = self.root / consumer
            try:
                for temporary in sorted(folder.glob(f"*{TEMPORARY_SUFFIX}")):
                    temporary.unlink()
                    changed.append(f"removed {consumer}/{temporary.name}")
                for name in files_of(consumer):
                    if (folder / name).exists() and self._correct(folder / name, uid, FILE_MODE):
                        changed.append(f"owner and mode of {consumer}/{name}")
                if self._correct(folder, uid, FOLDER_MODE):
                    changed.append(f"owner and mode of {consumer}")
            except OSError as error:
                raise _unwritable(folder, error) from error
        return tuple(changed)

    def _correct(self, path: Path, uid: int, mode: int) -> bool:
        """Set owner and mode of a file or folder; returns whether either was different."""
        found = path.lstat()
        if (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (uid, uid, mode):
            return False
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            self.own(descriptor, uid, uid)
            os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)
        return True

    def _read_file(self, path: Path) -> str | None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UnavailableError(
                f"could not read {path}: {error.strerror}; init must run as root with CHOWN, FOWNER and "
                "DAC_OVERRIDE, as docker-compose.yml gives it",
                path=str(path),
            ) from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise InvalidError(f"{path} is not a regular file; remove it", path=str(path))
        with os.fdopen(descriptor, "rb") as stream:
            content = stream.read(SECRET_CHARS_MAX + 1)
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise InvalidError(
                f"secret file {path} is not UTF-8; "
                f"remove the volume secrets-{path.parent.name} and start again",
                path=str(path),
            ) from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unwritable(path: Path, error: OSError) -> UnavailableError:
    return UnavailableError(
        f"could not write {path}: {error.strerror}; check free disk space and that init has CHOWN, FOWNER "
        "and DAC_OVERRIDE, then start again: what is written so far is kept",
        path=str(path),
    )

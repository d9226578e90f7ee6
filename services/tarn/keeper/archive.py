"""Format of a backup: one tar, written and read as a stream.

    tarn-backup.json            first record: format, id, bucket, warehouse, time
    objects/<key> …             table files first, then the content of the catalog's prefix
    manifest/000001.jsonl …     after every thousand objects: key, size and SHA-256 of each
    tarn-backup-end.json        closing record: totals; a backup without it is truncated

Any tar tool lists and unpacks it. It is not compressed, as nearly all of its content already is.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import IO, Any, TypeVar

import orjson

from tarn.core.errors import InvalidError, TarnError

FORMAT = 1
BEGIN_NAME = "tarn-backup.json"
END_NAME = "tarn-backup-end.json"
OBJECTS = "objects/"
MANIFESTS = "manifest/"
MANIFEST_EVERY = 1_000
BLOCK = 512
CHUNK_BYTES = 1024 * 1024
RECORD_BYTES_MAX = 64 * 1024 * 1024
"""Longest record; releases before this one read no longer closing record either."""
END_BYTES_MAX = 2 * RECORD_BYTES_MAX
"""Longest closing record that is read; releases before this one wrote it without a limit."""
MISSING_BYTES_MAX = 4 * 1024 * 1024
"""Length of the missing locations that a closing record names; what is beyond is counted."""
STREAMS_BYTES_MAX = 32 * 1024 * 1024
"""Length of the offsets in a closing record."""
MORE = "and {} more"

T = TypeVar("T")


class BackupError(InvalidError):
    """The backup is unusable: truncated, damaged, or not a Tarn backup."""


class ChangedError(TarnError):
    """The size of an object changed while it was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """The first record.

    Attributes:
        id: id of the backup.
        bucket: bucket of the locations in it.
        warehouse: name of the warehouse.
        at: start time, UTC, ISO 8601.
        version: Tarn version that wrote it.
        format: version of the archive format.
    """

    id: str
    bucket: str
    warehouse: str
    at: str
    version: str
    format: int = FORMAT


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The closing record.

    Attributes:
        id: id of the backup.
        objects: number of objects.
        bytes: total size of the objects.
        tables: number of tables.
        sha256: hash over all manifests.
        missing: locations that the lake references but lacks; `MORE` at the end counts the others.
        streams: offsets of every ingested stream, as far as there is room.
    """

    id: str
    objects: int
    bytes: int
    tables: int
    sha256: str
    missing: list[str] = field(default_factory=list)
    streams: list[dict[str, Any]] = field(default_factory=list)

    @property
    def missing_count(self) -> int:
        """Number of locations that the lake references but lacks, those that are not named included."""
        last = self.missing[-1] if self.missing else ""
        more = re.fullmatch(MORE.format(r"(\d{1,18})"), last)
        return len(self.missing) if more is None else len(self.missing) - 1 + int(more[1])


class Writer:
    """Writes an archive to a stream that need not be seekable.

    Args:
        out: output stream.
        begin: the first record.
    """

    def __init__(self, out: IO[bytes], begin: Begin) -> None:
        self._out = out
        self._begin = begin
        self._lines: list[bytes] = []
        self._manifests = 0
        self._digest = hashlib.sha256()
        self.objects = 0
        self.bytes = 0
        self.written = 0
        self._record(BEGIN_NAME, _dump(asdict(begin)))

    def add(self, key: str, size: int, parts: Iterator[bytes]) -> None:
        """Write an object.

        Args:
            key: object key.
            size: size in bytes.
            parts: content.

        Raises:
            ChangedError: the parts do not add up to the size; the archive is unusable.
            OSError: the stream cannot be written.
        """
        self._header(OBJECTS + key, size)
        digest = hashlib.sha256()
        seen = 0
        for part in parts:
            digest.update(part)
            seen += len(part)
            self._write(part)
        if seen != size:
            raise ChangedError(f"{key} has {seen} bytes and had {size} a moment ago; try the backup again")
        self._pad(size)
        self._lines.append(_dump({"key": key, "bytes": size, "sha256": digest.hexdigest()}))
        self.objects += 1
        self.bytes += size
        if len(self._lines) >= MANIFEST_EVERY:
            self._manifest()

    def close(self, *, tables: int, missing: list[str], streams: list[dict[str, Any]]) -> End:
        """Write the last manifest and the closing record, which is returned; the stream stays open.

        Of locations and streams that are too many for a record that can be read, it has the shorter ones.

        Args:
            tables: number of tables.
            missing: locations that the lake references but lacks.
            streams: offsets of every ingested stream.
        """
        if self._lines:
            self._manifest()
        named = _fitting(missing, MISSING_BYTES_MAX)
        if len(named) < len(missing):
            named.append(MORE.format(len(missing) - len(named)))
        end = End(
            id=self._begin.id,
            objects=self.objects,
            bytes=self.bytes,
            tables=tables,
            sha256=self._digest.hexdigest(),
            missing=named,
            streams=_fitting(streams, STREAMS_BYTES_MAX),
        )
        self._record(END_NAME, _dump(asdict(end)))
        self._write(bytes(2 * BLOCK))
        self._out.flush()
        return end

    def _manifest(self) -> None:
        self._manifests += 1
        data = b"".join(self._lines)
        self._lines.clear()
        self._digest.update(data)
        self._record(f"{MANIFESTS}{self._manifests:06}.jsonl", data)

    def _record(self, name: str, data: bytes) -> None:
        self._header(name, len(data))
        self._write(data)
        self._pad(len(data))

    def _header(self, name: str, size: int) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode = size, 0o600
        self._write(info.tobuf(format=tarfile.PAX_FORMAT))

    def _pad(self, size: int) -> None:
        self._write(bytes(-size % BLOCK))

    def _write(self, data: bytes) -> None:
        self._out.write(data)
        self.written += len(data)


Sink = Callable[[str, int, Iterator[bytes]], None]
"""Receives an object: key, size in bytes, parts. It must read all parts."""


def read(source: IO[bytes], *, on_begin: Callable[[Begin], None], on_object: Sink) -> End:
    """Read an archive, pass each object to a sink, and return the closing record.

    Objects are verified only once the closing record is read: until then a sink must not put them to use.

    Args:
        source: input stream.
        on_begin: called with the first record; may raise.
        on_object: called with each object.

    Raises:
        BackupError: the stream is not a backup, is truncated, or does not match its manifests.
    """
    state = _Reading()
    try:
        with tarfile.open(fileobj=source, mode="r|", bufsize=CHUNK_BYTES) as tar:
            for member in tar:
                # A TarFile keeps all members in memory, which is too much for a backup.
                tar.members = []  # type: ignore[attr-defined]
                end = state.take(tar, member, on_begin, on_object)
                if end is not None:
                    return end
    except (tarfile.TarError, EOFError) as error:
        raise state.cut_short(str(error)) from error
    raise state.cut_short("it ends")


class _Reading:
    """Progress of reading an archive."""

    def __init__(self) -> None:
        self.begin: Begin | None = None
        self.last = ""
        self.objects = 0
        self.bytes = 0
        self._seen: list[bytes] = []
        self._digest = hashlib.sha256()

    def take(
        self,
        tar: tarfile.TarFile,
        member: tarfile.TarInfo,
        on_begin: Callable[[Begin], None],
        on_object: Sink,
    ) -> End | None:
        name = member.name
        if self.begin is None:
            if name != BEGIN_NAME:
                raise BackupError(f"this is no backup of Tarn: it begins with {name[:100]!r}")
            self.begin = _begin(self._whole(tar, member))
            on_begin(self.begin)
        elif name.startswith(OBJECTS):
            self._object(tar, member, name.removeprefix(OBJECTS), on_object)
        elif name.startswith(MANIFESTS):
            self._manifest(self._whole(tar, member), name)
        elif name == END_NAME:
            return self._end(self._whole(tar, member, bytes_max=END_BYTES_MAX))
        else:
            raise BackupError(f"the backup holds {name[:100]!r}, which this version of Tarn does not know")
        self.last = name
        return None

    def cut_short(self, why: str) -> BackupError:
        if self.begin is None:
            return BackupError(f"this is no backup of Tarn: {why or 'it is empty'}")
        return BackupError(
            f"the backup {self.begin.id} of {self.begin.at} is cut short: {self.objects} objects and "
            f"{self.bytes} bytes, then it ends after {self.last[-120:]!r} without its closing record. "
            "Take another one",
            objects=self.objects,
            bytes=self.bytes,
        )

    def _object(self, tar: tarfile.TarFile, member: tarfile.TarInfo, key: str, sink: Sink) -> None:
        digest = hashlib.sha256()
        seen = 0

        def parts() -> Iterator[bytes]:
            nonlocal seen
            file = tar.extractfile(member)
            while file is not None and seen < member.size:
                part = file.read(min(CHUNK_BYTES, member.size - seen))
                if not part:
                    raise self.cut_short(f"in {key}")
                digest.update(part)
                seen += len(part)
                yield part

        sink(key, member.size, parts())
        if seen != member.size:
            raise AssertionError(f"the sink left {member.size - seen} bytes of {key} unread")
        self._seen.append(_dump({"key": key, "bytes": member.size, "sha256": digest.hexdigest()}))
        self.objects += 1
        self.bytes += member.size

    def _manifest(self, data: bytes, name: str) -> None:
        found = b"".join(self._seen)
        if found != data:
            stated = data.splitlines(keepends=True)
            odd = next(
                (n for n, (a, b) in enumerate(zip(self._seen, stated, strict=False)) if a != b),
                min(len(self._seen), len(stated)),
            )
            here = self._seen[odd].decode().strip() if odd < len(self._seen) else "nothing"
            there = stated[odd].decode("utf-8", "replace").strip() if odd < len(stated) else "nothing"
            raise BackupError(
                f"the backup is damaged: {name} states {there[:300]}, and it holds {here[:300]}; "
                "use another copy of the file, or take another backup"
            )
        self._digest.update(data)
        self._seen.clear()

    def _end(self, data: bytes) -> End:
        try:
            end = End(**orjson.loads(data))
        except (orjson.JSONDecodeError, TypeError) as error:
            raise BackupError(f"the closing record of the backup cannot be read: {error}") from error
        found = (self.objects, self.bytes, self._digest.hexdigest())
        if self._seen or found != (end.objects, end.bytes, end.sha256):
            raise BackupError(
                f"the backup is damaged: its closing record states {end.objects} objects and {end.bytes} "
                f"bytes ({end.sha256[:12]}), it holds {self.objects} and {self.bytes} ({found[2][:12]})"
            )
        return end

    def _whole(
        self, tar: tarfile.TarFile, member: tarfile.TarInfo, *, bytes_max: int = RECORD_BYTES_MAX
    ) -> bytes:
        if member.size > bytes_max:
            raise BackupError(f"the backup is damaged: its record {member.name} has {member.size} bytes")
        file = tar.extractfile(member)
        data = file.read() if file is not None else b""
        if len(data) != member.size:
            raise self.cut_short(f"in {member.name}")
        return data


def _begin(data: bytes) -> Begin:
    try:
        value = orjson.loads(data)
        if value["format"] != FORMAT:
            raise BackupError(
                f"the backup has format {value['format']}, this version of Tarn knows {FORMAT}: upgrade Tarn"
            )
        return Begin(**value)
    except (orjson.JSONDecodeError, TypeError, KeyError) as error:
        raise BackupError(f"the first record of the backup cannot be read: {error!r}") from error


def _fitting(items: Sequence[T], bytes_max: int) -> list[T]:
    """The items in their order; if their JSON is longer than that, only the shorter ones."""
    sizes = [len(orjson.dumps(item)) + 1 for item in items]
    if sum(sizes) <= bytes_max:
        return list(items)
    kept: set[int] = set()
    for at in sorted(range(len(items)), key=sizes.__getitem__):
        bytes_max -= sizes[at]
        if bytes_max < 0:
            break
        kept.add(at)
    return [item for at, item in enumerate(items) if at in kept]


def _dump(value: dict[str, Any]) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS) + b"\n"

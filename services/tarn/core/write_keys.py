"""Idempotency keys of writes over HTTP: what a table remembers of them, and for how long. Pure.

A commit with keys writes an object, the index, before it, and names it in its snapshot summary; commits
without keys of the same stream carry the name forward. An index has the newest keys itself and names
segments, immutable objects with older ones. So what is written per commit is bounded, and a new
gateway reads one index and the segments of the window.

A commit with keys holds only on the index that it was judged by (`KeyEntry`), as a range of offsets does only
on the offsets: another gateway's keys in between make it plan again, and find them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from tarn.core import versioned_json
from tarn.core.errors import CorruptStateError
from tarn.core.rejected_rows import Runs, from_gaps, to_gaps

JSON = "application/json"
FORMAT = 1
OBJECT_FORMAT = 2
"""Format of the objects; those of format 1 do not say which rows were rejected."""
SUMMARY_PREFIX = "tarn.write-keys."
WINDOW_S = 900
"""How long a key is remembered at least, in seconds, after the commit of its rows."""
KEYS_MAX = 200_000
"""Keys of a table in one window; a write with a further one has to wait."""
INLINE_MAX = 500
"""Keys that an index has itself; more become a segment."""
KEY_CHARS_MAX = 200
FILE_PREFIX = "write-keys-"
"""Beginning of the names of the objects, in the table's folder `metadata`."""
NEEDED_MS = 2 * WINDOW_S * 1_000
"""Age from which on nobody reads an object: a gateway reads those of a window, by its own clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedWrite:
    """A write that a client may repeat under its key.

    Attributes:
        key: fingerprint of principal and key.
        digest: fingerprint of what was sent.
    """

    key: str
    digest: str

    @staticmethod
    def of(principal: str, key: str, body: bytes, *, media: str = JSON) -> KeyedWrite:
        """The write of a principal under a key.

        Args:
            principal: id of the principal.
            key: the key.
            body: what was sent.
            media: its media type. The same bytes are other rows as another one.
        """
        named = hashlib.sha256(b"\0".join((principal.encode(), key.encode("utf-8", "surrogateescape"))))
        sent = hashlib.sha256(body)
        if media != JSON:
            sent.update(b"\0" + media.encode())  # no JSON has a NUL
        return KeyedWrite(key=named.hexdigest()[:32], digest=sent.hexdigest()[:16])


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyEntry:
    """What a snapshot summary says about keys.

    Attributes:
        path: location of the index.
        at_ms: time of the index, in milliseconds since the epoch.
    """

    path: str
    at_ms: int

    def to_json(self) -> str:
        """Compact JSON, as stored in the summary."""
        return orjson.dumps({"v": FORMAT, "path": self.path, "at-ms": self.at_ms}).decode()

    @staticmethod
    def from_json(text: str) -> KeyEntry:
        """Parse the result of `to_json`.

        Raises:
            CorruptStateError: the text is not of this form.
        """
        try:
            value = versioned_json.read(text, FORMAT)
            return KeyEntry(path=str(value["path"]), at_ms=int(value["at-ms"]))
        except (ValueError, KeyError, TypeError) as e:
            raise CorruptStateError(
                f"the keys of repeated writes in the snapshot summary cannot be read ({e!r}): "
                f"{text[:200]!r}; roll the table back to a snapshot with whole ones",
                value=text[:200],
            ) from e


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """A key of the past.

    Attributes:
        digest: fingerprint of what was sent under it.
        at_ms: when its rows were about to be committed, in milliseconds since the epoch.
        rejected: the rows of it that the table did not take, by index; None if that is not known any more.
    """

    digest: str
    at_ms: int
    rejected: Runs | None = ()

    def to_list(self, key: str) -> list[object]:
        """The key as an object has it."""
        more = [None] if self.rejected is None else [to_gaps(self.rejected)] if self.rejected else []
        return [key, self.digest, self.at_ms, *more]

    @staticmethod
    def of_list(digest: object, at_ms: int, *more: Any, known: bool) -> Remembered:
        """The rest of what `to_list` gave; with `known` a key without rejected rows had none.

        Raises:
            ValueError, TypeError: it is not of this form.
        """
        rejected: Runs | None = () if known else None
        if more:
            (gaps,) = more
            rejected = None if gaps is None else from_gaps(gaps)
        return Remembered(digest=str(digest), at_ms=int(at_ms), rejected=rejected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """An object with keys.

    Attributes:
        path: its location.
        until_ms: time of its newest key, in milliseconds since the epoch.
    """

    path: str
    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyIndex:
    """An index, or without `segments` the content of a segment.

    Attributes:
        keys: the keys that the object has itself.
        segments: objects with the older ones.
    """

    keys: Mapping[str, Remembered]
    segments: tuple[Segment, ...] = ()

    def to_json(self) -> bytes:
        """JSON, as stored."""
        return orjson.dumps(
            {
                "v": OBJECT_FORMAT,
                "keys": [one.to_list(key) for key, one in self.keys.items()],
                "segments": [[one.path, one.until_ms] for one in self.segments],
            }
        )

    @staticmethod
    def from_json(data: bytes, *, path: str) -> KeyIndex:
        """Parse the result of `to_json`.

        Raises:
            CorruptStateError: the object is not of this form.
        """
        try:
            value = versioned_json.read(data, OBJECT_FORMAT, 1)
            known = value["v"] == OBJECT_FORMAT
            return KeyIndex(
                keys={str(key): Remembered.of_list(*one, known=known) for key, *one in value["keys"]},
                segments=tuple(Segment(path=str(at), until_ms=int(ms)) for at, ms in value["segments"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise CorruptStateError(
                f"the object {path} with keys of repeated writes cannot be read ({e!r}); restore it "
                "from a backup",
                path=path,
            ) from e


def summary_key(stream: str) -> str:
    """The summary property of a stream's keys."""
    return SUMMARY_PREFIX + stream


def is_key_object(key: str) -> bool:
    """Whether an object of the lake, by its key, holds keys of repeated writes."""
    return f"/metadata/{FILE_PREFIX}" in key

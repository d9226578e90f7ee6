"""Vended credentials: temporary store keys to the files of one table, for a client without keys of its own.

The store's token service issues them in the name of the store user `vending`, with an inline policy for one
prefix, the checked location of the table: they can do at most what both allow. They never write or delete
`*.metadata.json` and never delete anything, and they end after a quarter of an hour, which is also how long
they outlive a revocation.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum

import orjson

from tarn.core.errors import InvalidError, InvalidLocationError
from tarn.core.naming import WarehouseLayout
from tarn.core.temporary_keys import DURATION_S_MIN, POLICY_CHARS_MAX, TemporaryKeys, TokenService
from tarn_catalog.operations.token_gate import TokenGate

DURATION_S = DURATION_S_MIN
"""How long vended keys are valid, in seconds: the shortest time that S3 knows."""
LEFT_S_MIN = 600
"""Keys are vended as long as they are valid for so many seconds more; Iceberg's Java client renews its keys
five minutes before their end, and must then get others."""
KEPT_MAX = 4_096


class Mode(StrEnum):
    """What vended keys may do with the files of a table."""

    READ = "read"
    WRITE = "write"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vended:
    """Keys to the files of one table.

    Attributes:
        prefix: location of all that they open; ends in a slash.
        mode: what they may do.
        keys: the keys.
        fresh: whether they were issued for this request, not for an earlier one of the same principal.
    """

    prefix: str
    mode: Mode
    keys: TemporaryKeys
    fresh: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    keys: TemporaryKeys
    until_s: float


class Vending:
    """Vends keys, the same ones to a principal until they are near their end.

    Args:
        tokens: the store's token service.
        roots: the mapping between keys and locations.
        clock: monotonic clock, seconds.
        now_ms: wall clock, milliseconds since the epoch.

    Raises:
        InvalidError: the lake is not in a bucket.
    """

    def __init__(
        self,
        tokens: TokenService,
        roots: WarehouseLayout,
        *,
        clock: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        scheme, _, bucket = roots.base.partition("://")
        if scheme != "s3" or not bucket or "/" in bucket:
            raise InvalidError(f"Cannot vend keys to {roots.base}: only to a bucket, s3://<bucket>")
        self._tokens = TokenGate(tokens, clock=clock)
        self._roots = roots
        self._bucket = bucket
        self._clock = clock
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str, Mode], _Kept] = OrderedDict()
        self._asked: dict[tuple[str, str, Mode], Future[TemporaryKeys]] = {}

    def vend(self, client_id: str, *, location: str, table_uuid: str, mode: Mode) -> Vended:
        """Return keys for a principal to the files of a table.

        Args:
            client_id: the client id of the principal, which has the rights for it.
            location: the location of the table.
            table_uuid: its uuid.
            mode: what the keys may do.

        Raises:
            InvalidLocationError: the location is not one that the catalog gives to this table.
            InvalidError: the location is too long for a policy.
            UnavailableError: the token service issues no keys now.
        """
        prefix = f"{self._roots.check_table(location, table_uuid)}/"
        wanted = (client_id, prefix, mode)
        with self._lock:
            kept = self._kept.get(wanted)
            if kept is not None and self._lasts(kept):
                return Vended(prefix=prefix, mode=mode, keys=kept.keys, fresh=False)
            asked = self._asked.get(wanted)
            first = asked is None
            if asked is None:
                asked = self._asked[wanted] = Future()
        if not first:
            # Whoever came first asks for all.
            return Vended(prefix=prefix, mode=mode, keys=self._tokens.wait(asked), fresh=False)
        try:
            keys = self._issue(wanted)
        except BaseException as e:
            asked.set_exception(e)
            raise
        finally:
            with self._lock:
                del self._asked[wanted]
        asked.set_result(keys)
        return Vended(prefix=prefix, mode=mode, keys=keys, fresh=True)

    def _issue(self, wanted: tuple[str, str, Mode]) -> TemporaryKeys:
        _, prefix, mode = wanted
        text = policy(self._bucket, self._roots.key(prefix), mode)
        if len(text) > POLICY_CHARS_MAX:
            raise InvalidError(
                f"Cannot vend keys to {prefix}: a policy for it has {len(text)} characters, at most "
                f"{POLICY_CHARS_MAX} are possible; use store keys of your own, or a shorter location",
                location=prefix,
            )
        # The time before the request: the keys are valid for at least so long from then on.
        until_s = self._clock() + DURATION_S - LEFT_S_MIN
        kept = _Kept(keys=self._tokens.assume(text, duration_s=DURATION_S), until_s=until_s)
        with self._lock:
            self._kept[wanted] = kept
            self._kept.move_to_end(wanted)
            while len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
        return kept.keys

    def _lasts(self, kept: _Kept) -> bool:
        """Return whether keys last; by two clocks, as one of them stops while a laptop sleeps."""
        left_ms = kept.keys.expires_ms - self._now_ms()
        return self._clock() < kept.until_s and left_ms >= LEFT_S_MIN * 1000


def policy(bucket: str, prefix: str, mode: Mode) -> str:
    """Return the inline policy for the files below a prefix, in S3's policy language.

    Args:
        bucket: the bucket.
        prefix: key prefix of a checked location, ends in a slash; its characters have no meaning in policies.
        mode: what to allow.

    Raises:
        InvalidLocationError: the prefix has a character that would mean something.
    """
    if not prefix.endswith("/") or set(prefix) & set('*?$"\\{}') or not prefix.isascii():
        raise InvalidLocationError(
            f"Cannot vend keys to {prefix!r}: it would mean something else in a policy"
        )
    arn = "arn:aws:s3:::"
    actions = ["s3:GetObject"]
    if mode is Mode.WRITE:
        actions += ["s3:PutObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]
    statements: list[dict[str, object]] = [
        {"Effect": "Allow", "Action": actions, "Resource": [f"{arn}{bucket}/{prefix}*"]},
        {
            "Effect": "Allow",
            "Action": ["s3:ListBucket"],
            "Resource": [f"{arn}{bucket}"],
            "Condition": {"StringLike": {"s3:prefix": [f"{prefix}*"]}},
        },
    ]
    if mode is Mode.WRITE:
        metadata = [f"{arn}{bucket}/*.metadata.json"]
        statements.append(
            {"Effect": "Deny", "Action": ["s3:PutObject", "s3:DeleteObject"], "Resource": metadata}
        )
    return orjson.dumps({"Version": "2012-10-17", "Statement": statements}).decode()

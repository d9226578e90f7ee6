"""HTTP answers of the gateway, and the one map from errors to statuses."""

from __future__ import annotations

import math
from typing import Any

from tarn.core.errors import (
    DataError,
    ForbiddenError,
    InvalidError,
    InvalidSpecError,
    NotFoundError,
    OutcomeUnknownError,
    TarnError,
    UnauthenticatedError,
    UnavailableError,
)
from tarn.core.http_answers import Answer as Answer
from tarn.core.http_answers import json_answer as json_answer
from tarn.core.http_answers import refusal as refusal
from tarn.gateway.bodies import MediaError, TooLargeError
from tarn.gateway.memory import SlowBodyError
from tarn.gateway.writes import (
    BusyError,
    KeyReusedError,
    OverQuotaError,
    QuotaError,
    Receipt,
    SequenceError,
)

RETRY_AFTER_S = 1


class MethodError(InvalidError):
    """The path does not take this method (HTTP 405)."""


class NotServedError(InvalidError):
    """This version does not do that (HTTP 501)."""


# Ordered: the first matching type applies.
ERRORS: tuple[tuple[type[TarnError], int, str], ...] = (
    (UnauthenticatedError, 401, "Unauthenticated"),
    (ForbiddenError, 403, "Forbidden"),
    (NotFoundError, 404, "NotFound"),
    (SequenceError, 409, "OutOfSequence"),
    (InvalidSpecError, 409, "TableTakesNoRows"),
    (DataError, 409, "TableTakesNoRows"),
    (KeyReusedError, 422, "KeyReused"),
    (MethodError, 405, "MethodNotAllowed"),
    (NotServedError, 501, "NotServed"),
    (SlowBodyError, 408, "SlowBody"),
    (TooLargeError, 413, "TooLarge"),
    (OverQuotaError, 413, "OverQuota"),
    (MediaError, 415, "UnsupportedMediaType"),
    (InvalidError, 400, "BadRequest"),
    (QuotaError, 429, "QuotaUsedUp"),
    (BusyError, 429, "Busy"),
    (OutcomeUnknownError, 504, "OutcomeUnknown"),
    (UnavailableError, 503, "Unavailable"),
)


def receipt_answer(receipt: Receipt, *, pressure: str) -> Answer:
    """What became of a write: 200, or 422 if no row of it was accepted. Unknown counts are null.

    Args:
        receipt: what became of it.
        pressure: why the writer is held back; empty if it is not.
    """
    value: dict[str, Any] = {
        "durability": "lake" if receipt.topic is None else "log",
        "accepted": receipt.accepted,
        "rejected": None
        if receipt.rejected is None
        else [{"row": row, "reason": reason} for row, reason in receipt.rejected.items()],
        "repeated": receipt.repeated,
    }
    if receipt.topic is None:
        value["snapshot-id"] = receipt.snapshot_id
    else:
        value["topic"] = receipt.topic
        value["offsets"] = [
            {"partition": run.partition, "first": run.first, "last": run.last} for run in receipt.offsets
        ]
    headers = {"tarn-pressure": pressure.encode("ascii", "replace").decode()} if pressure else {}
    return json_answer(value, status=422 if receipt.accepted == 0 else 200, headers=headers)


def error_answer(error: TarnError) -> Answer:
    """The response for an error."""
    status, kind = next(
        ((status, kind) for type_, status, kind in ERRORS if isinstance(error, type_)), (500, "Internal")
    )
    headers: dict[str, str] = {}
    if status == 401:
        headers["www-authenticate"] = 'Bearer realm="tarn"'
    if isinstance(error, BusyError):
        headers["retry-after"] = str(math.ceil(error.retry_after_s))
    elif status == 503:
        headers["retry-after"] = str(RETRY_AFTER_S)
    if status == 405:
        headers["allow"] = str(error.fields.get("allow", "GET"))
    more = {"expected": error.fields["expected"]} if isinstance(error, SequenceError) else {}
    return refusal(status, kind, error.message, headers=headers, **more)

"""Reasons why a table could not be read, attributed to the store, the file, or the library."""

from __future__ import annotations

from importlib.metadata import version

import pyarrow as pa
from pydantic import ValidationError

from tarn.core.errors import (
    CorruptStateError,
    ForbiddenError,
    InvalidError,
    TarnError,
    UnavailableError,
)

REASON_CHARS_MAX = 300
NOT_YET = "Not yet implemented"
DENIED = "ACCESS_DENIED"
MISSING = ("NO_SUCH_KEY", "RESOURCE_NOT_FOUND", "Path does not exist")
DELETES_FIX = (
    "its delete files were written with an encoding that pyarrow does not read, as Trino does unless "
    "parquet.writer.delta-length-byte-array-encoding-enabled=false; rewrite the table once, in Trino with "
    "ALTER TABLE {table} EXECUTE optimize, or read it with --engine trino or spark"
)

READING_ERRORS = (OSError, pa.ArrowException, ValidationError, ValueError, NotImplementedError)
"""Exceptions that pyiceberg and pyarrow raise if a table cannot be read, for any reason."""


def unreadable(error: Exception, *, table: str, endpoint: str) -> TarnError:
    """Return an error that says what is wrong with the table, its file or the store, and what to do.

    Args:
        error: one of `READING_ERRORS`, or DuckDB's error caused by one.
        table: qualified name of the table.
        endpoint: endpoint of the store.
    """
    reason = _first_line(error)
    if "DictAccumulator" in reason:
        return InvalidError(
            f"{_library()} cannot read {table} ({reason}): {DELETES_FIX.format(table=table)}", table=table
        )
    if isinstance(error, FileNotFoundError) or any(mark in reason for mark in MISSING):
        return CorruptStateError(
            f"{table} names a file that is not in the store ({reason}); run scripts/tarn fsck", table=table
        )
    if DENIED in reason:
        return ForbiddenError(
            f"the store at {endpoint} refuses to show a file of {table} ({reason}); its rights are those of "
            "the service bootstrap: see docker compose logs bootstrap",
            table=table,
        )
    if isinstance(error, OSError) and NOT_YET not in reason:
        return UnavailableError(
            f"a file of {table} could not be read from the store at {endpoint} ({reason}); is the service "
            "minio running and healthy? see docker compose logs minio",
            address=endpoint,
        )
    if isinstance(error, pa.ArrowInvalid):
        return CorruptStateError(
            f"a file of {table} cannot be decoded ({reason}); run scripts/tarn fsck", table=table
        )
    return InvalidError(
        f"{_library()} cannot read {table} ({reason}); read it with --engine trino or spark", table=table
    )


def _library() -> str:
    return f"pyiceberg {version('pyiceberg')} with pyarrow {pa.__version__}"


def _first_line(error: Exception) -> str:
    """The error on one line, without the validator's notes for programmers."""
    if isinstance(error, ValidationError):
        found = error.errors(include_url=False, include_context=False)
        text = "; ".join(dict.fromkeys(one["msg"].removeprefix("Value error, ") for one in found))
    else:
        text = str(error)
    return f"{type(error).__name__}: {' '.join(text.split())}"[:REASON_CHARS_MAX]

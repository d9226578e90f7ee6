"""Rows of Arrow columns as Python values."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tarn.core.errors import InvalidError


def rows_of(names: Sequence[str], columns: Sequence[pa.Array | pa.ChunkedArray]) -> list[tuple[object, ...]]:
    """The rows; by column, as names may occur twice.

    Raises:
        InvalidError: a value is a time outside the years 1 to 9999, which Python does not have, or a text
            that is not UTF-8.
    """
    values = []
    for name, column in zip(names, columns, strict=True):
        try:
            values.append(column.to_pylist(maps_as_pydicts="lossy"))
        except UnicodeDecodeError as error:
            raise InvalidError(
                f"column {name!r} has a text that is not UTF-8 ({error}); leave the column out"
            ) from error
        except (OverflowError, ValueError) as error:
            raise no_such_time(f"column {name!r}", error) from error
    return list(zip(*values, strict=True))


def no_such_time(where: str, error: Exception) -> InvalidError:
    """The error of a value that Python's calendar does not have.

    Args:
        where: what has the value.
        error: what Python says.
    """
    return InvalidError(
        f"{where} has a date or time outside the years 1 to 9999, which cannot be shown ({error}); ask for "
        "it as text: CAST(… AS varchar), with Spark AS string"
    )

"""Memory limit of a request body: an upper bound of its parsed size."""

from __future__ import annotations

from tarn.core.errors import InvalidError

# Bytes of a parsed value on CPython 3.11 to 3.13, rounded up: an object, a list, and any value with its key
# or slot. Delimiters inside strings are counted too: this is a bound, not a measurement.
OBJECT_BYTES = 240
LIST_BYTES = 110
VALUE_BYTES = 96
# The body itself and its strings: one character beyond ASCII may make each one of its string take 4 bytes.
PLAIN_FACTOR = 2
TEXT_FACTOR = 5
WEIGHT_BYTES_MAX = 96 * 1024 * 1024


class TooLargeError(InvalidError):
    """A request body over a size limit (HTTP 413)."""


def weight(body: bytes) -> int:
    """Return an upper bound of the memory that a JSON body takes once parsed, bytes.

    Raises:
        TooLargeError: the bound is over the limit of a request.
    """
    plain = body.isascii() and b"\\" not in body
    bound = (
        (PLAIN_FACTOR if plain else TEXT_FACTOR) * len(body)
        + OBJECT_BYTES * body.count(b"{")
        + LIST_BYTES * body.count(b"[")
        + VALUE_BYTES * (body.count(b",") + body.count(b":"))
    )
    if bound > WEIGHT_BYTES_MAX:
        raise TooLargeError(
            f"The request body of {len(body)} bytes may take {bound} bytes once parsed, at most "
            f"{WEIGHT_BYTES_MAX} are allowed; split the request"
        )
    return bound

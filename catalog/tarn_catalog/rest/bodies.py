"""Memory limit of a request body: an upper bound of its parsed size."""

from __future__ import annotations

from tarn.core.errors import InvalidError
from tarn.core.metadata_json import parsed_bytes

WEIGHT_BYTES_MAX = 96 * 1024 * 1024


class TooLargeError(InvalidError):
    """A request body over a size limit (HTTP 413)."""


def weight(body: bytes) -> int:
    """Return an upper bound of the memory that a JSON body takes once parsed, bytes.

    Raises:
        TooLargeError: the bound is over the limit of a request.
    """
    bound = parsed_bytes(body)
    if bound > WEIGHT_BYTES_MAX:
        raise TooLargeError(
            f"The request body of {len(body)} bytes may take {bound} bytes once parsed, at most "
            f"{WEIGHT_BYTES_MAX} are allowed; split the request"
        )
    return bound
